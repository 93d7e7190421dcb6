"""The heads that every variant shares: language modeling, and the classification of texts and of tokens."""

from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.loss.loss_utils import ForCausalLMLoss, ForMaskedLMLoss
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import auto_docstring, can_return_tuple

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.checks import check_targets
from transformers_xl.modeling.generation_memory import MemoryGenerationMixin
from transformers_xl.modeling.layers.adaptive_embedding import uses_adaptive_softmax
from transformers_xl.modeling.layers.adaptive_softmax import (
    linear_cross_entropy,
    mean_loss,
    output_layer,
    tied_weights,
)
from transformers_xl.modeling.layers.transformer_layer import Dropout
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.modeling_memory import MemoryPreTrainedModel
from transformers_xl.modeling.ops.columns import keep_last
from transformers_xl.modeling.outputs import MemoryHeadOutput, MemoryModelOutput


class ModelInputs(NamedTuple):
    """What a head passes on to its model: the arguments of [`~MemoryModel.forward`], by their names."""

    input_ids: torch.LongTensor | None
    attention_mask: torch.Tensor | None
    past_key_values: MemoryCache | None
    inputs_embeds: torch.FloatTensor | None
    mems: Memory | None
    reset: torch.Tensor | None
    position_ids: torch.LongTensor | None
    use_cache: bool | None


class MemoryHead(MemoryPreTrainedModel):
    """A model with a head on it. A variant sets `model_class`, and lists its own `PreTrainedModel` first."""

    model_class: type[nn.Module]
    output_class: type[MemoryHeadOutput] = MemoryHeadOutput

    def __init__(self, config: MemoryConfig, **modules: nn.Module | None):
        super().__init__(config)
        # not AutoModel.from_config: it asks for trust again when the code came from the Hub
        self.model = self.model_class(config)
        self.build_head(config, **modules)
        self.post_init()

    def build_head(self, config: MemoryConfig) -> None:
        """Make the modules of the head."""
        raise NotImplementedError

    def add_auxiliary_loss(
        self,
        loss: torch.Tensor,
        outputs: MemoryModelOutput,
        targets_per_token: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None,
    ) -> torch.Tensor:
        """`loss`, and in training the mean over targets of the model's `auxiliary_loss`, times its coefficient.

        One rule for all terms: `num_items_in_batch` counts the targets of all calls that make up a step of the optimizer
        (gradient accumulation), and each call brings the sum over its own targets, divided by it. So the calls add up to
        the loss of one call with all of their rows.

        Args:
            targets_per_token: `(batch, length)`, what each token has a part in: 1 or 0 where tokens are predicted; where
                texts are, 1 / (tokens of the text).
        """
        field = self.model.auxiliary_loss_coef
        if not self.training or field is None:
            return loss
        auxiliary = mean_over_targets(self.model.auxiliary_loss(outputs), targets_per_token, num_items_in_batch)
        return loss + getattr(self.config, field) * auxiliary.to(loss.device)

    def head_output(
        self,
        outputs: MemoryModelOutput,
        loss: torch.Tensor | None,
        logits: torch.Tensor | None,
        left_out: tuple[str, ...] = ("last_hidden_state",),
    ) -> MemoryHeadOutput:
        """The model's output with a loss and logits in place of the fields in `left_out`."""
        carried = {name: value for name, value in outputs.items() if name not in left_out}
        return self.output_class(loss=loss, logits=logits, **carried)


