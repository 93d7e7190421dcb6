"""Encoders: a variant's own model, in which a token sees all of its text, what comes after it too.

What a token sees is all that differs (`Segment.both_ways`): layers, names of weights and fields are those of the variant.
An encoder reads a text at once, and remembers nothing. Relative distances are negative to the right (Shaw et al., 2018,
https://arxiv.org/abs/1803.02155).
"""

from typing import Any

import torch
from transformers.utils import auto_docstring, can_return_tuple

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.memory.segment import Segment
from transformers_xl.modeling.modeling_memory import MemoryModel
from transformers_xl.modeling.outputs import MemoryHeadOutput, MemoryModelOutput


class MemoryEncoder(MemoryModel):
    """The backbone of encoders. It stands before the model of a variant among the bases."""

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, Any, tuple[torch.Tensor, ...]]:
        return super().plan(segment.both_ways(), memory)

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        **kwargs,
    ) -> MemoryModelOutput:
        r"""
        attention_mask (`torch.Tensor` of shape `(batch, length)`, *optional*):
            1 for real tokens, 0 for padding, on any side.
        position_ids (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            Says where packed documents begin: a position that does not continue that of the real token before it. No token
            sees another document. The numbers themselves change nothing.
        """
        for name in ("mems", "past_key_values", "use_cache"):
            value = kwargs.pop(name, None)
            if value is not None and value is not False:
                raise ValueError(
                    f"`{name}` was given, but {type(self).__name__} remembers nothing: it reads a text at once, in both "
                    "directions. Leave it out, or use the causal model."
                )
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        return super().forward(**inputs, position_ids=position_ids, **kwargs)


class MemoryForMaskedLM(MemoryForCausalLM):
    """Masked language modeling: each position predicts the token that stands there."""

    def build_head(self, config: MemoryConfig) -> None:
        super().build_head(config)
        self.loss_type = "ForMaskedLM"  # by which transformers' Trainer counts labels: all of them

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        **kwargs,
    ) -> MemoryHeadOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            The tokens that stood where tokens are masked; -100 is ignored.
        position_ids (`torch.LongTensor` of shape `(batch, length)`, *optional*):
            Positions that start again say where packed documents begin.
        """
        if kwargs.pop("shift_labels", None) is not None:
            raise ValueError(
                f"`shift_labels` was given, but {type(self).__name__} predicts each token where it stands: pass `labels`."
            )
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        return super().forward(**inputs, position_ids=position_ids, labels=labels, shift_labels=labels, **kwargs)

    @classmethod
    def can_generate(cls) -> bool:
        return False


class EncoderForSequenceClassification(MemoryForSequenceClassification):
    """Classification of a text by the mean of its tokens, each of which has seen all of it."""

    def pool(self, outputs: MemoryModelOutput, mask: torch.Tensor) -> torch.Tensor:
        """What stands for each row, `(batch, hidden_size)`: the mean of its real tokens (`mask`, `(batch, length)`)."""
        total = outputs.last_hidden_state.where(mask[..., None], 0).sum(1)
        return total / mask.sum(1, keepdim=True).clamp(min=1)


def encoder_forms(
    config_class: type[MemoryConfig], causal_lm: type[MemoryForCausalLM]
) -> tuple[type, type, type, type]:
    """The encoder of a variant and its heads: for masked language modeling, for the classification of texts, and of tokens.

    Args:
        config_class: the encoder's config, a sub-class of the variant's.
        causal_lm: the language model of the variant. What it overrides, its `model_class` and its `PreTrainedModel`, the
            first of its bases, are the encoder's too.
    """
    own, decoder = causal_lm.__bases__[0], causal_lm.model_class
    name = config_class.__name__.removesuffix("Config")
    of_all = {"__module__": causal_lm.__module__, "config_class": config_class}

    def form(end: str, *bases: type, doc: str, **fields: Any) -> type:
        return type(
            f"{name}{end}", bases, of_all | {"__doc__": f"`{decoder.__name__}` as an encoder, {doc}."} | fields
        )

    encoder = form("Model", MemoryEncoder, decoder, doc="without a head")
    of_heads = {"model_class": encoder, "output_class": causal_lm.output_class}
    masked = form("ForMaskedLM", MemoryForMaskedLM, causal_lm, doc="which predicts masked tokens", **of_heads)
    pooled, each = EncoderForSequenceClassification, MemoryForTokenClassification
    of_texts = form("ForSequenceClassification", own, pooled, doc="which classifies texts", **of_heads)
    of_tokens = form("ForTokenClassification", own, each, doc="which classifies tokens", **of_heads)
    return encoder, masked, of_texts, of_tokens


__all__ = ["EncoderForSequenceClassification", "MemoryEncoder", "MemoryForMaskedLM", "encoder_forms"]
