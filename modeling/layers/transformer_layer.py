"""One layer with memory: attention over `[memory; segment]`, then a feed-forward, each with its residual sum and norm."""

from typing import NamedTuple

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.attention import MemoryAttention, RelativeAttention
from transformers_xl.modeling.layers.dropout import Dropout
from transformers_xl.modeling.layers.feed_forward import FeedForward
from transformers_xl.modeling.layers.normalization import SublayerLayerNorm


class LayerOutput(NamedTuple):
    """What a layer returns: a NamedTuple, in which Accelerate and pytree find the tensors.

    `hidden_states` (B, T, E); `new_memory` (B, T, E), what its memory gets of the segment; `states`, those of
    `config.layer_states` after the segment.
    """

    hidden_states: torch.Tensor
    new_memory: torch.Tensor
    states: tuple[torch.Tensor, ...] = ()


class MemoryLayer(GradientCheckpointingLayer):
    """The Transformer-XL layer, pre- or post-norm: what the papers after it change.

    It remembers the stream that its attention read, before the norm. `attention_input`
    makes the attention's input of it, for the segment and for the memory alike.
    """

    attention_class: type[MemoryAttention] = RelativeAttention
    feed_forward_class: type[nn.Module] = FeedForward

    def __init__(self, config: MemoryConfig, layer_idx: int):
        super().__init__()
        self.input_layernorm = SublayerLayerNorm(config)
        self.self_attn = self.attention_class(config, layer_idx)
        self.post_attention_layernorm = SublayerLayerNorm(config)
        self.mlp = self.feed_forward_class(config)
        self.dropout = Dropout(config)

    def attention_input(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.input_layernorm.before(hidden_states)

    def attend(self, hidden_states: torch.Tensor, memory: torch.Tensor | None, **kwargs) -> torch.Tensor:
        memory = None if memory is None else self.attention_input(memory)
        attn_output, _ = self.self_attn(self.attention_input(hidden_states), memory, **kwargs)
        return self.dropout(attn_output)

    def feed_forward(self, hidden_states: torch.Tensor, **kwargs) -> torch.Tensor:
        return self.mlp(hidden_states)

    def forward(self, hidden_states: torch.Tensor, memory: torch.Tensor | None = None, **kwargs) -> LayerOutput:
        attn_output = self.attend(hidden_states, memory, **kwargs)
        return LayerOutput(self.after_attention(hidden_states, attn_output, **kwargs), hidden_states)

    def after_attention(self, hidden_states: torch.Tensor, attn_output: torch.Tensor, **kwargs) -> torch.Tensor:
        """The residual sums and the feed-forward."""
        hidden_states = self.input_layernorm.after(hidden_states + attn_output)
        mlp_output = self.feed_forward(self.post_attention_layernorm.before(hidden_states), **kwargs)
        return self.post_attention_layernorm.after(hidden_states + mlp_output)
