"""Compressive Transformer: Rae et al., 2019, https://arxiv.org/abs/1911.05507. No code of the authors is public.

The oldest memories of a Transformer-XL are not forgotten: `compression_rate` of them become one of a second memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_compressive_transformer import CompressiveTransformerConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.attention import RelativeAttention, is_long
from transformers_xl.modeling.layers.compression import (
    Compression,
    CompressionPlan,
    reconstruction_loss,
    uncompressed,
    visible_blocks,
    without_learning,
)
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer
from transformers_xl.modeling.memory.memory_cache import MemoryCache, Tensors
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.memory.segment import Call, LayerContext, Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.ops.band import PIECE_LENGTH
from transformers_xl.modeling.ops.columns import gather_columns
from transformers_xl.modeling.outputs import MemoryHeadOutput, MemoryModelOutput
from transformers_xl.modeling.segment_parts import CallParts


@dataclass
class CompressiveTransformerModelOutput(MemoryModelOutput):
    """
    Args:
        compression_loss (`torch.Tensor` of shape `(batch, length)`, *optional*):
            In training mode: the attention-reconstruction loss of each token, summed over layers.
        attentions (`tuple[torch.Tensor]`, *optional*):
            Weights of each layer, `(batch, heads, length, keys)`, the keys being those of `[compressed; memory; segment]`.
    """

    compression_loss: torch.Tensor | None = None


@dataclass
class CompressiveTransformerHeadOutput(MemoryHeadOutput):
    """`compression_loss` and `attentions` as in [`CompressiveTransformerModelOutput`]."""

    compression_loss: torch.Tensor | None = None


class CompressiveTransformerLayer(MemoryLayer):
    """Attention over `[compressed memory; memory; segment]` and a feed-forward. Algorithm 1.

    It remembers its window and fewer than `compression_rate` inputs that have left it, beside their keys and values in a
    cache; and the compressed vectors as `older`: inputs, or keys and values.

    Differs from the original: blocks are counted from the beginning of a text and seen when all of a block has left the
    window, so that the cut into segments changes nothing (`same_length=False`: as in the paper); the memory of a new row is
    empty (`initial_memory="zeros"`: as in the paper). A compressed vector stands for one step of distance, which the paper
    leaves open.
    """

    self_attn: RelativeAttention

    def __init__(self, config: CompressiveTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.compression, self.compressed_mem_len = Compression(config), config.compressed_mem_len

    def new_memory(self, batch: int, num_columns: int, like: torch.Tensor) -> LayerMemory:
        memory = super().new_memory(batch, num_columns, like)
        return memory._replace(
            older=super().new_memory(batch, self.compressed_mem_len if num_columns else 0, like).columns
        )

    def project(self, hidden_states: torch.Tensor) -> Tensors:
        """Keys and values, each `(B, H, n, D)`, and the inputs `(B, 1, n, E)` themselves, which are to be compressed."""
        return *super().project(hidden_states), hidden_states.unsqueeze(1)

    def forward(self, hidden_states: torch.Tensor, past: LayerMemory, context: LayerContext, **kwargs) -> LayerOutput:
        plan, context = context.plan, context._replace(keep=context.plan.keep)
        normed = self.attention_input(hidden_states)
        new = *self.self_attn.project(normed), hidden_states.unsqueeze(1)
        (key, value, inputs), kept = context.extend(past.columns, hidden_states, new, self.project)
        projected = older = tuple(each.to(key) for each in past.older)
        if self.training or plan.blocks.count > 0 or len(older) == 1:
            old = gather_columns(inputs[:, 0].detach(), plan.blocks.columns.expand(len(inputs), -1))
            compressed = self.compression(old)
            projected, older = self.add_compressed(older, compressed.detach())

        attn_output, _ = self.self_attn(normed, key, value, context, far=plan.far(*projected), **kwargs)
        hidden_states = self.after_attention(hidden_states, self.dropout(attn_output), context, **kwargs)
        older = tuple(plan.newest(each.detach()) for each in (projected if context.projects else older))
        memory = LayerMemory(kept, older=older)
        if not self.training:
            return LayerOutput(hidden_states, memory)
        if self.input_layernorm.norm_position == "pre":
            old, compressed = (without_learning(self.input_layernorm, each) for each in (old, compressed))
        visible = visible_blocks(context.segment, plan.blocks)
        return LayerOutput(
            hidden_states, memory, reconstruction_loss(self.self_attn, normed, old, compressed, visible)
        )

    def add_compressed(self, older: Tensors, new: torch.Tensor) -> tuple[Tensors, Tensors]:
        """Keys and values of `[compressed; new]`, of new vectors `(B, N, E)`; and the same of the kind that `older` has."""
        if len(older) == 1:
            older = (torch.cat([older[0].to(new), new], 1),)
            return self.project(older[0])[:2], older
        pairs = zip(older, self.project(new)[:2], strict=True)
        older = tuple(torch.cat([old.to(each), each], -2) for old, each in pairs)
        return older, older


@auto_docstring(custom_intro="Base class for the Compressive Transformer: initialization and loading.")
class CompressiveTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: CompressiveTransformerConfig
    _no_split_modules = ["CompressiveTransformerLayer"]
    _is_stateful = True
    _can_compile_fullgraph = False  # a static cache has no place for what is compressed


@auto_docstring(custom_intro="The Compressive Transformer without a head.")
class CompressiveTransformerModel(CompressiveTransformerPreTrainedModel, MemoryModel):
    layer_class = CompressiveTransformerLayer
    output_class = CompressiveTransformerModelOutput
    token_outputs = ("last_hidden_state", "compression_loss")
    auxiliary_loss_coef = "reconstruction_loss_coef"

    def auxiliary_loss(self, outputs: MemoryModelOutput) -> torch.Tensor:
        return outputs["compression_loss"]

    def num_distances(self, num_keys: int) -> int:
        """Compressed vectors follow the window."""
        window = self.config.mem_len if self.config.same_length else num_keys
        return max(num_keys, window + self.config.compressed_mem_len)

    def attention_windows(self) -> Sequence[int | None]:
        window = self.config.mem_len if self.config.same_length else None
        return [window] * self.config.num_hidden_layers

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, CompressionPlan, tuple[torch.Tensor, ...]]:
        held, (count,) = memory.layers[0].older[0].shape[-2], memory.state
        plan, count = CompressionPlan.of(self.config, segment, held, count)
        return segment, plan, (count,)

    def read(
        self, hidden_states: torch.Tensor, memory: Memory, call: Call, cache: MemoryCache | None = None, **kwargs
    ) -> MemoryModelOutput:
        """Where nothing learns, a call that is much longer than the window is a loop of calls: read at once, it would
        compare each token with all vectors that the call compresses, of which a token sees few."""
        config, length = self.config, hidden_states.shape[1]
        learns = self.training or torch.is_grad_enabled() or torch.compiler.is_compiling()
        shows = kwargs.get("output_attentions", config.output_attentions)
        if learns or shows or not config.same_length or not is_long(length, config.mem_len):
            return super().read(hidden_states, memory, call, cache, **kwargs)
        parts = CallParts.of(call, length, memory.tokens_read, max(config.mem_len, PIECE_LENGTH))
        return parts.read(super().read, self.forget, hidden_states, memory, cache, **kwargs)

    def lengths_after(self, segment: Segment, count: int) -> torch.Tensor:
        return uncompressed(self.config, segment)

    def recent(self, memory: Memory) -> Memory:
        """Of a longer window nothing is dropped: it is to be compressed."""
        return memory

    def new_memory(self, batch: int, like: torch.Tensor, static: bool = False) -> Memory:
        memory = super().new_memory(batch, like, static)
        return memory.newest([self.config.mem_len] * len(memory.layers))

    def new_state(self, batch: int, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """How many compressed vectors each row has, the same in all layers."""
        has_zeros = self.config.initial_memory == "zeros"
        return (torch.full((batch,), self.config.compressed_mem_len if has_zeros else 0, device=like.device),)

    def output_of_layers(
        self, hidden_states: torch.Tensor, auxiliary_loss: torch.Tensor | None
    ) -> CompressiveTransformerModelOutput:
        return CompressiveTransformerModelOutput(last_hidden_state=hidden_states, compression_loss=auxiliary_loss)


@auto_docstring(
    custom_intro="""
    The Compressive Transformer with a language modeling head. In training mode its loss has the attention-reconstruction
    loss, from which the compression learns; in evaluation it is nats per token alone.
    """
)
class CompressiveTransformerForCausalLM(CompressiveTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = CompressiveTransformerModel
    output_class = CompressiveTransformerHeadOutput


@auto_docstring(custom_intro="The Compressive Transformer with a classification head on the last real token.")
class CompressiveTransformerForSequenceClassification(
    CompressiveTransformerPreTrainedModel, MemoryForSequenceClassification
):
    model_class = CompressiveTransformerModel
    output_class = CompressiveTransformerHeadOutput


@auto_docstring(custom_intro="The Compressive Transformer with a classification head on every token.")
class CompressiveTransformerForTokenClassification(
    CompressiveTransformerPreTrainedModel, MemoryForTokenClassification
):
    model_class = CompressiveTransformerModel
    output_class = CompressiveTransformerHeadOutput


__all__ = [
    "CompressiveTransformerForCausalLM",
    "CompressiveTransformerForSequenceClassification",
    "CompressiveTransformerForTokenClassification",
    "CompressiveTransformerModel",
    "CompressiveTransformerPreTrainedModel",
]
