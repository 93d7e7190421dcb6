"""One layer with memory: attention over `[memory; segment]`, then a feed-forward, each with its residual sum and norm."""

from typing import NamedTuple

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.attention import MemoryAttention, RelativeAttention
from transformers_xl.modeling.layers.dropout import Dropout
from transformers_xl.modeling.layers.feed_forward import FeedForward
from transformers_xl.modeling.layers.normalization import SublayerLayerNorm, SublayerNorm
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.memory.column_memory import ColumnMemory
from transformers_xl.modeling.memory.layer_memory import LayerMemory
from transformers_xl.modeling.memory.window_memory import AttentionMemory, HasWindow, WindowMemory


class LayerOutput(NamedTuple):
    """What a layer returns: a NamedTuple, in which Accelerate and pytree find the tensors.

    `hidden_states` (B, T, E); `auxiliary_loss`, what training minimises beside the loss of the head, None where there is
    nothing.
    """

    hidden_states: torch.Tensor
    auxiliary_loss: torch.Tensor | None = None


class MemoryLayer(GradientCheckpointingLayer):
    """The Transformer-XL layer, pre- or post-norm: what the papers after it change.

    It remembers the stream that its attention read, before the norm. `attention_input` makes the attention's input of it,
    for the segment and for the memory alike.
    """

    attention_class: type[MemoryAttention] = RelativeAttention
    feed_forward_class: type[nn.Module] = FeedForward
    norm_class: type[SublayerNorm] = SublayerLayerNorm

    def __init__(self, config: MemoryConfig, layer_idx: int):
        super().__init__()
        self.input_layernorm = self.norm_class(config)
        self.self_attn = self.attention_class(config, layer_idx)
        self.post_attention_layernorm = self.norm_class(config)
        self.mlp = self.feed_forward_class(config)
        self.dropout = Dropout(config, config.residual_dropout)

    def attention_input(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What the attention reads of inputs `(B, n, E)`, of the segment or of the memory."""
        return self.input_layernorm.before(hidden_states)

    def memories(self) -> LayerMemory:
        """What the layer remembers, a NamedTuple of new memories."""
        return AttentionMemory(WindowMemory.of(self.self_attn.config, self.self_attn.layer_idx))

    def attention_inputs(
        self, hidden_states: torch.Tensor, memory: ColumnMemory
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The inputs of the attention: the segment `(B, T, E)`, and the columns `(B, M, E)` of the memory that are not
        projected yet, None where there are none. The memory takes the segment in."""
        past = memory.unprojected()
        past = None if past is None else self.attention_input(past)
        memory.write(hidden_states)
        return self.attention_input(hidden_states), past

    def attend(
        self, hidden_states: torch.Tensor, memory: ColumnMemory, segment: SegmentContext, **kwargs
    ) -> torch.Tensor:
        """What the segment `(B, T, E)` attends to in `[memory; segment]`, after dropout: `(B, T, E)`."""
        normed, past = self.attention_inputs(hidden_states, memory)
        attn_output, _ = self.self_attn(normed, past, memory, segment, **kwargs)
        return self.dropout(attn_output)

    def feed_forward(self, hidden_states: torch.Tensor, segment: SegmentContext, **kwargs) -> torch.Tensor:
        """The second sub-layer, of states `(B, T, E)` or `(N, E)`."""
        return self.mlp(hidden_states)

    def forward(
        self, hidden_states: torch.Tensor, memory: HasWindow, segment: SegmentContext, **kwargs
    ) -> LayerOutput:
        """
        Args:
            hidden_states: the segment `(B, T, E)`.
            memory: what `memories()` declares; it takes the segment in.
            segment: padding, documents and positions.
        """
        attn_output = self.attend(hidden_states, memory.inputs, segment, **kwargs)
        return LayerOutput(self.after_attention(hidden_states, attn_output, segment, **kwargs))

    def after_attention(
        self, hidden_states: torch.Tensor, attn_output: torch.Tensor, segment: SegmentContext, **kwargs
    ) -> torch.Tensor:
        """The residual sums and the feed-forward, of `(B, T, E)` or `(N, E)`."""
        hidden_states = self.input_layernorm.after(hidden_states + attn_output)
        mlp_output = self.feed_forward(self.post_attention_layernorm.before(hidden_states), segment, **kwargs)
        return self.post_attention_layernorm.after(hidden_states + mlp_output)