class MemoryForCausalLM(MemoryHead, MemoryGenerationMixin):
    """Language modeling head."""

    label_smoothing = 0.0  # of the training loss
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    num_extra_targets = 0  # columns that `shift_labels` may have after the segment

    def build_head(self, config: MemoryConfig) -> None:
        self.vocab_size = config.vocab_size
        self.lm_head = self.build_classifier(config)
        if uses_adaptive_softmax(config):
            self._tied_weights_keys = tied_weights(config)

    def build_source_reader(self, size: int) -> None:
        """Build what else reads an encoder's output `(batch, length, size)`, beside the layers; nothing by default."""

    def build_classifier(self, config: MemoryConfig) -> nn.Module:
        """What turns hidden states into logits."""
        return output_layer(config, bias=config.lm_head_bias)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        if all_submodels or not uses_adaptive_softmax(self.config):
            return super().get_expanded_tied_weights_keys(all_submodels)
        return dict(self._tied_weights_keys)  # without asking whether words are tied: projections may be without them

    def classifier_input(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What `lm_head` reads of `last_hidden_state` `(batch, length, hidden_size)`: all of it."""
        return hidden_states

    def extra_classifiers(self) -> list[nn.ModuleList]:
        """What predicts words besides `lm_head`, and grows with the vocabulary."""
        return []

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Module:
        embedding = super().resize_token_embeddings(*args, **kwargs)
        for classifiers in self.extra_classifiers():
            for index, classifier in enumerate(classifiers):
                if isinstance(classifier, nn.Linear):
                    classifiers[index] = self._get_resized_lm_head(classifier, self.config.vocab_size)
        return embedding

    def prepare_for_inference(self) -> None:
        """Drop what exists in training only: nothing, unless the variant says otherwise."""

    def token_losses(
        self, outputs: MemoryModelOutput, targets: torch.Tensor, logits: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`-log p` of the targets `(batch, length)`, by `logits` where they are known."""
        states = None if logits is not None else self.classifier_input(outputs.last_hidden_state)
        return linear_cross_entropy(self.lm_head, states, targets, logits, self.smoothing())

    def smoothing(self) -> float:
        """The share of a target that is spread over the vocabulary in this call."""
        return self.label_smoothing if self.training else 0.0

    def returns_logits(self, targets: torch.Tensor | None) -> bool:
        """Whether a call makes logits: an adaptive softmax learns without them."""
        return not (self.training and targets is not None and uses_adaptive_softmax(self.config))

    def compute_logits(self, outputs: MemoryModelOutput, logits_to_keep: int | torch.Tensor = 0) -> torch.Tensor:
        """Logits of the tokens to keep, `(batch, kept, vocab_size)`."""
        hidden_states = slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep)
        return self.lm_head(self.classifier_input(hidden_states))

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: MemoryCache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        mems: Memory | None = None,
        reset: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs,
    ) -> MemoryHeadOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            The tokens themselves; the loss shifts them inside the segment. -100 is ignored, and what padding predicts.
        shift_labels (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            The token that follows each token, used instead of `labels`: with it the last token of a segment has a target
            too, the first of the next segment. A keyword without a place in the signature: the Trainer takes every
            argument with "label" in its name for one that its datasets must have, or it reports no loss.
        mems ([`Memory`], *optional*):
            The `mems` of the previous segment's output.
        reset (`torch.Tensor` of shape `(batch,)` or `(batch, length)`, *optional*):
            Bool: rows that start a new text, or tokens that begin a document.
        position_ids (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            Positions that start again say where packed documents begin: they act as `reset`.
        logits_to_keep (`int` or `torch.Tensor`, *optional*, defaults to 0):
            As in transformers; the loss is that of all tokens. With 1, the loss makes logits of a few tokens at a time:
            with a large vocabulary those of all tokens take most of the memory of a call.
        output_token_losses (`bool`, *optional*):
            Whether to return what each target costs, `token_losses`; in evaluation only. A keyword without a place in the
            signature.
        """
        if self.training:
            kwargs.pop("output_token_losses", None)
        targets = kwargs.pop("shift_labels", None)
        check_targets(input_ids, inputs_embeds, labels, targets, self.num_extra_targets, self.config.vocab_size)
        if targets is None and labels is not None:
            targets = next_tokens(labels, attention_mask)
            kwargs |= items_predicted(kwargs.get("num_items_in_batch"), labels, targets)
        targets = None if targets is None else targets.long()  # losses gather by them
        inputs = ModelInputs(
            input_ids, attention_mask, past_key_values, inputs_embeds, mems, reset, position_ids, use_cache
        )
        return self.forward_with_loss(inputs, targets, logits_to_keep, **kwargs)

    def own_loss(self) -> str | None:
        """What the training loss is, in words, where it is not the cross-entropy of `last_hidden_state @
        lm_head.weight.T + lm_head.bias`; else None."""
        if uses_adaptive_softmax(self.config):
            return "that of an adaptive softmax (`cutoffs`, `div_val`, `embedding_size`)"
        field = self.model.auxiliary_loss_coef
        if field is not None and getattr(self.config, field) > 0:
            return f"the cross-entropy and an auxiliary loss (`{field}`={getattr(self.config, field)})"
        return None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # here and not in `forward`, which TRL's `add_fused_lm_head` replaces: its loss is that of `last_hidden_state` and
        # `lm_head.weight`, without what the head does beside that product, and what the loss has beside the cross-entropy
        if kwargs.get("fused_lm_head") and self.own_loss() is not None:
            raise ValueError(
                f"`fused_lm_head`=True asks for the loss of `last_hidden_state` and `lm_head.weight` alone, but the loss "
                f"of this {type(self).__name__} is {self.own_loss()}. Train it with `MemoryTrainer` or "
                "`transformers.Trainer`, or give TRL's trainer the `compute_loss` of `transformers.Trainer` "
                "(docs/peft_trl.md)."
            )
        return super().__call__(*args, **kwargs)

    def forward_with_loss(
        self,
        inputs: ModelInputs,
        targets: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs,
    ) -> MemoryHeadOutput:
        """What `forward` returns of the model's `inputs` and of what each token is to predict, `(batch, length)`. A variant
        that reads or learns otherwise overrides it."""
        wants_losses, items = kwargs.pop("output_token_losses", False), kwargs.get("num_items_in_batch")
        outputs = self.model(**inputs._asdict(), **(kwargs | {"return_dict": True}))
        logits = self.compute_logits(outputs, logits_to_keep) if self.returns_logits(targets) else None
        loss = losses = None
        if targets is not None:
            targets = targets.contiguous()  # transformers' loss views it
            known = whole_logits(logits, targets, logits_to_keep)
            if has_other_loss(self) and not uses_adaptive_softmax(self.config) and not wants_losses:
                known = self.compute_logits(outputs) if known is None else known
                words = {"labels": None, "shift_labels": targets, "vocab_size": self.vocab_size}
                loss = self.loss_function(logits=known, **words, **kwargs)
            else:
                losses = self.token_losses(outputs, targets, known)
                loss = mean_loss(losses, targets, items)
            loss = self.add_auxiliary_loss(loss, outputs, targets != -100, items)
        result = self.head_output(outputs, loss, logits)
        if wants_losses and losses is not None:
            result.token_losses = losses
        return result


def next_tokens(labels: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """What each token is to predict, `(batch, length)`, of the tokens `labels`: padding predicts nothing."""
    targets = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    if attention_mask is None:
        return targets
    return targets.masked_fill(~attention_mask[:, -targets.shape[1] :].bool(), -100)


def items_predicted(items: torch.Tensor | int | None, labels: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
    """`num_items_in_batch`, where it is given: transformers counts all `labels` but the first of each row, also those of
    which padding on their left would be the one to predict them."""
    if items is None:
        return {}
    share = (targets != -100).sum() / (labels[:, 1:] != -100).sum().clamp(min=1)
    return {"num_items_in_batch": items * share.clamp(min=1e-6)}  # of no targets the loss is 0


def whole_logits(
    logits: torch.Tensor | None, targets: torch.Tensor, logits_to_keep: int | torch.Tensor
) -> torch.Tensor | None:
    """The logits where they are those of all targets `(batch, length)`, in their order, else None."""
    is_whole = logits is not None and isinstance(logits_to_keep, int) and logits.shape[1] == targets.shape[1]
    return logits if is_whole else None


def has_other_loss(model: Any) -> bool:
    """Whether a language model was given its own `loss_function`, which reads logits."""
    return model.loss_function not in (ForCausalLMLoss, ForMaskedLMLoss)


def mean_over_targets(
    losses: torch.Tensor, targets_per_token: torch.Tensor, items: torch.Tensor | int | None
) -> torch.Tensor:
    """The mean of what tokens cost `(batch, length)`, or of one number for all, over the targets that each token has a part
    in. `items` are the targets of all calls of a step."""
    total = targets_per_token.sum().clamp(min=1) if items is None else items
    return (losses * targets_per_token).sum() / total


def targets_of_texts(mask: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """What part each token `(batch, length)` has in the targets of its text `(batch,)`: that of every other real one, by
    the `mask` `(batch, length)`."""
    return mask * targets[:, None] / mask.sum(1, keepdim=True).clamp(min=1)


def class_numbers(labels: torch.Tensor) -> Any:
    """Integers as a loss takes them, of 64 bits."""
    return labels.long() if labels.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32) else labels


class MemoryForSequenceClassification(MemoryHead):
    """Classification of a segment, by its last real token unless the variant overrides `pool`."""

    def build_head(self, config: MemoryConfig) -> None:
        self.num_labels = config.num_labels
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)  # type: ignore[arg-type]  # never None

    def pool(self, outputs: MemoryModelOutput, mask: torch.Tensor) -> torch.Tensor:
        """What stands for each row, `(batch, hidden_size)`: its last real token, by the `mask` `(batch, length)` bool."""
        hidden_states = outputs.last_hidden_state
        newest = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(dim=-1)
        return hidden_states[torch.arange(len(newest), device=newest.device), newest]

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> MemoryHeadOutput:
        r"""
        labels (`torch.Tensor` of shape `(batch,)` or `(batch, num_labels)`, *optional*):
            Class of each row, in 0..num_labels-1; several of a row as 0 or 1; with `num_labels=1` a float to regress to.
        use_cache (`bool`, *optional*):
            None: `mems` alone. True: a [`MemoryCache`] too. False: no memory, as a pipeline asks, which cannot cut one into
            rows.
        """
        if attention_mask is None and input_ids is not None and self.config.pad_token_id is not None:
            attention_mask = input_ids != self.config.pad_token_id
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **(kwargs | {"return_dict": True}),
        )
        mask = torch.ones_like(outputs.last_hidden_state[..., 0], dtype=torch.bool)
        mask = mask if attention_mask is None else keep_last(attention_mask, mask.shape[1]).bool()
        logits = self.score(self.pool(outputs, mask))
        loss = None
        if labels is not None:
            labels = class_numbers(labels)
            given = {"logits": logits, "pooled_logits": logits, "labels": labels}
            items = kwargs.get("num_items_in_batch")
            loss = self.loss_function(**given, config=self.config, num_items_in_batch=items)
            targets = (labels != -100).flatten(1).sum(1) if labels.dim() > 1 else labels != -100
            if items is not None and self.config.problem_type != "single_label_classification":
                # transformers' loss of numbers, or of several labels, is a mean in any case
                loss = loss * (targets.sum() / items).to(loss.device)
            loss = self.add_auxiliary_loss(loss, outputs, targets_of_texts(mask, targets), items)
        memory = ("mems",) if use_cache is False else ()
        return self.head_output(outputs, loss, logits, ("last_hidden_state", *memory))


class MemoryForTokenClassification(MemoryHead):
    """Classification of every token."""

    def build_head(self, config: MemoryConfig) -> None:
        self.num_labels = config.num_labels
        self.dropout = Dropout(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)  # type: ignore[arg-type]  # never None

    def features(self, outputs: MemoryModelOutput) -> torch.Tensor:
        """What stands for each token, `(batch, length, hidden_size)`."""
        return outputs["last_hidden_state"]

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs,
    ) -> MemoryHeadOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            Class of each token, in 0..num_labels-1; -100 is ignored.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            **(kwargs | {"return_dict": True}),
        )
        logits = self.score(self.dropout(self.features(outputs)))
        loss = None
        if labels is not None:
            labels, items = class_numbers(labels), kwargs.get("num_items_in_batch")
            loss = self.loss_function(logits=logits, labels=labels, config=self.config, num_items_in_batch=items)
            loss = self.add_auxiliary_loss(loss, outputs, labels != -100, items)
        return self.head_output(outputs, loss, logits)


__all__ = [
    "MemoryForCausalLM",
    "MemoryForSequenceClassification",
    "MemoryForTokenClassification",
    "MemoryHead",
    "ModelInputs",
    "has_other_loss",
    "items_predicted",
    "mean_over_targets",
    "next_tokens",
    "targets_of_texts",
    "whole_logits",
]
