"""Depth-adaptive Transformer: Elbayad et al., 2020, https://arxiv.org/abs/1910.10073.

Every layer can predict. In training all of them do; afterwards a token leaves as soon as a layer is sure enough, or where
a halting network says, and its state is copied upward for those that still run.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import GenerationMixin
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_depth_adaptive_transformer import DepthAdaptiveTransformerConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.depth_halting import (
    HALTING_NETWORKS,
    oracle_layers,
    prediction_scores,
    read_mean,
)
from transformers_xl.modeling.layers.halting import Running
from transformers_xl.modeling.layers.running_attention import RunningAttention
from transformers_xl.modeling.layers.transformer_layer import MemoryLayer
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.outputs import MemoryHeadOutput, MemoryModelOutput

# of layer `number` (0: before the first) and states, the layer after which each leaves; None where they say nothing new
ExitRule = Callable[[int, torch.Tensor], torch.Tensor | None]


@dataclass
class DepthAdaptiveTransformerModelOutput(MemoryModelOutput):
    """
    Args:
        exit_layers (`torch.LongTensor` of shape `(batch, length)`):
            The layer after which each token left, 1..num_hidden_layers; 0 for padding.
    """

    exit_layers: torch.LongTensor | None = None


@dataclass
class DepthAdaptiveTransformerHeadOutput(MemoryHeadOutput):
    """`exit_layers` as in [`DepthAdaptiveTransformerModelOutput`]."""

    exit_layers: torch.LongTensor | None = None


class DepthAdaptiveTransformerLayer(MemoryLayer):
    """A Transformer-XL layer that tokens may have left before: it copies their states, and later tokens attend to them.

    Differs from the original: a decoder with relative positions and memory, not the decoder of a translator.
    """

    attention_class = RunningAttention

    def __init__(self, config: DepthAdaptiveTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.number = layer_idx + 1

    def forward(
        self,
        hidden_states: torch.Tensor,
        memory: torch.Tensor | None = None,
        *states: torch.Tensor,
        exit_layers: torch.Tensor,
        exit_rule: ExitRule | None = None,
        means: torch.Tensor | None = None,
        new_states: tuple[torch.Tensor, ...] = (),
        **kwargs,
    ) -> tuple[torch.Tensor, ...]:
        """`exit_layers` `(batch, length)`, the layer after which each token leaves as far as it is known, is written to.
        `means` are those of the embeddings that were read; `new_states`, what all layers remember of them."""
        remembered = hidden_states
        if exit_rule is None:
            hidden_states, _ = super().forward(hidden_states, memory, **kwargs)
        else:
            if self.number == 1:
                known = exit_rule(0, hidden_states if means is None else means)
                if known is not None:
                    exit_layers.copy_(known.where(exit_layers > 0, 0))
            hidden_states = self.run(hidden_states, memory, exit_layers, exit_rule, **kwargs)
        return hidden_states, remembered, *new_states

    def run(
        self,
        hidden_states: torch.Tensor,
        memory: torch.Tensor | None,
        exit_layers: torch.Tensor,
        exit_rule: ExitRule,
        output_attentions: bool = False,
        **kwargs,
    ) -> torch.Tensor:
        """The layer for the tokens that have not left: the others are copied, and in inference cost no work."""
        runs = exit_layers >= self.number
        running = None
        if not (torch.is_grad_enabled() or torch.compiler.is_compiling() or output_attentions):
            running = Running(runs)
        if running is None or running.all:
            output, _ = super().forward(hidden_states, memory, **kwargs)
            hidden_states = torch.where(runs[..., None], output, hidden_states)
            known = exit_rule(self.number, hidden_states)
            if known is not None:
                exit_layers.copy_(torch.where(runs, known, exit_layers))
            return hidden_states

        memory = None if memory is None else self.attention_input(memory)
        attn_output = self.self_attn.attend_running(self.attention_input(hidden_states), running, memory, **kwargs)
        if not running.any:
            return hidden_states
        states = self.input_layernorm.after(running.pack(hidden_states) + self.dropout(attn_output))
        mlp_output = self.feed_forward(self.post_attention_layernorm.before(states))
        states = self.post_attention_layernorm.after(states + mlp_output)
        known = exit_rule(self.number, states)
        if known is not None:
            exit_layers[runs] = known
        return running.unpack(states, hidden_states)


@auto_docstring(custom_intro="Weights, loading and the promises of the Depth-adaptive Transformer.")
class DepthAdaptiveTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: DepthAdaptiveTransformerConfig
    _no_split_modules = ["DepthAdaptiveTransformerLayer"]
    _can_record_outputs = {"hidden_states": DepthAdaptiveTransformerLayer, "attentions": RunningAttention}


@auto_docstring(
    custom_intro="The Depth-adaptive Transformer without a head: without classifiers, tokens pass all layers."
)
class DepthAdaptiveTransformerModel(MemoryModel, DepthAdaptiveTransformerPreTrainedModel):
    layer_class = DepthAdaptiveTransformerLayer
    output_class = DepthAdaptiveTransformerModelOutput
    token_outputs = ("exit_layers",)

    def layer_context(self, hidden_states, states, segment_mask, episode) -> dict:
        size, device = hidden_states.shape[:2], hidden_states.device
        exit_layers = torch.full(size, self.config.num_hidden_layers, device=device)
        if segment_mask is not None:
            exit_layers = exit_layers.where(segment_mask, 0)
        if not self.config.layer_states:
            return {"exit_layers": exit_layers}
        means, numbers = read_mean(hidden_states, states[0], segment_mask, episode)
        return {"exit_layers": exit_layers, "means": means, "new_states": (means[:, -1], numbers[:, -1])}


@auto_docstring(
    custom_intro="""
    The Depth-adaptive Transformer with a language modeling head. In training mode its loss is that of the predictions of
    all layers (`exit_training="aligned"`), or of tokens that leave after random layers (`"mixed"`), plus that of `halting`;
    in evaluation it is that of the prediction of the layer after which each token left: the last one, unless
    `config.confidence_thresholds` or `config.exit_by_halting` is set.
    """
)
class DepthAdaptiveTransformerForCausalLM(MemoryForCausalLM, DepthAdaptiveTransformerPreTrainedModel, GenerationMixin):
    model_class = DepthAdaptiveTransformerModel
    output_class = DepthAdaptiveTransformerHeadOutput

    def build_head(self, config: DepthAdaptiveTransformerConfig) -> None:
        super().build_head(config)
        self.exit_classifiers, self.halting = None, None
        if not config.shared_classifier:
            self.exit_classifiers = nn.ModuleList(
                nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
                for _ in range(config.num_hidden_layers - 1)
            )
        if config.halting is not None:
            self.halting = HALTING_NETWORKS[config.halting](config)

    @property
    def _is_stateful(self) -> bool:
        return bool(self.config.layer_states)  # a mean cannot be taken back

    def readable(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What predicts, of the output of a layer before the last: behind the final norm, where there is one."""
        return hidden_states if self.model.norm is None else self.model.norm(hidden_states)

    def exit_logits(self, number: int, hidden_states: torch.Tensor) -> torch.Tensor:
        """What the classifier of layer `number` predicts from readable states."""
        if self.exit_classifiers is None or number == self.config.num_hidden_layers:
            return self.lm_head(hidden_states)
        return self.exit_classifiers[number - 1](hidden_states)

    def predict(self, outputs: MemoryModelOutput, logits_to_keep: int | torch.Tensor = 0) -> torch.Tensor:
        logits = super().predict(outputs, logits_to_keep)
        if self.exit_classifiers is None:
            return logits
        hidden_states = slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep)
        exit_layers = slice_logits_to_keep(outputs.exit_layers[..., None], logits_to_keep)
        for number, classifier in enumerate(self.exit_classifiers, start=1):
            logits = torch.where(exit_layers == number, classifier(hidden_states), logits)
        return logits

    def exit_layer(self, number: int, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """The layer after which tokens leave in evaluation, as the states `(..., hidden_size)` behind layer `number` show
        it (0: the mean embedding); None: they show nothing. Sections 3.1 to 3.3."""
        layers, thresholds = self.config.num_hidden_layers, self.config.confidence_thresholds
        if thresholds is None:
            return self.halting.exit_layer(number, self.readable(hidden_states) if number else hidden_states)
        if not 0 < number < layers:
            return None
        threshold = thresholds[number - 1] if isinstance(thresholds, list) else thresholds
        logits = self.exit_logits(number, self.readable(hidden_states))
        confidence = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).amax(-1)
        return torch.where(confidence >= threshold, number, layers)

    def random_exit_layer(self, number: int, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Each layer as likely as the others, for every token: the paths of mixed training. Section 2.2."""
        if number > 0:
            return None
        layers = self.config.num_hidden_layers
        return torch.randint(1, layers + 1, hidden_states.shape[:-1], device=hidden_states.device)

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs,
    ) -> MemoryHeadOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            The tokens themselves; the loss shifts them inside the segment. -100 is ignored.
        """
        targets = kwargs.pop("shift_labels", None)
        if targets is None and labels is not None:
            targets = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
        if not self.training or targets is None:
            exit_rule = self.exit_layer if not self.training and self.config.exits_early() else None
            return super().forward(
                input_ids, attention_mask=attention_mask, shift_labels=targets, exit_rule=exit_rule, **kwargs
            )
        return_dict = kwargs.pop("return_dict", self.config.return_dict)
        wants_states = kwargs.pop("output_hidden_states", self.config.output_hidden_states)
        items = kwargs.pop("num_items_in_batch", None)
        kwargs |= {"attention_mask": attention_mask, "output_hidden_states": True, "return_dict": True}

        outputs = None
        if self.config.exit_training == "mixed":
            outputs, loss = self.mixed_loss(input_ids, targets, items, **kwargs)
        if self.config.exit_training == "aligned" or self.halting is not None:
            full = super().forward(input_ids, **kwargs)
            logits = self.layer_logits(full)
            if outputs is None:
                outputs, loss = full, self.aligned_loss(logits, targets, items)
            if self.halting is not None:
                weight = self.config.halting_loss_weight
                loss = loss + weight * self.exit_loss(full, logits, targets, attention_mask, items)
        outputs.loss = loss
        if not wants_states:
            outputs.hidden_states = None
        return outputs if return_dict else outputs.to_tuple()

    def mixed_loss(
        self, input_ids: torch.Tensor | None, targets: torch.Tensor, items: torch.Tensor | int | None, **kwargs
    ) -> tuple[MemoryHeadOutput, torch.Tensor]:
        """Mean loss of `num_exit_paths` readings of the segment, each along random exits, and the first one's output."""
        if kwargs.get("use_cache") or kwargs.get("past_key_values") is not None:
            raise ValueError(
                "`use_cache`=True and `past_key_values` do not go with `exit_training`='mixed', which may read a segment "
                "several times: train with `mems`."
            )
        readings = [
            super(DepthAdaptiveTransformerForCausalLM, self).forward(
                input_ids, exit_rule=self.random_exit_layer, **kwargs
            )
            for _ in range(self.config.num_exit_paths)
        ]
        losses = [self.token_loss(reading.logits, targets, items) for reading in readings]
        return readings[0], sum(losses) / len(losses)

    def token_loss(
        self, logits: torch.Tensor, targets: torch.Tensor, items: torch.Tensor | int | None
    ) -> torch.Tensor:
        return self.loss_function(
            logits=logits, labels=None, shift_labels=targets.contiguous(), vocab_size=self.vocab_size,
            num_items_in_batch=items,
        )  # fmt: skip

    def layer_logits(self, outputs: MemoryHeadOutput) -> list[torch.Tensor]:
        """What each layer predicts, of the output of a call at full depth with its hidden states."""
        behind = outputs.hidden_states[1:-1]
        return [self.exit_logits(n, self.readable(states)) for n, states in enumerate(behind, start=1)] + [
            outputs.logits
        ]

    def aligned_loss(
        self, logits: list[torch.Tensor], targets: torch.Tensor, items: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """`sum_n w_n loss_n / sum_n w_n` over the layers. Section 2.2."""
        numbers, kind = range(1, len(logits) + 1), self.config.exit_loss_weights
        weights = [{"uniform": 1, "linear": n, "inverse": 1 / n}[kind] for n in numbers]
        losses = [self.token_loss(each, targets, items) for each in logits]
        return sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / sum(weights)

    def exit_log_probs(self, outputs: MemoryHeadOutput, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """log q over the layers, `(batch, length, layers)`, of the output of a call at full depth with its hidden states;
        of a length of 1, for `halting="sequence"`. Sections 3.1 and 3.2."""
        embeds, *behind = outputs.hidden_states
        real = embeds.new_ones(embeds.shape[:2]) if attention_mask is None else attention_mask[:, -embeds.shape[1] :]
        real = real.to(embeds.dtype)[..., None]
        mean = (embeds * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
        return self.halting.log_probs([mean, *map(self.readable, behind[:-1])])

    def exit_loss(
        self,
        outputs: MemoryHeadOutput,
        logits: list[torch.Tensor],
        targets: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        items: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """`-log q(n*)`, the mean over the tokens that have a target, n* by the oracle. Section 3."""
        config = self.config
        scores = prediction_scores(logits, targets, config.halting_oracle)
        sigma = None if config.halting == "sequence" else config.oracle_sigma
        best = oracle_layers(scores, config.oracle_penalty, sigma)
        nats = -self.exit_log_probs(outputs, attention_mask).gather(-1, best[..., None] - 1).squeeze(-1)
        has_target = targets != -100
        return (nats * has_target).sum() / (has_target.sum().clamp(min=1) if items is None else items)


@auto_docstring(custom_intro="The Depth-adaptive Transformer with a classification head on the last real token.")
class DepthAdaptiveTransformerForSequenceClassification(
    MemoryForSequenceClassification, DepthAdaptiveTransformerPreTrainedModel
):
    model_class = DepthAdaptiveTransformerModel
    output_class = DepthAdaptiveTransformerHeadOutput


@auto_docstring(custom_intro="The Depth-adaptive Transformer with a classification head on every token.")
class DepthAdaptiveTransformerForTokenClassification(
    MemoryForTokenClassification, DepthAdaptiveTransformerPreTrainedModel
):
    model_class = DepthAdaptiveTransformerModel
    output_class = DepthAdaptiveTransformerHeadOutput


__all__ = [
    "DepthAdaptiveTransformerForCausalLM",
    "DepthAdaptiveTransformerForSequenceClassification",
    "DepthAdaptiveTransformerForTokenClassification",
    "DepthAdaptiveTransformerModel",
    "DepthAdaptiveTransformerPreTrainedModel",
]
