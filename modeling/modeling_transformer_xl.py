"""Transformer-XL: Dai et al., 2019, https://arxiv.org/abs/1901.02860, section 3. Code: kimiyoung/transformer-xl.

Segment-level recurrence with relative positions. It is the backbone itself: the other variants are diffs against it.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_transformer_xl import TransformerXLConfig, TransformerXLEncoderConfig
from transformers_xl.modeling.actor_critic import MemoryForActorCritic
from transformers_xl.modeling.encoder import encoder_forms
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.transformer_layer import MemoryLayer
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.segment import Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.outputs import MemoryModelOutput

# Gives the arguments with which `from_pretrained(None)` makes the model of an old folder, and None for any other.
LegacyReader = Callable[[str | os.PathLike | None, dict[str, Any]], dict[str, Any] | None]
_legacy_reader: LegacyReader | None = None


def register_legacy_reader(reader: LegacyReader) -> None:
    """Let `from_pretrained` ask `reader` first. `modeling/conversion` registers one; exported code has none."""
    global _legacy_reader
    _legacy_reader = reader


class TransformerXLLayer(MemoryLayer):
    """Relative attention over `[memory; segment]` and a feed-forward."""


@auto_docstring(custom_intro="Base class for Transformer-XL: initialization and loading.")
class TransformerXLPreTrainedModel(MemoryPreTrainedModel):
    config: TransformerXLConfig
    _no_split_modules = ["TransformerXLLayer"]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike | None, *model_args, **kwargs):
        """As in transformers; folders and repositories of the old `transfo-xl` load too."""
        legacy = None if _legacy_reader is None else _legacy_reader(pretrained_model_name_or_path, kwargs)
        if legacy is None:
            return super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)
        result = super().from_pretrained(None, *model_args, **legacy)
        model = result[0] if isinstance(result, tuple) else result
        model.name_or_path = model.config.name_or_path = str(pretrained_model_name_or_path)
        return result


@auto_docstring(
    custom_intro="""
    Transformer-XL without a head. As in the original, the dropout after the embedding also applies to the table of
    positions and to the output of the last layer (before the final norm, which the original does not have).
    """
)
class TransformerXLModel(TransformerXLPreTrainedModel, MemoryModel):
    layer_class = TransformerXLLayer

    def position_embeddings(
        self, segment: Segment, cache: MemoryCache | None, like: torch.Tensor
    ) -> tuple[torch.Tensor | None, Any]:
        table, bias = super().position_embeddings(segment, cache, like)
        if table is None or cache is not None:  # a cache keeps projections for calls to come
            return table, bias
        return self.dropout(table), bias

    def output_of_layers(self, hidden_states: torch.Tensor, auxiliary_loss: torch.Tensor | None) -> MemoryModelOutput:
        return super().output_of_layers(self.dropout(hidden_states), auxiliary_loss)


@auto_docstring(custom_intro="Transformer-XL with a language modeling head.")
class TransformerXLForCausalLM(TransformerXLPreTrainedModel, MemoryForCausalLM):
    model_class = TransformerXLModel


@auto_docstring(custom_intro="Transformer-XL with a classification head on the last real token.")
class TransformerXLForSequenceClassification(TransformerXLPreTrainedModel, MemoryForSequenceClassification):
    model_class = TransformerXLModel


@auto_docstring(custom_intro="Transformer-XL with a classification head on every token.")
class TransformerXLForTokenClassification(TransformerXLPreTrainedModel, MemoryForTokenClassification):
    model_class = TransformerXLModel


@auto_docstring(custom_intro="Transformer-XL as an agent: a policy and a value at every step.")
class TransformerXLForActorCritic(TransformerXLPreTrainedModel, MemoryForActorCritic):
    model_class = TransformerXLModel


(
    TransformerXLEncoderModel,
    TransformerXLEncoderForMaskedLM,
    TransformerXLEncoderForSequenceClassification,
    TransformerXLEncoderForTokenClassification,
) = encoder_forms(TransformerXLEncoderConfig, TransformerXLForCausalLM)


__all__ = [
    "TransformerXLEncoderForMaskedLM",
    "TransformerXLEncoderForSequenceClassification",
    "TransformerXLEncoderForTokenClassification",
    "TransformerXLEncoderModel",
    "TransformerXLForActorCritic",
    "TransformerXLForCausalLM",
    "TransformerXLForSequenceClassification",
    "TransformerXLForTokenClassification",
    "TransformerXLModel",
    "TransformerXLPreTrainedModel",
]
