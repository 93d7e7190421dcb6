"""Multi-head attention over `[memory; segment]`, and Transformer-XL's relative form of it."""

from collections.abc import Callable
from typing import NamedTuple, TypeGuard

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig
from transformers_xl.modeling.layers.positions import Biases, RelativeBias
from transformers_xl.modeling.layers.segment_context import PLAIN_SEGMENT, SegmentContext
from transformers_xl.modeling.memory.column_memory import ColumnMemory
from transformers_xl.modeling.ops.backends import relative_backend
from transformers_xl.modeling.ops.key_mask import FarColumns, KeyMask
from transformers_xl.modeling.ops.relative_attention import (
    eager_attention_forward,
    position_scores,
    position_scores_at,
)
from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.window import keep_last


class KeptProjection(NamedTuple):
    """Projected positions, and what they were made of."""

    weight: torch.Tensor
    table: torch.Tensor
    positions: torch.Tensor

    def holds(self, weight: torch.Tensor, table: torch.Tensor) -> bool:
        """Whether projecting again would give the same. Numbers are compared: no counter sees writes through `.data`."""
        return table is self.table and weight.dtype == self.weight.dtype and torch.equal(weight, self.weight)


# B batch, T segment length, M memory length, K = M + T, H heads, D head dim, E hidden size
class MemoryAttention(nn.Module):
    """Attention of a segment's queries to the keys and values of `[memory; segment]`, without positions.

    A variant with positions overrides `score_terms`; one that needs the weights themselves, `attention_function`; one
    with a faster way of its own, `attend`.
    """

    def __init__(self, config: MemoryConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.scaling = config.head_dim**-0.5
        self.num_heads = config.num_attention_heads
        self.attention_dropout = config.attention_dropout
        self.is_causal = True
        inner_size = config.num_attention_heads * config.head_dim
        self.q_proj: nn.Module = nn.Linear(config.hidden_size, inner_size, bias=config.attention_bias)
        self.k_proj: nn.Module = nn.Linear(config.hidden_size, inner_size, bias=config.attention_bias)
        self.v_proj: nn.Module = nn.Linear(config.hidden_size, inner_size, bias=config.attention_bias)
        self.o_proj: nn.Module = nn.Linear(inner_size, config.hidden_size, bias=config.attention_bias)

    def split_heads(self, states: torch.Tensor) -> torch.Tensor:
        """`(..., length, heads x head_dim)` -> `(..., heads, length, head_dim)`."""
        width = states.shape[-1] // self.num_heads
        return states.reshape(*states.shape[:-1], self.num_heads, width).transpose(-3, -2)

    def queries(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Queries of `(batch, length, hidden_size)`, `(batch, heads, length, head_dim)`."""
        return self.split_heads(self.q_proj(hidden_states))

    def project(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `(batch, length, hidden_size)`, each `(batch, heads, length, head_dim)`."""
        key, value = self.k_proj(hidden_states), self.v_proj(hidden_states)
        return self.split_heads(key), self.split_heads(value)

    def score_terms(
        self, query: torch.Tensor, num_keys: int, segment: SegmentContext, memory: ColumnMemory
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The query that meets the keys, and what is added to their scaled scores, `(B, H, T, K)`."""
        return query, None

    def attention_function(self) -> Callable:
        """What makes output `(B, T, H, D)` and weights of queries, keys and values."""
        return ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)

    def forward(
        self,
        hidden_states: torch.Tensor,
        past: torch.Tensor | None = None,
        memory: ColumnMemory | None = None,
        segment: SegmentContext = PLAIN_SEGMENT,
        key_states: torch.Tensor | None = None,
        projected: Tensors | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            hidden_states (`torch.Tensor` of shape `(B, T, E)`): the segment, normalised where the model is pre-norm.
            past (`torch.Tensor` of shape `(B, M, E)`, *optional*): columns of the memory that are not projected yet,
                normalised like the segment.
            memory ([`ColumnMemory`], *optional*): holds the others, and takes the segment's in; its `key_mask` says which
                columns of `[memory; segment]` the queries see. All see all when not given.
            segment ([`SegmentContext`]): padding, documents and positions.
            key_states (`torch.Tensor` of shape `(B, T, E)`, *optional*): what keys and values are made of, where it is not
                what queries are made of; the memory is of its kind.
            projected (*optional*): keys and values of `[memory; segment]`, each `(B, H, K, D)`, where the layer has them.

        Returns:
            The output `(B, T, E)`, and the weights `(B, H, T, K)` where the attention function returns them.
        """
        memory = ColumnMemory.with_mask() if memory is None else memory
        query = self.queries(hidden_states)
        if projected is None:
            projected = self.keys_and_values(hidden_states if key_states is None else key_states, past, memory)
        key, value = projected
        attn_output, attn_weights = self.attend(query, key, value, memory, segment, **kwargs)
        return self.merge_heads(attn_output), attn_weights

    def merge_heads(self, attn_output: torch.Tensor) -> torch.Tensor:
        """What the heads attended to, `(B, T, H, D)`, through the output projection: `(B, T, E)`."""
        return self.o_proj(attn_output.flatten(-2))

    def keys_and_values(
        self, hidden_states: torch.Tensor, past: torch.Tensor | None, memory: ColumnMemory
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of `[memory; segment]`, each `(B, H, K, D)`, packed. The memory takes the segment's in."""
        key, value = memory.extend(self.project(hidden_states), None if past is None else self.project(past))
        return key, value

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        memory: ColumnMemory,
        segment: SegmentContext,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Output `(B, T, H, D)` and weights, by the attention function that the user chose (`attn_implementation`)."""
        query, bias = self.score_terms(query, key.shape[-2], segment, memory)
        kwargs["token_order"] = segment.token_order
        return self.attend_with_bias(query, key, value, bias, memory.key_mask.visible, **kwargs)

    def attend_with_bias(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        visible: torch.Tensor | None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The same, of the `bias` (B, H, T, K) that is added to the scaled scores of what is `visible`."""
        bias = visible if bias is None else masked_scores(bias, visible)
        return self.attention_function()(
            self,
            query,
            key,
            value,
            bias,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            is_causal=False,
            **kwargs,
        )


class RelativeAttention(MemoryAttention):
    """Attention with relative positions: Dai et al., 2019, https://arxiv.org/abs/1901.02860, section 3.3.

        score[i, j] = ((q_i + content_bias) . k_j + (q_i + position_bias) . r_{i-j}) / sqrt(head_dim)

    where r = r_proj(R), R the sinusoids of `RelativePositions`.

    With `attn_implementation="sdpa"` a backend of `ops.backends` computes it in one piece, where there is one for the
    device and type. Elsewhere, and with "eager", the attention function gets the second term as an additive mask.

    Differs from the original: tensors are batch first; queries, keys and values have their own projections (`qkv_net`
    there).
    """

    def __init__(self, config: RelativeAttentionConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.r_proj = nn.Linear(config.hidden_size, config.num_attention_heads * config.head_dim, bias=False)
        self.bias = None if config.share_relative_bias else RelativeBias(config)
        self.kept_projection: KeptProjection | None = None

    def score_terms(
        self, query: torch.Tensor, num_keys: int, segment: SegmentContext, memory: ColumnMemory
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.relative_scores(query, *self.relative_terms(segment, memory, num_keys))

    def relative_scores(
        self,
        query: torch.Tensor,
        positions: torch.Tensor,
        bias: Biases,
        num_keys_after: torch.Tensor | None = None,
        distance: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`num_keys_after` (B, T): keys that come after each query, where the queries are not the last T positions;
        `distance` (B or 1, T, S): how far the keys lie, where columns are not distances."""
        position_query = (query + bias.position_bias[:, None]) * self.scaling
        if distance is None:
            scores = position_scores(position_query, positions, num_keys_after)
        else:
            scores = position_scores_at(position_query, positions, distance)
        return query + bias.content_bias[:, None], scores

    def relative_terms(
        self, segment: SegmentContext, memory: ColumnMemory, num_keys: int | None = None
    ) -> tuple[torch.Tensor, Biases]:
        """The projected positions `(H, K + 1, D)` of the distances K-1 .. -1 (all that there are, when K is not given), and
        u, v: those of the layer, or those that all share."""
        table, shared = segment.relative_positions
        positions = self.project_positions(table, memory)
        bias = shared if self.bias is None else self.bias()
        positions = positions if num_keys is None else keep_last(positions, num_keys + 1)
        return positions, bias  # type: ignore[return-value]  # the model's positions have biases where no layer has

    def attend(self, query, key, value, memory, segment, far=None, **kwargs):
        """`far` ([`FarColumns`], *optional*): further columns, whose weights stand before those of the others."""
        terms = self.relative_terms(segment, memory)
        kwargs["token_order"] = segment.token_order
        return self.attend_relative(query, key, value, *terms, memory.key_mask, far=far, **kwargs)

    def attend_relative(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        bias: Biases,
        key_mask: KeyMask,
        num_keys_after: torch.Tensor | None = None,
        far: FarColumns | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Output and weights, of projected positions `(H, >= K + 1, D)`; `num_keys_after` as in `relative_scores`."""
        backend = relative_backend(self.config._attn_implementation, query)
        in_steps = num_keys_after is not None or key_mask.distance is not None
        if backend is None or in_steps or (self.training and self.attention_dropout > 0):
            return self.attend_in_steps(query, key, value, positions, bias, key_mask, num_keys_after, far, **kwargs)
        attn_output = backend(
            query,
            key,
            value,
            positions,
            bias.content_bias,
            bias.position_bias,
            visible=None if key_mask.by_distance else key_mask.visible,
            window=key_mask.window,
            scaling=self.scaling,
            recompute=torch.is_grad_enabled() and self.config.recompute_attention,
            far=far,
        )
        return attn_output, None

    def attend_in_steps(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        bias: Biases,
        key_mask: KeyMask,
        num_keys_after: torch.Tensor | None = None,
        far: FarColumns | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The same by the attention function that the user chose, which is told the position terms as a bias `(B, H, T, S +
        K)`, with the S `far` columns on the left."""
        near = positions if key_mask.distance is not None else keep_last(positions, key.shape[-2] + 1)
        content_query, scores = self.relative_scores(query, near, bias, num_keys_after, key_mask.distance)
        scores = masked_scores(scores, key_mask.visible)
        if far is not None:
            _, far_scores = self.relative_scores(query, positions, bias, distance=far.key_mask.distance)
            scores = torch.cat([masked_scores(far_scores, far.key_mask.visible), scores], dim=-1)
            key, value = torch.cat([far.key, key], dim=-2), torch.cat([far.value, value], dim=-2)
        return self.attend_with_bias(content_query, key, value, scores, None, **kwargs)

    def project_positions(self, table: torch.Tensor | None, memory: ColumnMemory) -> torch.Tensor:
        """r of every distance in `table`, `(heads, distances, head_dim)`. The memory of a cache keeps it, as it keeps keys
        and values; otherwise, without gradients, it is kept as long as the weight holds the same numbers."""
        if table is None:
            return memory.positions  # type: ignore[return-value]  # there is no table only where it holds them
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.split_heads(self.r_proj(table))
        if memory.buffer is not None:
            self.kept_projection = None  # they are large: who reads on with a cache does not need them twice
            positions = self.projected_along_rows(table)
            memory.keep_positions(positions)
            return positions
        # a GPU would have to wait for the comparison
        if self.training or table.device.type != "cpu" or not _is_known_by_its_weight(self.r_proj):
            self.kept_projection = None
            return self.projected_along_rows(table)
        if self.kept_projection is None or not self.kept_projection.holds(self.r_proj.weight, table):
            weight = self.r_proj.weight.detach().clone()
            self.kept_projection = KeptProjection(weight, table, self.projected_along_rows(table))
        return self.kept_projection.positions

    def projected_along_rows(self, table: torch.Tensor) -> torch.Tensor:
        """r `(H, distances, D)` laid out along the rows, as a cache keeps its keys: one query reads it faster so."""
        return self.split_heads(self.r_proj(table)).transpose(-1, -2).contiguous().transpose(-1, -2)


def masked_scores(scores: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
    """Scores `(B, H, T, K)`, -inf where a query does not see a column."""
    return scores if visible is None else scores.masked_fill(~visible, -torch.inf)


def _is_known_by_its_weight(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether the same numbers in the weight mean the same output: not with an adapter, a hook or a parametrization, nor
    with a quantized weight, which knows no equality, or an offloaded one, which is not there."""
    return (
        isinstance(layer, nn.Linear)
        and type(layer.weight) is nn.Parameter
        and layer.weight.device.type == "cpu"
        and not any(getattr(layer, name, True) for name in ("_forward_pre_hooks", "_forward_hooks"))
    )
