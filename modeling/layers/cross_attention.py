"""Attention of a decoder to another text: Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.2.3."""

from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.transformer_layer import Dropout, SublayerNorm
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.ops.columns import gather_columns, keep_last
from transformers_xl.modeling.ops.relative_attention import eager_attention_forward


# B batch, T segment, S source, E hidden size of the decoder, H heads, D head dim
class Source:
    """What a decoder reads of another text, the same for all of its layers and tokens.

    Args:
        states: `(B, S, size)`, the output of an encoder; those of earlier sentences stand before those of this one.
        mask: `(B, S)` bool, what is no padding; None: all.
        earlier: how many columns are of earlier sentences.
        keeps: whether keys and values are kept by the layers that project them, for the tokens to come.
    """

    weights: list[torch.Tensor] | None = None  # of each layer `(B, H, T, S)`, where a call asks for them

    def __init__(self, states: torch.Tensor, mask: torch.Tensor | None, keeps: bool = False, earlier: int = 0):
        self.states, self.earlier = states, earlier
        self.visible = None if mask is None else mask[:, None, None]  # (B, 1, 1, S)
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = {} if keeps else None
        self.made_of: tuple[Any, ...] = ()  # what a call gave, to be recognized in the next one
        self.earlier_mems: Memory | None = None  # what is seen of earlier texts
        self.remembered: Memory | None = None  # what the next text may still see

    def mean(self) -> torch.Tensor:
        """Of this text's states, without earlier ones and padding, `(B, 1, size)`."""
        states = self.states[:, self.earlier :]
        if self.visible is None:
            return states.mean(1, keepdim=True)
        mask = self.visible[:, 0, 0, self.earlier :, None].to(states)
        return (states * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


class CrossAttention(nn.Module):
    """A sub-layer with its own norm and residual sum: `x + o_proj(softmax(q k / sqrt(d)) v)`, where keys and values are
    projected of the source, once for each text. No positions: the source has its own.

    Args:
        config: of the decoder.
        source_size: width of the source.
        norm: that of this sub-layer, of the kind that the decoder's others have.
        index: the number of the layer.
        reads_earlier: whether it may see earlier sentences, whose scores get a bias for each head.
    """

    def __init__(
        self, config: MemoryConfig, source_size: int, norm: SublayerNorm, index: int, reads_earlier: bool = False
    ):
        super().__init__()
        self.earlier_bias = nn.Parameter(torch.empty(config.num_attention_heads)) if reads_earlier else None
        self.config, self.index, self.norm = config, index, norm
        self.num_heads, self.scaling = config.num_attention_heads, config.head_dim**-0.5
        self.num_key_value_groups, self.is_causal = 1, False
        inner_size = config.num_attention_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, inner_size, bias=config.attention_bias)
        self.k_proj = nn.Linear(source_size, inner_size, bias=config.attention_bias)
        self.v_proj = nn.Linear(source_size, inner_size, bias=config.attention_bias)
        self.o_proj = nn.Linear(inner_size, config.hidden_size, bias=config.attention_bias)
        self.dropout = Dropout(config, config.residual_dropout)

    def init_weights(self, config: Any) -> None:
        # low: a model that reads earlier sentences from its first step on takes longer to find what it translates
        if self.earlier_bias is not None:
            init.constant_(self.earlier_bias, -5.0)

    def mask(self, source: Source) -> torch.Tensor | None:
        """Which columns are visible, `(B, 1, 1, S)` bool, or what is added to their scores, `(B or 1, H, 1, S)`."""
        states, visible = source.states, source.visible
        if self.earlier_bias is None or not source.earlier:
            return visible
        is_earlier = torch.arange(states.shape[1], device=states.device) < source.earlier
        added = (self.earlier_bias[:, None, None].to(states) * is_earlier)[None]
        return added if visible is None else added.masked_fill(~visible, -torch.inf)

    def heads(self, states: torch.Tensor) -> torch.Tensor:
        """`(B, n, H D)` -> `(B, H, n, D)`."""
        return states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def project(self, source: Source) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the source, each `(B, H, S, D)`."""
        if source.kept is not None and self.index in source.kept:
            return source.kept[self.index]
        made = self.heads(self.k_proj(source.states)), self.heads(self.v_proj(source.states))
        if source.kept is not None:
            source.kept[self.index] = made
        return made

    def forward(self, hidden_states: torch.Tensor, source: Source) -> torch.Tensor:
        """The states `(B, T, E)` with what they read of the source."""
        key, value = self.project(source)
        mask = self.mask(source)
        mask = None if mask is None else mask.expand(-1, -1, hidden_states.shape[1], -1)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        query = self.heads(self.q_proj(self.norm.before(hidden_states)))
        dropout = self.config.attention_dropout if self.training else 0.0
        attended, weights = attend(
            self, query, key, value, mask, dropout=dropout, scaling=self.scaling, is_causal=False
        )
        if source.weights is not None and weights is not None:
            source.weights.append(weights)
        return self.norm.after(hidden_states + self.dropout(self.o_proj(attended.flatten(-2))))


def earlier_mask(memory: Memory) -> torch.Tensor:
    """Which columns of a memory are real, `(B, C)` bool: the newest."""
    columns = torch.arange(memory.num_columns, device=memory.lengths.device)
    return columns >= memory.num_columns - memory.lengths[:, None]


def remember_source(memory: Memory | None, states: torch.Tensor, mask: torch.Tensor | None, count: int) -> Memory:
    """The newest `count` real columns of `[memory; states]`, of every row at its right, without a gradient.

    Args:
        memory: the outputs of the encoder for earlier sentences; None: there were none.
        states: those of this one, `(B, S, size)`.
        mask: `(B, S)` bool, what is no padding; None: all.
    """
    states = states.detach()
    mask = torch.ones_like(states[..., 0], dtype=torch.bool) if mask is None else mask
    read = mask.sum(1)
    if memory is not None:
        states = torch.cat([memory.layers[0].columns[0].to(states), states], 1)
        mask, read = torch.cat([earlier_mask(memory), mask], 1), memory.tokens_read + read
    order = mask.long().argsort(dim=1, stable=True)  # padding to the left
    newest = keep_last(gather_columns(states, order), count)
    return Memory((LayerMemory((newest,)),), mask.sum(1).clamp(max=newest.shape[1]), read)


__all__ = ["CrossAttention", "Source", "earlier_mask", "remember_source"]
