"""Relative attention by PyTorch's FlexAttention, for CUDA: https://arxiv.org/abs/2412.05496 and `torch.nn.attention`.

    score[i, j] = (q_i + u) . k_j / sqrt(d)  +  p[i, i-j],    p[i, c] = (q_i + v) . r_c / sqrt(d)

p, the scores of every query by distance, is one product. A score modification reads it while the fused kernel makes the
scores of a tile, so that neither scores nor a mask by key are ever written; a block mask leaves out the tiles that a window
or padding hides. The weights are always made once more in the backward pass; what is kept is p, `(B, H, T, K + 1)`: as much
memory as one layer's weights.

The formula is tested on a CPU, where FlexAttention runs in plain steps. It needs Triton on CUDA: without it, attention with
a mask stays. Its speed has not been measured here.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers.utils import is_triton_available

from transformers_xl.modeling.ops.columns import keep_last
from transformers_xl.modeling.ops.far_columns import FarColumns
from transformers_xl.modeling.ops.one_token import one_token_attention, with_far_columns
from transformers_xl.modeling.ops.relative_attention import position_scores_at

HAS_TRITON = is_triton_available()  # what compiled FlexAttention is written in
MIN_WIDTH = 16  # of a head, in compiled FlexAttention


def flex_relative_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    content_bias: torch.Tensor,
    position_bias: torch.Tensor,
    visible: torch.Tensor | None,
    window: int | None,
    scaling: float,
    recompute: bool = False,
    far: FarColumns | None = None,
) -> torch.Tensor:
    """Arguments and output of [`~transformers_xl.modeling.ops.wide_attention.wide_attention`], in any type of numbers.
    `recompute` changes nothing: weights are never kept (a checkpoint around it, for p, gives wrong gradients on a CPU in
    torch 2.13).

    Under autocast the biases and positions may be float32: all is computed in the type of `value`.
    """
    positions, content_bias, position_bias = (
        each.to(value.dtype) for each in (positions, content_bias, position_bias)
    )
    queries = query.to(value.dtype), content_bias, position_bias
    learns = torch.is_grad_enabled() and any(each.requires_grad for each in (*queries, key, value, positions))
    follows_window = far is not None and far.distance is None
    if query.shape[2] == 1 and visible is None and not learns and (far is None or follows_window):
        return one_token_attention(*queries, key, value, positions, visible, window, scaling, far)
    if far is not None and follows_window:
        key, value = with_far_columns(key, value, far, window)
        far = window = None
    return _attend(*queries, key, value, positions, visible, window, scaling, far)


def _attend(
    query: torch.Tensor,
    content_bias: torch.Tensor,
    position_bias: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    visible: torch.Tensor | None,
    window: int | None,
    scaling: float,
    far: FarColumns | None,
) -> torch.Tensor:
    """`(B, T, H, D)`; far columns stand before the others."""
    (length, num_keys), num_far = (query.shape[2], key.shape[2]), 0
    position_query = (query + position_bias[:, None]) * scaling
    by_distance = torch.einsum("bhtd,hkd->bhtk", position_query, keep_last(positions, num_keys + 1))
    by_column, far_visible = None, None
    if far is not None:
        num_far, far_visible = far.key.shape[2], far.visible
        assert far.distance is not None, "`with_far_columns` reads these"
        by_column = position_scores_at(position_query, positions, far.distance)
        key, value = torch.cat([far.key, key], dim=2), torch.cat([far.value, value], dim=2)

    def add_position(
        score: torch.Tensor, row: torch.Tensor, head: torch.Tensor, query_index: torch.Tensor, column: torch.Tensor
    ) -> torch.Tensor:
        near = column - num_far
        # a query is at column K - T + t; what lies after it is hidden, whatever is added
        distance = (length - 1 - query_index + near).clamp(0, num_keys)
        score_of_position = by_distance[row, head, query_index, distance]
        if by_column is not None:
            of_far = by_column[row, head, query_index, column.clamp(max=num_far - 1)]
            score_of_position = torch.where(near < 0, of_far, score_of_position)
        return score + score_of_position

    if visible is None and far_visible is None:
        mask = mask_of_window(length, num_keys, num_far, window, query.device)
    else:
        sees = sees_columns(length, num_keys, num_far, window, visible, far_visible)
        mask = create_block_mask(sees, len(query), None, length, num_far + num_keys, query.device)
    is_plain = query.device.type == "cpu" or torch.compiler.is_compiling()  # who compiles the model compiles this, too
    attend: Any = flex_attention if is_plain else compiled_flex_attention()
    wide_query, wide_key, wide_value = (widened_heads(each) for each in (query + content_bias[:, None], key, value))
    attn_output = attend(wide_query, wide_key, wide_value, add_position, mask, scaling)
    return attn_output[..., : value.shape[-1]].transpose(1, 2).contiguous()


@functools.cache
def compiled_flex_attention() -> Callable[..., torch.Tensor]:
    """Made when it is first called: `torch.compile` imports a compiler, a sixth of what importing this package takes."""
    return torch.compile(flex_attention)


def widened_heads(heads: torch.Tensor) -> torch.Tensor:
    """Heads `(B, H, T, D)` with zeros up to the least width that the kernel takes."""
    return F.pad(heads, (0, MIN_WIDTH - heads.shape[-1])) if heads.shape[-1] < MIN_WIDTH else heads


@functools.lru_cache(maxsize=32)
def mask_of_window(length: int, num_keys: int, num_far: int, window: int | None, device: torch.device) -> BlockMask:
    """That of all layers and segments of these sizes."""
    sees = sees_columns(length, num_keys, num_far, window, None, None)
    return create_block_mask(sees, None, None, length, num_far + num_keys, device)


def sees_columns(
    length: int,
    num_keys: int,
    num_far: int,
    window: int | None,
    visible: torch.Tensor | None,
    far_visible: torch.Tensor | None,
) -> Callable[..., torch.Tensor]:
    """A function of the row, head, query and column of a score: whether the query sees the column.

    Args:
        visible: `(B or 1, 1, T, K)` bool; None: what `window` says.
        far_visible: `(B or 1, 1, T, S)` bool of the `num_far` columns before; None: all.
    """

    def sees(row: torch.Tensor, _: torch.Tensor, query_index: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        near = column - num_far
        distance = num_keys - length + query_index - near
        seen = (distance >= 0) & (distance < (num_keys if window is None else window))
        if visible is not None:
            shown = visible.expand(-1, 1, -1, -1)
            seen = seen & shown[row % len(shown), 0, query_index, near.clamp(min=0)]
        if not num_far:
            return seen
        of_far = near < 0
        if far_visible is not None:
            of_far = of_far & far_visible[row % len(far_visible), 0, query_index, column.clamp(max=num_far - 1)]
        return torch.where(near < 0, of_far, seen)

    return sees


__all__ = ["HAS_TRITON", "flex_relative_attention"]
