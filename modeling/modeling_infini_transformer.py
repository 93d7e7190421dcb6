"""Infini-Transformer: Munkhdalai et al., 2024, https://arxiv.org/abs/2404.07143. No code of the authors is public.

Each complete block of a text is written into a memory matrix per head, which all later tokens read: a memory of constant
size that reaches back to the beginning of the text.
"""

from typing import cast

import torch
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_infini_transformer import InfiniTransformerConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.infini_attention import BlockKeyMask, InfiniAttention, InfiniMemory
from transformers_xl.modeling.layers.segment_context import PositionEmbeddings, SegmentContext
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.memory.window_memory import WindowMemory
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.ops.sinusoids import sinusoids
from transformers_xl.modeling.ops.window import SegmentPacking, gather_columns, inverse, keep_last


class InfiniTransformerLayer(MemoryLayer):
    """Infini-attention and a feed-forward.

    Differs from the original: blocks are counted from the beginning of a text, and the open block is kept for the next
    call, so that results do not depend on how a text is cut into calls.
    """

    attention_class = InfiniAttention

    def memories(self) -> InfiniMemory:
        return InfiniMemory.of(cast(InfiniTransformerConfig, self.self_attn.config))

    def forward(
        self, hidden_states: torch.Tensor, memory: InfiniMemory, segment: SegmentContext, **kwargs
    ) -> LayerOutput:
        return super().forward(hidden_states, memory, segment, sums=(memory.matrix, memory.normalizer), **kwargs)


@auto_docstring(custom_intro="Weights, loading and the promises of the Infini-Transformer.")
class InfiniTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: InfiniTransformerConfig
    _no_split_modules = ["InfiniTransformerLayer"]
    _is_stateful = True
    _can_compile_fullgraph = False  # a static cache has no place for a matrix


@auto_docstring(custom_intro="The Infini-Transformer without a head.")
class InfiniTransformerModel(InfiniTransformerPreTrainedModel, MemoryModel):
    layer_class = InfiniTransformerLayer
    positions_class = None

    def key_mask(self, window: WindowMemory, packing: SegmentPacking) -> BlockKeyMask:
        return BlockKeyMask.of(packing, window.num_seen, self.config)

    def position_embeddings(
        self, hidden_states: torch.Tensor, num_keys: int, memory: ModelMemory
    ) -> PositionEmbeddings | None:
        """Sines and cosines of the positions in blocks, `(B or 1, n, head_dim)`, of the n columns to project: those of the
        memory that are not projected yet, and the segment."""
        if self.config.rope_theta is None:
            return None
        key_mask, past = cast(BlockKeyMask, memory.longest.key_mask), memory.longest.unprojected()
        order = None if key_mask.order is None else inverse(key_mask.order)
        length = hidden_states.shape[1] + (0 if past is None else past.shape[1])
        places = keep_last(gather_columns(key_mask.grid.place, order), length)
        return sinusoids(places, self.config.head_dim, hidden_states.dtype, self.config.rope_theta)


@auto_docstring(custom_intro="The Infini-Transformer with a language modeling head.")
class InfiniTransformerForCausalLM(InfiniTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = InfiniTransformerModel


@auto_docstring(custom_intro="The Infini-Transformer with a classification head on the last real token.")
class InfiniTransformerForSequenceClassification(InfiniTransformerPreTrainedModel, MemoryForSequenceClassification):
    model_class = InfiniTransformerModel


@auto_docstring(custom_intro="The Infini-Transformer with a classification head on every token.")
class InfiniTransformerForTokenClassification(InfiniTransformerPreTrainedModel, MemoryForTokenClassification):
    model_class = InfiniTransformerModel


__all__ = [
    "InfiniTransformerForCausalLM",
    "InfiniTransformerForSequenceClassification",
    "InfiniTransformerForTokenClassification",
    "InfiniTransformerModel",
    "InfiniTransformerPreTrainedModel",
]
