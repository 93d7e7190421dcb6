"""Multi-head attention over `[memory; segment]`, and Transformer-XL's relative form of it."""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeGuard, cast

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig
from transformers_xl.modeling.memory.memory_cache import LayerCache, Tensors
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.ops.band import PIECE_LENGTH
from transformers_xl.modeling.ops.columns import computing_dtype, is_symbolic, keep_last
from transformers_xl.modeling.ops.one_token import ring_attention, with_far_columns
from transformers_xl.modeling.ops.relative_attention import (
    Biases,
    FarColumns,
    eager_attention_forward,
    position_scores,
    position_scores_at,
    register_backend,
    relative_backend,
    sinusoids,
)
from transformers_xl.modeling.ops.wide_attention import wide_attention

register_backend("wide", wide_attention, "cpu", (torch.float32, torch.float64))

LONG = 4  # from so many windows of keys on, queries are read in pieces


# B batch, T segment length, C columns of the memory, K = C + T, H heads, D head dim, E hidden size
class MemoryAttention(nn.Module):
    """Attention of a segment's queries to the keys and values of `[memory; segment]`, without positions.

    A variant with positions overrides `score_terms`; one that needs the weights themselves, `attention_function`; one
    with its own faster way, `attend`.
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
        """`(.., length, heads x head_dim)` -> `(.., heads, length, head_dim)`."""
        width = states.shape[-1] // self.num_heads
        return states.reshape(*states.shape[:-1], self.num_heads, width).transpose(-3, -2)

    def queries(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Queries of `(batch, length, hidden_size)`, `(batch, heads, length, head_dim)`."""
        return self.split_heads(self.q_proj(hidden_states))

    def project(self, hidden_states: torch.Tensor) -> Tensors:
        """Keys and values of `(batch, length, hidden_size)`, each `(batch, heads, length, head_dim)`."""
        key, value = self.k_proj(hidden_states), self.v_proj(hidden_states)
        return self.split_heads(key), self.split_heads(value)

    def forward(
        self, hidden_states: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: LayerContext, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            hidden_states (`torch.Tensor` of shape `(B, T, E)`): the segment, normalised where the model is pre-norm.
            key, value (`torch.Tensor` of shape `(B, H, K, D)`): those of `[memory; segment]`.
            context ([`LayerContext`]): what the tokens see of them, and positions.

        Returns:
            The output `(B, T, E)`, and the weights `(B, H, T, K)` where the attention function returns them.
        """
        attn_output, attn_weights = self.attend(self.queries(hidden_states), key, value, context, **kwargs)
        return self.merge_heads(attn_output), attn_weights

    def merge_heads(self, attn_output: torch.Tensor) -> torch.Tensor:
        """What the heads attended to, `(B, T, H, D)`, through the output projection: `(B, T, E)`."""
        return self.o_proj(attn_output.flatten(-2))

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: LayerContext, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Output `(B, T, H, D)` and weights, by the attention function that the user chose (`attn_implementation`)."""

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor | None):
            query, bias = self.score_terms(query, key.shape[-2], context)
            return self.attend_with_bias(query, key, value, bias, visible, **kwargs)

        return self.in_pieces(attend, query, key, value, context)

    def in_pieces(
        self, attend: Callable, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: LayerContext
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What `attend` returns of queries, keys, values, and what is visible.

        A call that is much longer than the window is read some queries at a time, each with the keys of their windows: it
        costs its length times the window. With "eager" all pairs are computed, and their weights returned.
        """
        num_keys, window = key.shape[-2], context.window
        if window is None or not is_long(num_keys, window) or self.config._attn_implementation == "eager":
            return attend(query, key, value, context.visible)
        outputs, stop = [], num_keys - query.shape[-2]
        for some in query.split(max(window // 2, PIECE_LENGTH), dim=-2):
            start, stop = stop, stop + some.shape[-2]
            keys = slice(max(start - window + 1, 0), stop)
            visible = context.segment.visible_piece(slice(start, stop), keys)
            outputs.append(attend(some, key[..., keys, :], value[..., keys, :], visible)[0])
        return torch.cat(outputs, dim=1), None

    def score_terms(
        self, query: torch.Tensor, num_keys: int, context: LayerContext
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The query that meets the keys, and what is added to their scaled scores, `(B, H, T, K)`."""
        return query, None

    def attention_function(self) -> Callable:
        """What makes output `(B, T, H, D)` and weights of queries, keys and values."""
        return ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)

    def attend_with_bias(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        visible: torch.Tensor | None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Output and weights, of the `bias` (B, H, T, K) that is added to the scaled scores of what is `visible`."""
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


class RelativeBias(nn.Module):
    """The two biases that replace the query's absolute position.

    `content_bias` is u (`r_w_bias` in the original code), `position_bias` is v (`r_r_bias`), each `(heads, head_dim)`.
    """

    def __init__(self, config: RelativeAttentionConfig):
        super().__init__()
        self.content_bias = nn.Parameter(torch.empty(config.num_attention_heads, config.head_dim))
        self.position_bias = nn.Parameter(torch.empty(config.num_attention_heads, config.head_dim))

    def forward(self) -> Biases:
        # read in a call, not as attributes: weights that were offloaded are there during calls only
        return Biases(self.content_bias, self.position_bias)

    def init_weights(self, config: RelativeAttentionConfig) -> None:
        init.normal_(self.content_bias, mean=0.0, std=config.initializer_range)
        init.normal_(self.position_bias, mean=0.0, std=config.initializer_range)


class RelativePositions(nn.Module):
    """Sinusoids of relative distances, clamped to at most `clamp_len`, and the biases u, v where all layers share them.

    The table is computed when it is first asked for: a buffer would not survive loading through the meta device.
    """

    def __init__(self, config: RelativeAttentionConfig):
        super().__init__()
        self.config = config  # read at every call: a longer memory after training may want distances clamped
        self.bias = RelativeBias(config) if config.share_relative_bias else None

    def forward(self, num_keys: int, like: torch.Tensor, nearest: int = -1) -> torch.Tensor:
        """R of the distances num_keys-1 .. nearest, of shape `(num_keys - nearest, hidden_size)`, in dtype and device of
        `like`.

        The last row is never seen: it makes the relative shift a view, see `ops.relative_attention`.
        """
        size = (num_keys, nearest, self.config.hidden_size, self.config.clamp_len, like.dtype, like.device)
        if is_symbolic(like):
            return distance_table(*size)
        # most calls want the table of the call before; a tensor made in inference mode is of no use outside of it
        return kept_distance_table(*size, inference=torch.is_inference_mode_enabled())


def distance_table(
    num_keys: int, nearest: int, hidden_size: int, clamp_len: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The sinusoids `(num_keys - nearest, hidden_size)` of the distances num_keys-1 .. nearest."""
    distances = torch.arange(num_keys - 1, nearest - 1, -1, device=device)
    return sinusoids(distances.clamp(-clamp_len, clamp_len) if clamp_len > 0 else distances, hidden_size, dtype)


@lru_cache(maxsize=4)
def kept_distance_table(*size, inference: bool) -> torch.Tensor:
    """The same, kept for calls to come."""
    return distance_table(*size)


class RelativeAttention(MemoryAttention):
    """Attention with relative positions: Dai et al., 2019, https://arxiv.org/abs/1901.02860, section 3.3.

        score[i, j] = ((q_i + content_bias) . k_j + (q_i + position_bias) . r_{i-j}) / sqrt(head_dim)

    where r = r_proj(R), R the sinusoids of `RelativePositions`.

    With `attn_implementation="sdpa"` a backend (`register_backend`) computes it in one piece, where there is one for the
    device and type. Elsewhere, and with "eager", the attention function gets the second term as an additive mask.

    Differs from the original: tensors are batch first; queries, keys and values have their own projections (`qkv_net`
    there).
    """

    def __init__(self, config: RelativeAttentionConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.r_proj = nn.Linear(config.hidden_size, config.num_attention_heads * config.head_dim, bias=False)
        self.bias = None if config.share_relative_bias else RelativeBias(config)
        self.kept: Tensors | None = None  # a table of positions, the weight, and what it projects the table to

    def relative_terms(self, context: LayerContext) -> tuple[torch.Tensor, Biases]:
        """The projected positions `(H, distances, D)` of the distances .., 1, 0, -1, and u, v: those of the layer, or those
        that all share."""
        bias = context.bias if self.bias is None else self.bias()
        assert bias is not None, "the model's positions have biases where no layer has"
        return self.project_positions(context), bias

    def project_positions(self, context: LayerContext) -> torch.Tensor:
        """r of every distance. A cache keeps it for the tokens to come; without one and without gradients it is kept here,
        as long as the weight holds the same numbers."""
        layer_cache, table = context.layer_cache, context.positions
        if table is None:  # a cache holds what it is projected to
            return cast(torch.Tensor, cast(LayerCache, layer_cache).positions)
        if torch.is_grad_enabled() or is_symbolic(table):
            return self.split_heads(self.r_proj(table))
        if layer_cache is not None:
            self.kept = None  # they are large
            layer_cache.positions = self.positions_along_rows(table)
            return layer_cache.positions
        is_cast = computing_dtype(table) != table.dtype
        if self.training or is_cast or not is_known_by_its_weight(self.r_proj):
            return self.positions_along_rows(table)
        weight = self.r_proj.weight
        # numbers are compared: no counter sees writes through `.data`
        if self.kept is None or self.kept[0] is not table or not torch.equal(self.kept[1], weight):
            self.kept = table, weight.detach().clone(), self.positions_along_rows(table)
        return self.kept[2]

    def positions_along_rows(self, table: torch.Tensor) -> torch.Tensor:
        """r `(H, distances, D)` laid out along the rows: one query reads it faster so."""
        return self.split_heads(self.r_proj(table)).mT.contiguous().mT

    def attend(self, query, key, value, context, far=None, **kwargs):
        """`far` ([`FarColumns`], *optional*): further columns, whose weights stand before those of the others."""
        return self.attend_relative(query, key, value, *self.relative_terms(context), context, far, **kwargs)

    def attend_relative(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        bias: Biases,
        context: LayerContext,
        far: FarColumns | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Output and weights, of projected positions `(H, >= K + 1, D)` and biases."""
        backend = relative_backend(self.config._attn_implementation, query, far)
        if backend is not None and context.layer_cache is not None and context.layer_cache.is_ring:
            distance, lengths = cast(torch.Tensor, context.distance)[0, 0], context.segment.lengths
            return ring_attention(query, *bias, key, value, positions, distance, lengths, self.scaling), None
        in_steps = backend is None or (self.training and self.attention_dropout > 0)
        sees_both_ways = context.segment.last is not None
        if context.distance is not None or sees_both_ways or (in_steps and far is not None):
            return self.attend_in_steps(query, key, value, positions, bias, context, far, **kwargs)
        recompute = torch.is_grad_enabled() and self.config.recompute_attention
        options = {"window": context.window, "scaling": self.scaling, "recompute": recompute, "far": far}

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor | None):
            if backend is None or in_steps:
                return self.attend_in_steps(
                    query, key, value, positions, bias, context._replace(mask=visible), **kwargs
                )
            return backend(query, key, value, positions, *bias, visible=visible, **options), None

        if context.segment.is_plain and not in_steps:  # the window says all
            return attend(query, key, value, None)
        if far is not None:
            return attend(query, key, value, context.visible)
        return self.in_pieces(attend, query, key, value, context)

    def attend_in_steps(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        bias: Biases,
        context: LayerContext,
        far: FarColumns | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The same by the attention function that the user chose, which is told the position terms as a bias `(B, H, T, S +
        K)`, with the S `far` columns on the left."""
        visible = context.visible
        if far is not None and far.distance is None:
            key, value = with_far_columns(key, value, far, context.window)
            far = visible = None
        position_query = (query + bias.position_bias[:, None]) * self.scaling
        num_keys, nearest = key.shape[-2], context.segment.nearest_distance
        if context.distance is None:
            scores = position_scores(position_query, keep_last(positions, num_keys - nearest), num_keys)
        else:  # counted from the last row of the table but one
            scores = position_scores_at(position_query, positions, context.distance - (nearest + 1))
        scores = masked_scores(scores, visible)
        if far is not None and far.distance is not None:
            far_scores = position_scores_at(position_query, positions, far.distance)
            scores = torch.cat([masked_scores(far_scores, far.visible), scores], dim=-1)
            key, value = torch.cat([far.key, key], dim=-2), torch.cat([far.value, value], dim=-2)
        return self.attend_with_bias(query + bias.content_bias[:, None], key, value, scores, None, **kwargs)


def is_long(num_keys: int, window: int | None) -> bool:
    """Whether so many keys are much more than a window: then no mask of a whole call is made."""
    return window is not None and num_keys >= LONG * max(window, PIECE_LENGTH)


def is_known_by_its_weight(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether the same numbers in the weight mean the same output, and comparing them is cheap: not with an adapter or a
    hook, nor with a weight that is quantized, offloaded or on a GPU."""
    is_plain = type(layer) is nn.Linear and type(layer.weight) is nn.Parameter and layer.weight.device.type == "cpu"
    return is_plain and not layer._forward_pre_hooks and not layer._forward_hooks


def masked_scores(scores: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
    """Scores `(B, H, T, K)`, -inf where a query does not see a column."""
    return scores if visible is None else scores.masked_fill(~visible, -torch.inf)


__all__ = ["MemoryAttention", "RelativeAttention", "RelativeBias", "RelativePositions", "is_long", "masked_scores"]
