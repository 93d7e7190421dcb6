"""Attention to the nearest of very many remembered keys: Wu et al., 2022, https://arxiv.org/abs/2203.08913, section 3.2."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from transformers_xl.configuration.configuration_memorizing_transformer import MemorizingTransformerConfig
from transformers_xl.modeling.layers.local_attention import LocalAttention
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.memory.retrieval_memory import Lookups, RetrievalMemory
from transformers_xl.modeling.memory.window_memory import WindowMemory
from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.window import gather_columns, keep_last


class MemorizingMemory(NamedTuple):
    """The memory of a layer that remembers keys: the inputs of its window, and keys and values of very many tokens."""

    inputs: WindowMemory
    external_memory: RetrievalMemory


@dataclass(frozen=True, kw_only=True)
class LookupContext(SegmentContext):
    """What the layers know about a segment: also what it looks up."""

    lookups: Lookups


# B batch, T segment, n tokens of a block, k retrieved keys, H heads, D head dim, S slots
class RetrievalAttention(LocalAttention):
    """Each head mixes local attention and attention to the k remembered keys nearest to the query, by a learned gate.

        V_a = g V_m + (1 - g) V_c        g = sigmoid(memory_gate)
        V_c: local attention
        V_m = softmax(|s| q K_m^T) V_m'  over the k largest products, with s and unit q, K_m as in the local attention

    Where nothing is remembered, V_m is zero. No gradient reaches what is remembered.
    """

    def __init__(self, config: MemorizingTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.num_retrieved = config.num_retrieved
        self.attend_to_empty = config.attend_to_empty
        self.memory_gate = nn.Parameter(torch.empty(config.num_attention_heads))

    def init_weights(self, config: MemorizingTransformerConfig) -> None:
        init.zeros_(self.memory_gate)

    def attend(self, query, key, value, memory, segment, external_memory=None, **kwargs):
        """`external_memory` ([`RetrievalMemory`]): what is looked up, and takes the segment's keys and values in."""
        local, weights = super().attend(query, key, value, memory, segment, **kwargs)
        new = tuple(keep_last(each, query.shape[2], dim=2) for each in (key, value))
        retrieved = self.look_up(query, new, external_memory, segment.lookups)
        gate = self.memory_gate.sigmoid().to(local.dtype)[:, None]
        return gate * retrieved + (1 - gate) * local, weights

    def look_up(
        self, query: torch.Tensor, new: Tensors, external_memory: RetrievalMemory, lookups: Lookups
    ) -> torch.Tensor:
        """V_m `(B, T, H, D)`. The keys of each block are remembered before the next one is looked up."""
        (keys, values), found = external_memory.open(lookups, query), []
        for block in lookups.blocks:
            block_query, *block_new = (gather_columns(each, block.part.order, dim=2) for each in (query, *new))
            if block.width == 0:
                found.append(torch.zeros_like(block_query).transpose(1, 2))
            else:
                slots, is_found = external_memory.find(block_query, keys, block, self.num_retrieved)
                found.append(self.attend_to_retrieved(block_query, keys, values, slots, is_found))
            external_memory.write(tuple(block_new), block)
        return lookups.parts.join(found)

    def attend_to_retrieved(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, found: torch.Tensor
    ) -> torch.Tensor:
        """V_m `(B, n, H, D)` of the keys in `slots` `(B, H, n, k)`, where there is one (`found`)."""
        key, value = (
            each.take_along_dim(slots.flatten(2)[..., None], dim=2).unflatten(2, slots.shape[2:])
            for each in (keys, values)
        )
        scores = (key @ query[..., None])[..., 0]
        empty = 0.0 if self.attend_to_empty else torch.finfo(scores.dtype).min
        weights = scores.masked_fill(~found, empty).softmax(-1).masked_fill(~found, 0.0)
        weights = F.dropout(weights, self.attention_dropout, self.training)
        return (weights[..., None, :] @ value)[..., 0, :].transpose(1, 2)


__all__ = ["LookupContext", "MemorizingMemory", "RetrievalAttention"]
