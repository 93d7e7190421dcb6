"""Attention with learned relative positions: Shaw et al., 2018, https://arxiv.org/abs/1803.02155, section 3."""

from collections.abc import Callable

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_shaw_transformer import ShawTransformerConfig
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.ops.relative_attention import attention_weights


# B batch, T segment length, K = memory + T, H heads, D key width, V value width, N = 2k + 1 clipped distances
class ShawAttention(MemoryAttention):
    """Keys and values that depend on where they are seen from.

        score[i, j] = q_i . (k_j + a_K[j-i]) / sqrt(d)        z_i = sum_j weight[i, j] (v_j + a_V[j-i])

    with j-i clipped to -k..k. Neither sum is written out: `q . a_K` is one product with the table, of which every key picks
    its distance; the weights are summed by distance before they meet `a_V`. No tensor has both keys and widths.

    With a table of values the weights themselves are needed, and the attention is computed in plain steps whatever
    `attn_implementation` says.
    """

    def __init__(self, config: ShawTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        heads, value_dim = config.num_attention_heads, config.value_head_dim or config.head_dim
        if value_dim != config.head_dim:
            self.v_proj = nn.Linear(config.hidden_size, heads * value_dim, bias=config.attention_bias)
            self.o_proj = nn.Linear(heads * value_dim, config.hidden_size, bias=config.attention_bias)
        self.max_distance = config.max_relative_distance
        rows = (heads if config.tables_per_head else 1, 2 * self.max_distance + 1)
        self.key_table = nn.Parameter(torch.empty(*rows, config.head_dim)) if config.use_key_table else None
        self.value_table = nn.Parameter(torch.empty(*rows, value_dim)) if config.use_value_table else None

    def init_weights(self, config: ShawTransformerConfig) -> None:
        for table in (self.key_table, self.value_table):
            if table is not None:
                init.normal_(table, mean=0.0, std=config.initializer_range)

    def distances(self, length: int, num_keys: int, device: torch.device) -> torch.Tensor:
        """Row of the tables for each of the last `length` positions as query and each key, `(T, K)`, for all rows."""
        columns = torch.arange(num_keys, device=device)
        distance = columns - columns[num_keys - length :, None]
        return distance.clamp(-self.max_distance, self.max_distance) + self.max_distance

    def score_terms(
        self, query: torch.Tensor, num_keys: int, context: LayerContext
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.key_table is None:
            return query, None
        by_distance = query * self.scaling @ self.key_table.transpose(-1, -2)  # [B, H, T, N]
        index = self.distances(query.shape[2], num_keys, query.device).expand(*query.shape[:3], num_keys)
        return query, by_distance.gather(-1, index)

    def attention_function(self) -> Callable:
        return super().attention_function() if self.value_table is None else self.attend_with_positions

    def attend_with_positions(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float,
        dropout: float = 0.0,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.value_table is not None, "without it the attention is an ordinary one"
        weights = attention_weights(query, key, attention_mask, scaling)
        attended = nn.functional.dropout(weights, p=dropout, training=self.training)
        index = self.distances(weights.shape[2], weights.shape[3], weights.device).expand_as(weights)
        by_distance = weights.new_zeros(*weights.shape[:3], self.value_table.shape[1])
        by_distance = by_distance.scatter_add(-1, index, attended)  # [B, H, T, N]
        attn_output = attended @ value + by_distance @ self.value_table
        return attn_output.transpose(1, 2), weights
