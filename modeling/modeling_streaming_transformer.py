"""The Streaming Transformer: this package's own model, of no paper. Sources: model_cards/streaming_transformer.md.

A Transformer with a window for memory, and a few cheap parts that earned their place in an ablation: convolutions over the
last tokens before each sub-layer, embeddings of n-grams, a gated feed-forward, norms of queries and keys, rotary positions.
"""

from typing import NamedTuple

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_streaming_transformer import StreamingTransformerConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.gated_feed_forward import GatedFeedForward
from transformers_xl.modeling.layers.ngram_embedding import NgramEmbedding
from transformers_xl.modeling.layers.rotary_attention import RotaryAttention
from transformers_xl.modeling.layers.rotary_positions import Rotation
from transformers_xl.modeling.layers.short_convolution import ShortConvolution
from transformers_xl.modeling.layers.transformer_layer import Dropout, LayerOutput
from transformers_xl.modeling.memory.memory_cache import Tensors
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.memory.segment import LayerContext, Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.outputs import MemoryModelOutput


class StreamingPlan(NamedTuple):
    """What the layers are told of a call: how its tokens turn, and the n-grams that end with them, `(B, T, G)` (None: they
    have no ids)."""

    rotation: Rotation
    ngrams: torch.Tensor | None


class StreamingTransformerLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each on a convolution of the norm of its input.

        x = x + attention(conv(norm(x)), memory)        x = x + feed_forward(conv'(norm'(x)))

    It remembers keys, turned by the places of their tokens, and values: no gradient reaches the past, and each token is
    projected once. Norms of sub-layers have no biases.
    """

    def __init__(self, config: StreamingTransformerConfig, layer_idx: int):
        super().__init__()
        # not RMSNorm, which has no kernel for CPUs: a token would take longer
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=False)
        self.attn_conv = ShortConvolution(config.hidden_size, config.conv_kernel_size)
        self.self_attn = RotaryAttention(config, layer_idx)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=False)
        self.mlp_conv = ShortConvolution(config.hidden_size, config.conv_kernel_size)
        self.mlp = GatedFeedForward(config)
        self.dropout = Dropout(config, config.residual_dropout)
        self.cross_attention: nn.Module | None = None  # placed by an encoder-decoder

    def new_memory(self, batch: int, num_columns: int, like: torch.Tensor) -> LayerMemory:
        """`state` is the last inputs of both convolutions, each `(batch, conv_kernel_size - 1, hidden_size)`."""
        shape = batch, self.self_attn.num_heads, num_columns, self.self_attn.head_dim
        tails = self.attn_conv.new_tail(batch, like), self.mlp_conv.new_tail(batch, like)
        return LayerMemory((like.new_zeros(shape), like.new_zeros(shape)), tails)

    def forward(self, hidden_states: torch.Tensor, past: LayerMemory, context: LayerContext, **kwargs) -> LayerOutput:
        attn_tail, mlp_tail = past.state
        normed = self.input_layernorm(hidden_states)
        inputs, attn_tail = self.attn_conv(normed, attn_tail, context.segment)
        attn_output, kept = self.self_attn.attend_to_past(
            inputs, past.columns, context.plan.rotation, context, **kwargs
        )
        hidden_states = hidden_states + self.dropout(attn_output)
        if self.cross_attention is not None:
            hidden_states = self.cross_attention(hidden_states, context.source)
        normed = self.post_attention_layernorm(hidden_states)
        inputs, mlp_tail = self.mlp_conv(normed, mlp_tail, context.segment)
        return LayerOutput(hidden_states + self.mlp(inputs), LayerMemory(kept, (attn_tail, mlp_tail)))


@auto_docstring(custom_intro="Base class for the Streaming Transformer: initialization and loading.")
class StreamingTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: StreamingTransformerConfig
    _no_split_modules = ["StreamingTransformerLayer"]
    _is_stateful = True


@auto_docstring(
    custom_intro="""
    The Streaming Transformer without a head. Tokens that are given as `inputs_embeds` have no ids: no n-gram holds
    them, and those of later tokens begin after them.
    """
)
class StreamingTransformerModel(StreamingTransformerPreTrainedModel, MemoryModel):
    layer_class = StreamingTransformerLayer
    positions_class = None

    def build(self, config: StreamingTransformerConfig) -> None:
        super().build(config)
        self.ngrams = NgramEmbedding(config) if config.ngram_orders else None

    def new_state(self, batch: int, like: torch.Tensor) -> Tensors:
        """`id + 1` of the last tokens of each row, `(batch, longest n-gram - 1)` integers; 0: none."""
        if self.ngrams is None:
            return ()
        return (torch.zeros(batch, self.ngrams.num_before, dtype=torch.long, device=like.device),)

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, StreamingPlan, Tensors]:
        rotation = Rotation.of(segment.places, self.config.head_dim, self.config.rotary_base, self.dtype)
        if self.ngrams is None:
            return segment, StreamingPlan(rotation, None), ()
        (last,) = memory.state
        ngrams, last = self.ngrams.find(segment.input_ids, last, segment)
        return segment, StreamingPlan(rotation, ngrams), (last,)

    def run_layers(
        self, hidden_states: torch.Tensor, memory: tuple[LayerMemory, ...], contexts: list[LayerContext], **kwargs
    ) -> tuple[MemoryModelOutput, list[LayerMemory]]:
        ngrams = contexts[0].plan.ngrams
        if self.ngrams is not None and ngrams is not None:
            hidden_states = hidden_states + self.dropout(self.ngrams(ngrams))
        return super().run_layers(hidden_states, memory, contexts, **kwargs)


@auto_docstring(custom_intro="The Streaming Transformer with a language modeling head.")
class StreamingTransformerForCausalLM(StreamingTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = StreamingTransformerModel


@auto_docstring(custom_intro="The Streaming Transformer with a classification head on the last real token.")
class StreamingTransformerForSequenceClassification(
    StreamingTransformerPreTrainedModel, MemoryForSequenceClassification
):
    model_class = StreamingTransformerModel


@auto_docstring(custom_intro="The Streaming Transformer with a classification head on every token.")
class StreamingTransformerForTokenClassification(StreamingTransformerPreTrainedModel, MemoryForTokenClassification):
    model_class = StreamingTransformerModel


__all__ = [
    "StreamingTransformerForCausalLM",
    "StreamingTransformerForSequenceClassification",
    "StreamingTransformerForTokenClassification",
    "StreamingTransformerModel",
    "StreamingTransformerPreTrainedModel",
]
