"""Infini-attention: Munkhdalai et al., 2024, https://arxiv.org/abs/2404.07143, section 2.1."""

from dataclasses import dataclass
from typing import NamedTuple, Self, cast

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from transformers_xl.configuration.configuration_infini_transformer import InfiniTransformerConfig
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.memory.recurrent_memory import SumMemory
from transformers_xl.modeling.memory.window_memory import BlockWindowMemory
from transformers_xl.modeling.ops.blocks import BlockGrid, block_grid
from transformers_xl.modeling.ops.key_mask import KeyMask
from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.window import SegmentPacking, keep_last, reset_state, visible_positions


class InfiniMemory(NamedTuple):
    """The memory of a layer: the inputs of the open block, and of all blocks before it the matrix M `(heads, head_dim,
    value_head_dim)` and the normalizer z `(heads, head_dim)`."""

    inputs: BlockWindowMemory
    matrix: SumMemory
    normalizer: SumMemory

    @classmethod
    def of(cls, config: InfiniTransformerConfig) -> Self:
        """The memory of a layer of this configuration."""
        heads, size = config.num_attention_heads, (config.num_attention_heads, config.head_dim or 0)
        inputs = BlockWindowMemory(config, 0, config.mem_len)
        return cls(inputs, SumMemory((*size, config.value_width // heads)), SumMemory(size))


@dataclass(frozen=True, kw_only=True)
class BlockKeyMask(KeyMask):
    """A causal mask inside each block. `grid`: the blocks of `[open block; segment]`."""

    grid: BlockGrid

    @property
    def device(self) -> torch.device:
        return self.grid.number.device

    @classmethod
    def of(cls, packing: SegmentPacking, before: int, config: InfiniTransformerConfig) -> Self:
        """The mask for a segment behind `before` columns. With "eager", which returns the weights of all pairs, `visible`
        is there for several blocks too."""
        grid, rows, length = block_grid(packing, before, config.mem_len), packing.rows(before), packing.length
        if grid.columns is None:
            visible = visible_positions(rows, length, before + length, None, packing.device)
        elif config._attn_implementation == "eager":
            visible = visible_positions(rows, length, before + length, None, packing.device)
            same = keep_last(grid.number, length)[..., None] == grid.number[:, None]
            visible = same[:, None] if visible is None else visible & same[:, None]
        else:
            visible = None
        return cls(mask=visible, order=rows.order, grid=grid)


# B batch, T segment, K columns of [open block; segment], N columns of a block, H heads, D and V width of keys and values
class InfiniAttention(MemoryAttention):
    """Each head mixes local attention in the block and a read of the matrix M of all earlier blocks, by a learned gate.

        A = sigmoid(beta) A_mem + (1 - sigmoid(beta)) A_dot                                                    (6)
        A_mem = s(Q) M / (s(Q) z)          A_dot = softmax(Q K^T / sqrt(D)) V          s(x) = elu(x) + 1        (3), (2)

    and a complete block is written:

        M <- M + s(K)^T V                            z <- z + sum of s(K)          "linear"                     (4)
        M <- M + s(K)^T (V - s(K) M / (s(K) z))      z <- z + sum of s(K)          "delta"                      (5)

    An empty matrix returns zeros: 0/0 is 0 here, and there is no epsilon.
    """

    def __init__(self, config: InfiniTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.v_proj = nn.Linear(config.hidden_size, config.value_width, bias=config.attention_bias)
        self.o_proj = nn.Linear(config.value_width, config.hidden_size, bias=config.attention_bias)
        self.memory_gate = nn.Parameter(torch.empty(config.num_attention_heads))  # beta

    def init_weights(self, config: InfiniTransformerConfig) -> None:
        init.zeros_(self.memory_gate)

    def forward(
        self,
        hidden_states: torch.Tensor,
        past: torch.Tensor | None,
        memory: BlockWindowMemory,
        segment: SegmentContext,
        sums: tuple[SumMemory, SumMemory],
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The output `(B, T, E)` and the weights; `hidden_states` `(B, T, E)` are the segment, `past` the columns of the
        open block that are not projected yet, both normalised; `sums` M and z."""
        angles, query = cast(torch.Tensor | None, segment.position_embeddings), self.queries(hidden_states)
        before = None if past is None else self.columns(past, angles)
        new_angles = None if angles is None else keep_last(angles, query.shape[-2])
        key, value, written_key = memory.extend(self.columns(hidden_states, new_angles), before)
        key_mask = cast(BlockKeyMask, memory.key_mask)
        local, weights = self.attend_in_blocks(rotate(query, new_angles), key, value, key_mask, segment, **kwargs)
        retrieved = self.read_and_write(positive(query), written_key, value, sums, key_mask.grid)
        gate = self.memory_gate.sigmoid()[:, None]
        mixed = gate * retrieved.to(local.dtype).transpose(1, 2) + (1 - gate) * local
        return self.merge_heads(mixed), weights

    def columns(self, hidden_states: torch.Tensor, angles: torch.Tensor | None) -> Tensors:
        """Keys and values of the attention, and the positive keys s(K) of the matrix, each `(B, H, n, D or V)`."""
        key, value = self.project(hidden_states)
        angles = None if angles is None else angles[:, : key.shape[-2]]
        return rotate(key, angles), value, positive(key)

    def attend_in_blocks(self, query, key, value, key_mask: BlockKeyMask, segment: SegmentContext, **kwargs):
        """A_dot `(B, T, H, V)`, and the weights if all pairs are computed."""
        size, batch = self.config.mem_len, len(query)
        kwargs["token_order"] = segment.token_order
        if key_mask.visible is not None or key_mask.grid.columns is None:
            return self.attend_with_bias(query, key, value, None, key_mask.visible, **kwargs)
        length, causal = query.shape[-2], torch.ones(size, size, dtype=torch.bool, device=query.device).tril()
        query, key, value = (torch.cat(key_mask.grid.cut(each, size)) for each in (query, key, value))
        local, _ = self.attend_with_bias(query, key, value, None, causal[None, None], **kwargs)
        return key_mask.grid.join(local.transpose(1, 2).split(batch), length).transpose(1, 2), None

    def read_and_write(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sums: tuple[SumMemory, SumMemory],
        grid: BlockGrid,
    ) -> torch.Tensor:
        """A_mem `(B, H, T, V)` of positive queries and keys. Every block reads the matrix of the blocks before it."""
        matrix, normalizer = (each.read().to(query.device) for each in sums)
        states = [grid.cut(each.to(matrix.dtype), self.config.mem_len) for each in (query, key, value)]
        retrieved = []
        for block, (block_query, block_key, block_value) in enumerate(zip(*states, strict=True)):
            if grid.is_first is not None:
                matrix, normalizer = (reset_state(each, grid.is_first[:, block]) for each in (matrix, normalizer))
            retrieved.append(retrieve(block_query, matrix, normalizer))
            if grid.is_whole is None:
                continue
            if self.config.memory_update == "delta":
                block_value = block_value - retrieve(block_key, matrix, normalizer)
            is_whole = grid.is_whole[:, block, None, None]
            matrix = torch.where(is_whole[..., None], matrix + block_key.mT @ block_value, matrix)
            normalizer = torch.where(is_whole, normalizer + block_key.sum(-2), normalizer)
        for each, new in zip(sums, (matrix, normalizer), strict=True):
            each.write(new)
        return grid.join(tuple(retrieved), query.shape[-2])


def positive(states: torch.Tensor) -> torch.Tensor:
    """s(x) = elu(x) + 1, which makes the product of a query and a key positive."""
    return F.elu(states) + 1


def retrieve(query: torch.Tensor, matrix: torch.Tensor, normalizer: torch.Tensor) -> torch.Tensor:
    """s(Q) M / (s(Q) z), `(B, H, n, V)`; zeros of an empty matrix."""
    weight = query @ normalizer[..., None]
    return query @ matrix / weight.where(weight > 0, 1)


def rotate(states: torch.Tensor, angles: torch.Tensor | None) -> torch.Tensor:
    """Rotate features m and m + D/2 of `states` `(B, H, n, D)` as a pair: Su et al., 2021, https://arxiv.org/abs/2104.09864.
    `angles` `(B or 1, n, D)` are sines and cosines; None for no positions."""
    if angles is None:
        return states
    sine, cosine = angles[:, None].chunk(2, dim=-1)
    first, second = states.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


__all__ = ["BlockKeyMask", "InfiniAttention", "InfiniMemory"]
