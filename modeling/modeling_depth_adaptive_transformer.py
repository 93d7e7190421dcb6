"""Depth-adaptive Transformer: Elbayad et al., 2020, https://arxiv.org/abs/1910.10073.

Every layer can predict. In training all of them do; afterwards a token leaves as soon as a layer is sure enough, or where
a halting network says, and its state is copied upward for those that still run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_depth_adaptive_transformer import (
    DepthAdaptiveTransformerConfig,
    DepthAdaptiveTransformerEncoderConfig,
)
from transformers_xl.modeling.encoder import encoder_forms
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
    ModelInputs,
    whole_logits,
)
from transformers_xl.modeling.layers.adaptive_softmax import linear_cross_entropy, mean_loss
from transformers_xl.modeling.layers.depth_halting import (
    HALTING_NETWORKS,
    correctness,
    oracle_layers,
    read_mean,
)
from transformers_xl.modeling.layers.halting import HaltingLayer, gather, scatter, skips_halted
from transformers_xl.modeling.memory.memory_value import LayerMemory
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.ops.columns import is_symbolic
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

    exit_layers: torch.Tensor | None = None


@dataclass
class DepthAdaptiveTransformerHeadOutput(MemoryHeadOutput):
    """`exit_layers` as in [`DepthAdaptiveTransformerModelOutput`]."""

    exit_layers: torch.Tensor | None = None


class DepthAdaptiveTransformerLayer(HaltingLayer):
    """A Transformer-XL layer that tokens may have left before: it copies their states, and later tokens attend to them.

    Differs from the original: relative positions and memory.
    """

    def __init__(self, config: DepthAdaptiveTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.has_mean = config.halting == "sequence" and layer_idx == 0

    def new_memory(self, batch: int, num_columns: int, like: torch.Tensor) -> LayerMemory:
        """Of the first layer, `state` is the mean `(batch, hidden_size)` of all embeddings that a row has read, by which
        `halting="sequence"` decides; a translator decides by its source."""
        memory = super().new_memory(batch, num_columns, like)
        return memory._replace(state=(like.new_zeros(batch, memory.columns[0].shape[2]),)) if self.has_mean else memory


@auto_docstring(custom_intro="Base class for the Depth-adaptive Transformer: initialization and loading.")
class DepthAdaptiveTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: DepthAdaptiveTransformerConfig
    _no_split_modules = ["DepthAdaptiveTransformerLayer"]

    @property
    def _is_stateful(self) -> bool:  # type: ignore[override]  # a class attribute of transformers
        return cast(Any, self.base_model).layers[0].has_mean  # which cannot be taken back


@auto_docstring(
    custom_intro="The Depth-adaptive Transformer without a head: without classifiers, tokens pass all layers."
)
class DepthAdaptiveTransformerModel(DepthAdaptiveTransformerPreTrainedModel, MemoryModel):
    layer_class = DepthAdaptiveTransformerLayer
    output_class: type[DepthAdaptiveTransformerModelOutput] = DepthAdaptiveTransformerModelOutput
    token_outputs = ("last_hidden_state", "exit_layers")
    extra_arguments = ("exit_rule",)

    def run_layers(
        self,
        hidden_states: torch.Tensor,
        memory: tuple[LayerMemory, ...],
        contexts: list[LayerContext],
        exit_rule: ExitRule | None = None,
        **kwargs,
    ) -> tuple[DepthAdaptiveTransformerModelOutput, list[LayerMemory]]:
        """The layers, each for the tokens that `exit_rule` has not let leave before it; without a rule, for all."""
        exit_layers = torch.full_like(hidden_states[..., 0], len(self.layers), dtype=torch.long)
        segment, source, means = contexts[0].segment, contexts[0].source, hidden_states
        exit_layers = exit_layers if segment.mask is None else exit_layers.where(segment.mask, 0)
        if memory[0].state:
            means, newest = read_mean(hidden_states, memory[0].state[0], segment)
            memory = (memory[0]._replace(state=(newest,)), *memory[1:])
        elif source is not None and self.config.halting == "sequence":
            means = source.mean().expand(-1, hidden_states.shape[1], -1)
        if exit_rule is None:
            output, remembered = super().run_layers(hidden_states, memory, contexts, **kwargs)
            return self.output_class(last_hidden_state=output.last_hidden_state, exit_layers=exit_layers), remembered

        skip_halted, remembered = skips_halted(self.config, hidden_states, **kwargs), []
        known = exit_rule(0, means)
        exit_layers = exit_layers if known is None else known.where(exit_layers > 0, 0)
        hidden_states = self.captured_states(hidden_states)
        for number, (layer, past, context) in enumerate(zip(self.layers, memory, contexts, strict=True), start=1):
            running = exit_layers >= number
            count = int(running.sum()) if skip_halted else running.numel()
            packed = count < running.numel()
            asked = running if packed or not skip_halted else None  # with all of them, an ordinary layer
            told = {"running": asked, "skip_halted": skip_halted}
            hidden_states, kept, _ = layer(hidden_states, past, context, **told, **kwargs)
            hidden_states = self.captured_states(hidden_states)
            remembered.append(kept)
            if count == 0:
                continue
            known = exit_rule(number, gather(hidden_states, running) if packed else hidden_states)
            if known is not None:
                exit_layers = scatter(known, running, exit_layers) if packed else known.where(running, exit_layers)
        return self.output_class(last_hidden_state=hidden_states, exit_layers=exit_layers), remembered


@auto_docstring(
    custom_intro="""
    The Depth-adaptive Transformer with a language modeling head. In training mode its loss is that of the predictions of
    all layers (`exit_training="aligned"`), or of tokens that leave after random layers (`"mixed"`), plus that of `halting`;
    in evaluation it is that of the prediction of the layer after which each token left: the last one, unless
    `config.confidence_thresholds` or `config.exit_by_halting` is set.
    """
)
class DepthAdaptiveTransformerForCausalLM(DepthAdaptiveTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = DepthAdaptiveTransformerModel
    output_class = DepthAdaptiveTransformerHeadOutput

    def own_loss(self) -> str:
        return f"that of the predictions of all layers (`exit_training`={self.config.exit_training!r})"

    def build_head(self, config: DepthAdaptiveTransformerConfig) -> None:
        super().build_head(config)
        self.exit_classifiers: nn.ModuleList | None = None
        self.halting: Any = None
        if not config.shared_classifier:
            self.exit_classifiers = nn.ModuleList(
                self.build_classifier(config) for _ in range(config.num_hidden_layers - 1)
            )
        if config.halting is not None:
            self.halting = HALTING_NETWORKS[config.halting](config)

    def build_source_reader(self, size: int) -> None:
        if self.config.halting == "sequence":
            self.halting = HALTING_NETWORKS["sequence"](self.config, size)
            cast(DepthAdaptiveTransformerLayer, self.model.layers[0]).has_mean = False

    def extra_classifiers(self) -> list[nn.ModuleList]:
        return [] if self.exit_classifiers is None else [self.exit_classifiers]

    def final_norm(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What predicts, of the output of a layer before the last: after the final norm, where there is one."""
        return hidden_states if self.model.norm is None else self.model.norm(hidden_states)

    def classifier(self, number: int) -> nn.Module:
        """What predicts after layer `number`, from states after the final norm."""
        if self.exit_classifiers is None or number == self.config.num_hidden_layers:
            return self.lm_head
        return self.exit_classifiers[number - 1]

    def compute_logits(self, outputs: MemoryModelOutput, logits_to_keep: int | torch.Tensor = 0) -> torch.Tensor:
        if self.exit_classifiers is None:
            return super().compute_logits(outputs, logits_to_keep)
        hidden_states = slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep)
        exit_layers = slice_logits_to_keep(outputs["exit_layers"][..., None], logits_to_keep).squeeze(-1)
        logits = hidden_states.new_zeros(*exit_layers.shape, self.config.vocab_size)
        for number in range(1, self.config.num_hidden_layers + 1):
            here = exit_layers == number
            if is_symbolic(here):  # a graph has no shapes that depend on values
                logits = torch.where(here[..., None], self.classifier(number)(hidden_states), logits)
            else:
                here_logits = self.classifier(number)(gather(hidden_states, here))
                logits = scatter(here_logits.to(logits.dtype), here, logits)
        return logits

    def exit_layer(self, number: int, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """The layer after which tokens leave in evaluation, as the states `(..., hidden_size)` after layer `number` show
        it (0: the mean embedding); None: they show nothing. Sections 3.1 to 3.3."""
        layers, thresholds = self.config.num_hidden_layers, self.config.confidence_thresholds
        if thresholds is None:
            return self.halting.exit_layer(number, self.final_norm(hidden_states) if number else hidden_states)
        if not 0 < number < layers:
            return None
        threshold = thresholds[number - 1] if isinstance(thresholds, list) else thresholds
        logits = self.classifier(number)(self.final_norm(hidden_states))
        confidence = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).amax(-1)
        return torch.where(confidence >= threshold, number, layers)

    def random_exit_layer(self, number: int, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Each layer as likely as the others, for every token: the paths of mixed training. Section 2.2."""
        if number > 0:
            return None
        layers = self.config.num_hidden_layers
        return torch.randint(1, layers + 1, hidden_states.shape[:-1], device=hidden_states.device)

    def forward_with_loss(
        self,
        inputs: ModelInputs,
        targets: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs,
    ) -> MemoryHeadOutput:
        if not self.training or targets is None:
            exit_rule = self.exit_layer if not self.training and self.config.exits_early() else None
            return super().forward_with_loss(inputs, targets, logits_to_keep, exit_rule=exit_rule, **kwargs)
        wants_states = kwargs.pop("output_hidden_states", self.config.output_hidden_states)
        items = kwargs.pop("num_items_in_batch", None)
        kwargs |= {"output_hidden_states": True, "return_dict": True}
        outputs, logits, loss = self.training_loss(inputs, targets, items, logits_to_keep, **kwargs)
        left_out = () if wants_states else ("hidden_states",)
        return self.head_output(outputs, loss, logits, ("last_hidden_state", *left_out))

    def training_loss(
        self,
        inputs: ModelInputs,
        targets: torch.Tensor,
        items: torch.Tensor | int | None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs,
    ) -> tuple[DepthAdaptiveTransformerModelOutput, torch.Tensor | None, torch.Tensor]:
        """Of one reading at full depth, or of `num_exit_paths` along random exits, whose first one gives the output; what
        `halting` learns from is always read at full depth. Sections 2.2 and 3."""
        config, exit_loss = self.config, targets.new_zeros((), dtype=torch.float32)
        has_cache = inputs.use_cache or inputs.past_key_values is not None
        if config.exit_training == "mixed" and has_cache:
            raise ValueError(
                "`use_cache`=True and `past_key_values` cannot be combined with `exit_training`='mixed', which may read a "
                "segment several times: train with `mems`."
            )
        if config.exit_training == "aligned" or self.halting is not None:
            full = self.model(**inputs._asdict(), **kwargs)
            logits: Any = self.logits_to_learn_by(full, targets, logits_to_keep)
            layer_losses = self.layer_losses(full, logits, targets, self.smoothing())
        if self.halting is not None:
            right = self.layer_scores(full, logits, targets, layer_losses)
            log_probs = self.exit_log_probs(full, inputs.attention_mask, kwargs.get("source"))
            exit_loss = config.halting_loss_weight * self.exit_loss(log_probs, right, targets, items)
        if config.exit_training == "aligned":
            logits = self.last_logits(full, logits[-1], targets, logits_to_keep)
            return full, logits, self.aligned_loss(layer_losses, targets, items) + exit_loss
        exit_rule = self.random_exit_layer
        paths = [self.model(**inputs._asdict(), exit_rule=exit_rule, **kwargs) for _ in range(config.num_exit_paths)]
        has_logits = self.returns_logits(targets)
        predicted = [self.compute_logits(path, logits_to_keep) if has_logits else None for path in paths]
        losses = [
            mean_loss(self.token_losses(path, targets, whole_logits(each, targets, logits_to_keep)), targets, items)
            for path, each in zip(paths, predicted, strict=True)
        ]
        return paths[0], predicted[0], torch.stack(losses).mean() + exit_loss

    def token_losses(
        self,
        outputs: DepthAdaptiveTransformerModelOutput,
        targets: torch.Tensor,
        logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`-log p` of the targets by the layers after which their tokens left, `(batch, length)`."""
        if logits is not None or self.exit_classifiers is None:
            return super().token_losses(outputs, targets, logits)
        layers = range(1, self.config.num_hidden_layers + 1)
        exit_layers = cast(torch.Tensor, outputs.exit_layers)
        left = [targets.where(exit_layers == number, -100) for number in layers]
        states = outputs.last_hidden_state
        classifiers = map(self.classifier, layers)
        smoothing = self.smoothing()
        losses = [
            linear_cross_entropy(each, states, here, label_smoothing=smoothing)
            for each, here in zip(classifiers, left, strict=True)
        ]
        return torch.stack(losses).sum(0)

    def prediction_states(self, outputs: DepthAdaptiveTransformerModelOutput) -> list[torch.Tensor]:
        """What the classifier of each layer reads, of a call at full depth with its hidden states."""
        _, *earlier, last = outputs["hidden_states"]
        return [*map(self.final_norm, earlier), last]

    def logits_to_learn_by(
        self,
        outputs: DepthAdaptiveTransformerModelOutput,
        targets: torch.Tensor,
        logits_to_keep: int | torch.Tensor,
    ) -> list:
        """What each layer predicts, of a call at full depth, where that is returned or the oracle reads it; else Nones."""
        is_read = self.halting is not None and self.config.halting_oracle == "correctness"
        is_returned = isinstance(logits_to_keep, int) and logits_to_keep == 0
        if self.returns_logits(targets) and (is_read or is_returned):
            return self.layer_logits(outputs)
        return [None] * self.config.num_hidden_layers

    def last_logits(
        self,
        outputs: DepthAdaptiveTransformerModelOutput,
        logits: torch.Tensor | None,
        targets: torch.Tensor,
        logits_to_keep: int | torch.Tensor,
    ) -> torch.Tensor | None:
        """What the last layer predicts of the tokens to keep, if it is returned; of `logits`, where all are known."""
        if logits is not None:
            return slice_logits_to_keep(logits, logits_to_keep)
        if not self.returns_logits(targets):
            return None
        classifier = self.classifier(self.config.num_hidden_layers)
        return classifier(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))

    def layer_logits(self, outputs: DepthAdaptiveTransformerModelOutput) -> list[torch.Tensor]:
        """What each layer predicts, of a call at full depth with its hidden states."""
        return [self.classifier(n)(states) for n, states in enumerate(self.prediction_states(outputs), start=1)]

    def layer_losses(
        self,
        outputs: DepthAdaptiveTransformerModelOutput,
        logits: list[torch.Tensor] | list[None],
        targets: torch.Tensor,
        smoothing: float = 0.0,
    ) -> torch.Tensor:
        """`-log p` of the targets by each layer, `(layers, batch, length)`."""
        predictions = zip(self.prediction_states(outputs), logits, strict=True)
        return torch.stack(
            [
                linear_cross_entropy(self.classifier(n), states, targets, each, smoothing)
                for n, (states, each) in enumerate(predictions, 1)
            ]
        )

    def layer_scores(
        self,
        outputs: DepthAdaptiveTransformerModelOutput,
        logits: list[torch.Tensor] | list[None],
        targets: torch.Tensor,
        layer_losses: torch.Tensor,
    ) -> torch.Tensor:
        """What the oracle judges the layers by, `(layers, batch, length)`: their predictions as they are, not smoothed."""
        if self.config.halting_oracle == "correctness":
            return correctness(cast(Any, logits), targets)
        if not self.smoothing():
            return -layer_losses.detach()
        with torch.no_grad():
            return -self.layer_losses(outputs, logits, targets)

    def aligned_loss(
        self, layer_losses: torch.Tensor, targets: torch.Tensor, items: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """`sum_n w_n loss_n / sum_n w_n` over the layers, of `layer_losses`. Section 2.2."""
        losses = torch.stack([mean_loss(each, targets, items) for each in layer_losses])
        numbers = torch.arange(1, len(layer_losses) + 1, device=losses.device)
        weights = {"uniform": torch.ones_like(numbers), "linear": numbers, "inverse": 1 / numbers}
        weight = weights[self.config.exit_loss_weights]
        return (weight * losses).sum() / weight.sum()

    def exit_log_probs(
        self, outputs: MemoryHeadOutput, attention_mask: torch.Tensor | None = None, source: Any = None
    ) -> torch.Tensor:
        """log q over the layers, `(batch, length, layers)`, of the output of a call at full depth with its hidden states;
        of a length of 1, for `halting="sequence"`, which reads the `source` of a translator. Sections 3.1 and 3.2."""
        embeds, *states = outputs["hidden_states"]
        states = [*map(self.final_norm, states[:-1])]
        if source is not None:
            return self.halting.log_probs([source.mean(), *states])
        mask = embeds.new_ones(embeds.shape[:2]) if attention_mask is None else attention_mask[:, -embeds.shape[1] :]
        mask = mask.to(embeds.dtype)[..., None]
        mean = (embeds * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        return self.halting.log_probs([mean, *states])

    def exit_loss(
        self,
        log_probs: torch.Tensor,
        scores: torch.Tensor,
        targets: torch.Tensor,
        items: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """`-log q(n*)`, the mean over the tokens that have a target; `log_probs` as `exit_log_probs` gives them, n* by the
        oracle, of what each layer's prediction is worth, `(layers, batch, length)`. Section 3."""
        config = self.config
        sigma = None if config.halting == "sequence" else config.oracle_sigma
        best = oracle_layers(scores, config.oracle_penalty, sigma)
        token_losses = -log_probs.gather(-1, best[..., None] - 1).squeeze(-1)
        has_target = targets != -100
        return (token_losses * has_target).sum() / (has_target.sum().clamp(min=1) if items is None else items)


@auto_docstring(custom_intro="The Depth-adaptive Transformer with a classification head on the last real token.")
class DepthAdaptiveTransformerForSequenceClassification(
    DepthAdaptiveTransformerPreTrainedModel, MemoryForSequenceClassification
):
    model_class = DepthAdaptiveTransformerModel
    output_class = DepthAdaptiveTransformerHeadOutput


@auto_docstring(custom_intro="The Depth-adaptive Transformer with a classification head on every token.")
class DepthAdaptiveTransformerForTokenClassification(
    DepthAdaptiveTransformerPreTrainedModel, MemoryForTokenClassification
):
    model_class = DepthAdaptiveTransformerModel
    output_class = DepthAdaptiveTransformerHeadOutput


(
    DepthAdaptiveTransformerEncoderModel,
    DepthAdaptiveTransformerEncoderForMaskedLM,
    DepthAdaptiveTransformerEncoderForSequenceClassification,
    DepthAdaptiveTransformerEncoderForTokenClassification,
) = encoder_forms(DepthAdaptiveTransformerEncoderConfig, DepthAdaptiveTransformerForCausalLM)


__all__ = [
    "DepthAdaptiveTransformerEncoderForMaskedLM",
    "DepthAdaptiveTransformerEncoderForSequenceClassification",
    "DepthAdaptiveTransformerEncoderForTokenClassification",
    "DepthAdaptiveTransformerEncoderModel",
    "DepthAdaptiveTransformerForCausalLM",
    "DepthAdaptiveTransformerForSequenceClassification",
    "DepthAdaptiveTransformerForTokenClassification",
    "DepthAdaptiveTransformerModel",
    "DepthAdaptiveTransformerPreTrainedModel",
]
