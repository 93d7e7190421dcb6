"""Segment recurrence with absolute positions: Dai et al., 2019, https://arxiv.org/abs/1901.02860, section 3.2.

What the paper argues against, and its ablation measures. A position is added to a token before its layers, and stays in
what they remember: the i-th token of a segment and the i-th token of the one before it have the same. Code:
kimiyoung/transformer-xl (`attn_type` 2 and 3).
"""

from typing import Any

import torch
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_absolute_transformer_xl import (
    AbsoluteTransformerXLConfig,
    AbsoluteTransformerXLEncoderConfig,
)
from transformers_xl.modeling.encoder import encoder_forms
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.absolute_positions import AbsolutePositionsLayer, places_without_memory
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.memory.segment import Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel


class AbsoluteTransformerXLLayer(AbsolutePositionsLayer):
    """Positions, attention over `[memory; segment]`, feed-forward.

    Differs from the original: positions count forward and are added once; its code counts them from the end of a segment,
    and adds those of the memory again in every segment to what already has some.
    """


@auto_docstring(custom_intro="Base class for Transformer-XL with absolute positions: initialization and loading.")
class AbsoluteTransformerXLPreTrainedModel(MemoryPreTrainedModel):
    config: AbsoluteTransformerXLConfig
    _no_split_modules = ["AbsoluteTransformerXLLayer"]
    _can_compile_fullgraph = False  # a static cache has no place for the tokens read


@auto_docstring(
    custom_intro="""
    Transformer-XL with absolute positions, without a head. Positions start again every `segment_length` tokens of a text:
    each row remembers how many it has read, so that results do not depend on how a text is cut into calls.
    """
)
class AbsoluteTransformerXLModel(AbsoluteTransformerXLPreTrainedModel, MemoryModel):
    layer_class = AbsoluteTransformerXLLayer
    positions_class = None

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, Any, tuple[torch.Tensor, ...]]:
        if segment.last is not None:  # an encoder, in which no position comes twice
            return segment, places_without_memory(self.config, segment), ()
        return segment, segment.places % self.config.segment_length, ()


@auto_docstring(custom_intro="Transformer-XL with absolute positions and a language modeling head.")
class AbsoluteTransformerXLForCausalLM(AbsoluteTransformerXLPreTrainedModel, MemoryForCausalLM):
    model_class = AbsoluteTransformerXLModel


@auto_docstring(
    custom_intro="Transformer-XL with absolute positions and a classification head on the last real token."
)
class AbsoluteTransformerXLForSequenceClassification(
    AbsoluteTransformerXLPreTrainedModel, MemoryForSequenceClassification
):
    model_class = AbsoluteTransformerXLModel


@auto_docstring(custom_intro="Transformer-XL with absolute positions and a classification head on every token.")
class AbsoluteTransformerXLForTokenClassification(AbsoluteTransformerXLPreTrainedModel, MemoryForTokenClassification):
    model_class = AbsoluteTransformerXLModel


(
    AbsoluteTransformerXLEncoderModel,
    AbsoluteTransformerXLEncoderForMaskedLM,
    AbsoluteTransformerXLEncoderForSequenceClassification,
    AbsoluteTransformerXLEncoderForTokenClassification,
) = encoder_forms(AbsoluteTransformerXLEncoderConfig, AbsoluteTransformerXLForCausalLM)


__all__ = [
    "AbsoluteTransformerXLEncoderForMaskedLM",
    "AbsoluteTransformerXLEncoderForSequenceClassification",
    "AbsoluteTransformerXLEncoderForTokenClassification",
    "AbsoluteTransformerXLEncoderModel",
    "AbsoluteTransformerXLForCausalLM",
    "AbsoluteTransformerXLForSequenceClassification",
    "AbsoluteTransformerXLForTokenClassification",
    "AbsoluteTransformerXLModel",
    "AbsoluteTransformerXLPreTrainedModel",
]
