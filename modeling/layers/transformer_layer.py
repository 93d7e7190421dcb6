"""One layer with memory: attention over `[memory; segment]`, then a feed-forward, each with its residual sum and norm.

Norms: Xiong et al., 2020, https://arxiv.org/abs/2002.04745, figure 1. Variational dropout: Gal & Ghahramani, 2016,
https://arxiv.org/abs/1512.05287 ("locked" in Merity et al., 2017). Feed-forward: Vaswani et al., 2017,
https://arxiv.org/abs/1706.03762, section 3.3.
"""

from typing import NamedTuple

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.activations import activation
from transformers_xl.modeling.layers.attention import MemoryAttention, RelativeAttention
from transformers_xl.modeling.memory.memory_cache import Tensors
from transformers_xl.modeling.memory.memory_value import LayerMemory
from transformers_xl.modeling.memory.segment import LayerContext


class SublayerNorm(nn.Module):
    """The norm of one sub-layer f, with the residual sum around it.

        pre-norm:   x + f(norm(x))      post-norm:   norm(x + f(x))

    Written `norm.after(x + f(norm.before(x)))`, where one of the two does nothing.
    """

    def __init__(self, config: MemoryConfig, size: int | None = None):
        super().__init__(config.hidden_size if size is None else size, eps=config.layer_norm_eps)
        self.norm_position = config.norm_position

    def before(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self(hidden_states) if self.norm_position == "pre" else hidden_states

    def after(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self(hidden_states) if self.norm_position == "post" else hidden_states


class SublayerLayerNorm(SublayerNorm, nn.LayerNorm):
    """That of most models."""


class SublayerRMSNorm(SublayerNorm, nn.RMSNorm):
    """Without mean and bias: Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467."""


class Dropout(nn.Dropout):
    """`nn.Dropout` that returns its input at once outside of training: a generated token passes about three per layer.

    With `config.variational_dropout` a row drops the same features at all positions of a segment, and others in the next
    one. Not the same over segments: gradients end where a segment begins, so that one mask is shared by all that one
    gradient sees, as for the truncated gradients of recurrent networks; and a mask that outlives its segment would have to
    be remembered with `mems`, reset with its row and saved with the training. States without positions have a mask of their
    own.

    Args:
        p: the probability; `config.dropout` when not given.
    """

    def __init__(self, config: MemoryConfig, p: float | None = None):
        super().__init__(config.dropout if p is None else p)
        self.is_variational = config.variational_dropout

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """`states` `(batch, length, features)`, or `(batch, features)`."""
        if not self.training or self.p == 0:
            return states
        if not self.is_variational or states.dim() < 3:
            return super().forward(states)
        return states * super().forward(torch.ones_like(states[:, :1]))


class FeedForward(nn.Module):
    """`fc2(act(fc1(x)))`, with dropout after the activation and on the output."""

    def __init__(self, config: MemoryConfig):
        super().__init__()
        self.fc1: nn.Module = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2: nn.Module = nn.Linear(config.intermediate_size, config.hidden_size)
        self.act_fn = activation(config.hidden_act)
        self.dropout = Dropout(config)
        self.output_dropout = Dropout(config, config.residual_dropout)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        inner = self.dropout(self.act_fn(self.fc1(hidden_states)))
        return self.output_dropout(self.fc2(inner))


class LayerOutput(NamedTuple):
    """What a layer returns: the states `(B, T, E)` after it, what it remembers, and what training minimises beside the loss
    of the head (None where there is nothing)."""

    hidden_states: torch.Tensor
    memory: LayerMemory
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
        self.cross_attention: nn.Module | None = None  # placed by an encoder-decoder

    def new_memory(self, batch: int, num_columns: int, like: torch.Tensor) -> LayerMemory:
        """What the layer remembers of new rows, with `num_columns` zeros in its window."""
        return LayerMemory((like.new_zeros(batch, num_columns, self.self_attn.config.hidden_size),))

    def attention_input(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What the attention reads of inputs `(B, n, E)`, of the segment or of the memory."""
        return self.input_layernorm.before(hidden_states)

    def project(self, hidden_states: torch.Tensor) -> Tensors:
        """Keys and values of inputs `(B, n, E)`, each `(B, H, n, D)`."""
        return self.self_attn.project(self.attention_input(hidden_states))

    def attend(
        self, hidden_states: torch.Tensor, past: Tensors, context: LayerContext, **kwargs
    ) -> tuple[torch.Tensor, Tensors]:
        """What the segment `(B, T, E)` attends to in `[past; segment]`, after dropout, `(B, T, E)`; and the columns that
        the layer remembers."""
        normed = self.attention_input(hidden_states)
        columns, kept = context.extend(past, hidden_states, self.self_attn.project(normed), self.project)
        attn_output, _ = self.self_attn(normed, *columns, context, **kwargs)
        return self.dropout(attn_output), kept

    def feed_forward(self, hidden_states: torch.Tensor, context: LayerContext, **kwargs) -> torch.Tensor:
        """The second sub-layer, of states `(B, T, E)` or `(N, E)`."""
        return self.mlp(hidden_states)

    def forward(self, hidden_states: torch.Tensor, past: LayerMemory, context: LayerContext, **kwargs) -> LayerOutput:
        """
        Args:
            hidden_states: the segment `(B, T, E)`.
            past: what the layer remembers.
            context: where the tokens stand, what they see, positions.
        """
        attn_output, kept = self.attend(hidden_states, past.columns, context, **kwargs)
        hidden_states = self.after_attention(hidden_states, attn_output, context, **kwargs)
        return LayerOutput(hidden_states, past._replace(columns=kept))

    def read_source(self, hidden_states: torch.Tensor, context: LayerContext) -> torch.Tensor:
        """The states `(B, T, E)` with what the decoder of an encoder-decoder reads of the other text."""
        return hidden_states if self.cross_attention is None else self.cross_attention(hidden_states, context.source)

    def after_attention(
        self, hidden_states: torch.Tensor, attn_output: torch.Tensor, context: LayerContext, **kwargs
    ) -> torch.Tensor:
        """The residual sums, what is read of another text, and the feed-forward, of `(B, T, E)` or `(N, E)`."""
        hidden_states = self.read_source(self.input_layernorm.after(hidden_states + attn_output), context)
        mlp_output = self.feed_forward(self.post_attention_layernorm.before(hidden_states), context, **kwargs)
        return self.post_attention_layernorm.after(hidden_states + mlp_output)


__all__ = [
    "Dropout",
    "FeedForward",
    "LayerOutput",
    "MemoryLayer",
    "SublayerLayerNorm",
    "SublayerNorm",
    "SublayerRMSNorm",
]
