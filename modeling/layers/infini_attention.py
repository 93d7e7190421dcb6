"""Infini-attention: Munkhdalai et al., 2024, https://arxiv.org/abs/2404.07143, section 2.1."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from transformers_xl.configuration.configuration_infini_transformer import InfiniTransformerConfig
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.memory.memory_cache import Tensors
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.ops.block_grid import BlockGrid


class InfiniPlan(NamedTuple):
    """What all layers do in a call: the blocks, and sines and cosines of the places in them, `(B or 1, K, D)`, None without
    positions."""

    blocks: BlockGrid
    angles: torch.Tensor | None


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
        key: torch.Tensor,
        value: torch.Tensor,
        context: LayerContext,
        written_key: torch.Tensor,
        sums: Tensors,
        angles: torch.Tensor | None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None, Tensors]:
        """The output `(B, T, E)`, the weights, and M and z after the call.

        Args:
            hidden_states: the segment `(B, T, E)`, normalised where the model is pre-norm.
            key, value, written_key: those of `[open block; segment]`, each `(B, H, K, D or V)`, as `columns` makes them.
            context: what the tokens see; its `plan` is an [`InfiniPlan`].
            sums: M and z before the call.
            angles: those of the segment.
        """
        query, blocks = self.queries(hidden_states), context.plan.blocks
        local, weights = self.attend_in_blocks(rotate(query, angles), key, value, blocks, context, **kwargs)
        retrieved, sums = self.read_and_write(positive(query), written_key, value, sums, blocks)
        gate = self.memory_gate.sigmoid()[:, None]
        mixed = gate * retrieved.to(local.dtype).transpose(1, 2) + (1 - gate) * local
        return self.merge_heads(mixed), weights, sums

    def columns(self, hidden_states: torch.Tensor, angles: torch.Tensor | None) -> Tensors:
        """Keys and values of the attention, and the positive keys s(K) of the matrix, each `(B, H, n, D or V)`."""
        key, value = self.project(hidden_states)
        return rotate(key, angles), value, positive(key)

    def attend_in_blocks(self, query, key, value, blocks: BlockGrid, context: LayerContext, **kwargs):
        """A_dot `(B, T, H, V)`, and the weights if all pairs are computed: with "eager", which returns them."""
        if blocks.begin is None or self.config._attn_implementation == "eager":
            return self.attend_with_bias(query, key, value, None, context.visible, **kwargs)
        causal = torch.ones(blocks.size, blocks.size, dtype=torch.bool, device=query.device).tril()[None, None]
        batch = len(query)
        query, key, value = (torch.cat(blocks.cut(each)) for each in (query, key, value))
        local, _ = self.attend_with_bias(query, key, value, None, causal, **kwargs)
        return blocks.join(local.transpose(1, 2).split(batch)).transpose(1, 2), None

    def read_and_write(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sums: Tensors, blocks: BlockGrid
    ) -> tuple[torch.Tensor, Tensors]:
        """A_mem `(B, H, T, V)` of positive queries and keys, and M and z after the call. Every block reads those of the
        blocks before it."""
        matrix, normalizer = sums[0], sums[1].to(sums[0])
        states = [blocks.cut(each.to(matrix.dtype)) for each in (query, key, value)]
        retrieved = []
        for block, (block_query, block_key, block_value) in enumerate(zip(*states, strict=True)):
            if blocks.is_first is not None:
                is_first = blocks.is_first[:, block, None, None]
                normalizer = normalizer.masked_fill(is_first, 0)
                matrix = matrix.masked_fill(is_first[..., None], 0)
            retrieved.append(retrieve(block_query, matrix, normalizer))
            if blocks.is_whole is None:
                continue
            if self.config.memory_update == "delta":
                block_value = block_value - retrieve(block_key, matrix, normalizer)
            is_whole = blocks.is_whole[:, block, None, None]
            matrix = torch.where(is_whole[..., None], matrix + block_key.mT @ block_value, matrix)
            normalizer = torch.where(is_whole, normalizer + block_key.sum(-2), normalizer)
        return retrieved[0] if blocks.begin is None else blocks.join(tuple(retrieved)), (matrix, normalizer)


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


__all__ = ["InfiniAttention", "InfiniPlan"]
