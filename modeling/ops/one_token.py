"""Relative attention of one token, without gradients: what generation and agents call at every step.

score[j] = ((q + u) . k_j + (q + v) . r_j) / sqrt(d)         Dai et al., 2019, https://arxiv.org/abs/1901.02860, 3.3
"""

import torch

from transformers_xl.modeling.ops.columns import keep_last
from transformers_xl.modeling.ops.relative_attention import FarColumns


def one_token_attention(
    query: torch.Tensor,
    content_bias: torch.Tensor,
    position_bias: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    visible: torch.Tensor | None,
    window: int | None,
    scaling: float,
    far: FarColumns | None = None,
) -> torch.Tensor:
    """Attention `(B, 1, H, D)` of one token that sees what is `visible` of its `window`, and all far columns directly
    before it: generation, where few operations count more than few operands. Keys are read where they stand. What a token
    reads that sees nothing is finite, and not specified."""
    batch, heads, _, width = query.shape
    if window is not None and key.shape[2] > window:
        key, value = keep_last(key, window, dim=2), keep_last(value, window, dim=2)
        visible = None if visible is None else keep_last(visible, window, dim=3)
    num_far, num_near = 0 if far is None else far.key.shape[2], key.shape[2]
    query = query.squeeze(2)
    position_query = (query + position_bias).transpose(0, 1)
    near_and_far = positions.narrow(1, positions.shape[1] - 1 - num_near - num_far, num_near + num_far)
    scores = torch.bmm(position_query, near_and_far.mT)
    scores = scores.transpose(0, 1).reshape(batch * heads, 1, -1)
    content_query = (query + content_bias).reshape(batch * heads, 1, width)
    near = scores.narrow(-1, num_far, num_near) if num_far else scores
    near.baddbmm_(content_query, key.flatten(0, 1).mT, beta=scaling, alpha=scaling)
    if far is not None:
        beyond = scores.narrow(-1, 0, num_far)
        beyond.baddbmm_(content_query, far.key.flatten(0, 1).mT, beta=scaling, alpha=scaling)
    if visible is not None:  # a sum over the heads is much faster than a mask over them
        # finite: padding, which sees nothing, gets numbers that nobody reads, not NaN
        lowest = max(torch.finfo(scores.dtype).min, torch.finfo(torch.float32).min)
        scores.view(batch, heads, 1, -1).add_(torch.where(visible, 0.0, lowest))
    weights = scores.softmax(dim=-1)
    near = weights.narrow(-1, num_far, num_near) if num_far else weights
    attn_output = torch.bmm(near, value.flatten(0, 1))
    if far is not None:
        attn_output.baddbmm_(weights.narrow(-1, 0, num_far), far.value.flatten(0, 1))
    return attn_output.view(batch, 1, heads, -1)


def ring_attention(
    query: torch.Tensor,
    content_bias: torch.Tensor,
    position_bias: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    distance: torch.Tensor,
    lengths: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    """Attention `(B, 1, H, D)` of one token whose columns do not stand in their order: each lies as far as `distance`
    `(S,)` says, and a row sees those that lie at most `lengths` `(B,)` away. For a compiler: scores are masked by distance,
    before they take their places, and what it fuses into a loop repeats no division for each number."""
    batch, heads, _, width = query.shape
    query, num_rows = query.squeeze(2), positions.shape[1]
    is_seen = num_rows - 2 - torch.arange(num_rows, device=query.device) <= lengths[:, None]
    lowest = max(torch.finfo(query.dtype).min, torch.finfo(torch.float32).min)
    mask = torch.where(is_seen, 0.0, lowest).to(query.dtype)
    by_distance = torch.baddbmm(mask, (query + position_bias).transpose(0, 1), positions.mT)
    scores = by_distance[..., num_rows - 2 - distance].transpose(0, 1).reshape(batch * heads, 1, -1)
    content_query = (query + content_bias).reshape(batch * heads, 1, width)
    scores = torch.baddbmm(scores, content_query, key.flatten(0, 1).mT, beta=scaling, alpha=scaling)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    # not `bmm`, of which a compiler makes a slower loop
    total = torch.baddbmm(query.new_zeros(1, 1, 1), weights, value.flatten(0, 1), beta=0)
    return (total / weights.sum(-1, keepdim=True)).view(batch, 1, heads, width)


def with_far_columns(
    key: torch.Tensor, value: torch.Tensor, far: FarColumns, window: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values that one token sees: the `far` ones directly before those of its window."""
    near = key.shape[2] if window is None else window
    return (
        torch.cat([far.key, keep_last(key, near, dim=2)], dim=2),
        torch.cat([far.value, keep_last(value, near, dim=2)], dim=2),
    )


__all__ = ["one_token_attention", "ring_attention", "with_far_columns"]
