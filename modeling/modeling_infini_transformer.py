"""Infini-Transformer: Munkhdalai et al., 2024, https://arxiv.org/abs/2404.07143. No code of the authors is public.

Each complete block of a text is written into a memory matrix per head, which all later tokens read: a memory of constant
size that reaches back to the beginning of the text.
"""

import functools
from typing import Any, cast

import torch
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_infini_transformer import InfiniTransformerConfig
from transformers_xl.modeling.actor_critic import MemoryForActorCritic
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.infini_attention import InfiniAttention, InfiniPlan
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer
from transformers_xl.modeling.memory.memory_cache import MemoryCache, Tensors
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.memory.segment import LayerContext, Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.ops.block_grid import BlockGrid, open_lengths
from transformers_xl.modeling.ops.relative_attention import sinusoids


class InfiniTransformerLayer(MemoryLayer):
    """Infini-attention and a feed-forward.

    Differs from the original: blocks are counted from the beginning of a text, and the open block is kept for the next
    call, so that results do not depend on how a text is cut into calls.
    """

    attention_class = InfiniAttention
    self_attn: InfiniAttention

    def new_memory(self, batch: int, num_columns: int, like: torch.Tensor) -> LayerMemory:
        """Its columns are the open block: inputs, or keys, values and positive keys. `state` is the matrix M of all blocks
        before it, `(batch, heads, head_dim, value_head_dim)`, and the normalizer z `(batch, heads, head_dim)`."""
        config = cast(InfiniTransformerConfig, self.self_attn.config)
        heads = config.num_attention_heads
        matrix = precise(like.new_zeros(batch, heads, config.head_dim, config.value_width // heads))
        state = matrix, precise(like.new_zeros(batch, heads, config.head_dim))
        return super().new_memory(batch, num_columns, like)._replace(state=state)

    def project(self, hidden_states: torch.Tensor, angles: torch.Tensor | None = None) -> Tensors:
        """Keys, values and positive keys of inputs `(B, n, E)`, each `(B, H, n, D)`."""
        return self.self_attn.columns(self.attention_input(hidden_states), angles)

    def forward(self, hidden_states: torch.Tensor, past: LayerMemory, context: LayerContext, **kwargs) -> LayerOutput:
        before, angles = None, context.plan.angles
        if angles is not None:
            before, angles = angles.split([context.segment.num_before, context.segment.length], 1)

        normed, sums = self.attention_input(hidden_states), tuple(precise(each) for each in past.state)
        new, project = self.self_attn.columns(normed, angles), functools.partial(self.project, angles=before)
        (key, value, written_key), kept = context.extend(past.columns, hidden_states, new, project)
        attn_output, _, sums = self.self_attn(normed, key, value, context, written_key, sums, angles, **kwargs)
        hidden_states = self.after_attention(hidden_states, self.dropout(attn_output), context, **kwargs)
        return LayerOutput(hidden_states, LayerMemory(kept, sums))


def precise(sums: torch.Tensor) -> torch.Tensor:
    """In float32 at least: in half precision a sum over a text soon stops growing."""
    return sums.to(torch.promote_types(sums.dtype, torch.float32))


@auto_docstring(custom_intro="Base class for the Infini-Transformer: initialization and loading.")
class InfiniTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: InfiniTransformerConfig
    _no_split_modules = ["InfiniTransformerLayer"]
    _is_stateful = True
    _can_compile_fullgraph = False  # a static cache has no place for a matrix


@auto_docstring(custom_intro="The Infini-Transformer without a head.")
class InfiniTransformerModel(InfiniTransformerPreTrainedModel, MemoryModel):
    layer_class = InfiniTransformerLayer
    positions_class = None

    def recent(self, memory: Memory) -> Memory:
        """All of it: what is more than an open block is still to be written."""
        return memory

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, Any, Tensors]:
        """A token sees the block that it stands in."""
        config: InfiniTransformerConfig = self.config
        blocks, angles = BlockGrid.of(segment, config.mem_len), None
        if config.rope_theta is not None:
            angles = sinusoids(blocks.place, config.head_dim, self.dtype, config.rope_theta)
        if blocks.begin is not None:
            segment = segment._replace(first=segment.columns - blocks.place[:, segment.num_before :])
        return segment, InfiniPlan(blocks, angles), ()

    def contexts(
        self, segment: Segment, memory: Memory, plan: Any, cache: MemoryCache | None, like: torch.Tensor
    ) -> list[LayerContext]:
        """All layers see and remember the same. There is no mask of all pairs: a long call costs its blocks."""
        here = LayerContext(segment, None, plan.blocks.keep, projects=cache is not None, plan=plan)
        return [
            here if cache is None else here._replace(layer_cache=cache.layer_cache(index))
            for index in range(len(self.layers))
        ]

    def lengths_after(self, segment: Segment, count: int) -> torch.Tensor:
        return open_lengths(segment, self.config.mem_len)


@auto_docstring(custom_intro="The Infini-Transformer with a language modeling head.")
class InfiniTransformerForCausalLM(InfiniTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = InfiniTransformerModel


@auto_docstring(custom_intro="The Infini-Transformer with a classification head on the last real token.")
class InfiniTransformerForSequenceClassification(InfiniTransformerPreTrainedModel, MemoryForSequenceClassification):
    model_class = InfiniTransformerModel


@auto_docstring(custom_intro="The Infini-Transformer with a classification head on every token.")
class InfiniTransformerForTokenClassification(InfiniTransformerPreTrainedModel, MemoryForTokenClassification):
    model_class = InfiniTransformerModel


@auto_docstring(custom_intro="The Infini-Transformer as an agent: a policy and a value at every step.")
class InfiniTransformerForActorCritic(InfiniTransformerPreTrainedModel, MemoryForActorCritic):
    model_class = InfiniTransformerModel


__all__ = [
    "InfiniTransformerForActorCritic",
    "InfiniTransformerForCausalLM",
    "InfiniTransformerForSequenceClassification",
    "InfiniTransformerForTokenClassification",
    "InfiniTransformerModel",
    "InfiniTransformerPreTrainedModel",
]
