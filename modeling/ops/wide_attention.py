"""Relative attention in one piece, forward and backward: Dai et al., 2019, https://arxiv.org/abs/1901.02860, appendix B.

    score[i, j] = ((q_i + u) . k_j + (q_i + v) . r_{i-j}) / sqrt(d)

The position term is one product with all distances, "wide" because every query meets every distance; as scores by key it
is a view of that buffer (`relative_shift`), to which the content term is added. What is hidden by its distance alone is
hidden in the buffer, where it is a block of columns. The backward pass writes the gradient through the same view.
"""

import torch

from transformers_xl.modeling.ops.relative_attention import relative_shift

# Scores of a piece: they are made, normalised and used while they are still in the processor's cache. Without gradients,
# a head with at least ONE_HEAD of them is a piece, and every head is worked on in the same buffer.
PIECE, ONE_HEAD = 2**20, 2**16


def wide_attention(
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
) -> torch.Tensor:
    """Attention with relative positions, in float32 or float64.

    Args:
        query: `(B, H, T, D)`, of the last T of K positions.
        key: `(B, H, K, D)`.
        value: `(B, H, K, D)`.
        positions: `(H, K + 1, D)`, projected positions of the distances K-1 .. -1.
        content_bias: u, `(H, D)`.
        position_bias: v, `(H, D)`.
        visible: `(B, 1, T, K)` bool where rows differ (padding, episodes); None where a query sees what `window` says.
        window: a query sees this many positions, itself included; None: all up to itself.
        scaling: factor of the scores.
        recompute: keep no weights for the backward pass, but make them once more.

    Returns:
        `(B, T, H, D)`. A query that sees nothing gets zeros.
    """
    arguments = (query, key, value, positions, content_bias, position_bias)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in arguments):
        return _WideAttention.apply(*arguments, visible, window, scaling, recompute)
    if query.shape[2] == 1 and visible is None and (window is None or key.shape[2] <= window):
        return _one_token(*arguments, scaling)
    attn_output = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
    length, num_keys = query.shape[2], key.shape[2]
    one_head = length * num_keys >= ONE_HEAD
    wide = query.new_empty(1, 1, length, num_keys + 1) if one_head else None
    for rows, heads in _pieces(query, key, 1 if one_head else PIECE):
        weights = _weights(*_part(arguments, rows, heads), _rows(visible, rows), window, scaling, wide)
        _multiply(weights, value[rows, heads], attn_output[rows, :, heads])
    return attn_output


def _one_token(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    content_bias: torch.Tensor,
    position_bias: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    """A token that sees all keys: generation, where few operations count more than few operands."""
    batch, heads, _, width = query.shape
    query = query.squeeze(2)
    position_query = (query + position_bias).transpose(0, 1)
    position_scores = torch.bmm(position_query, positions.narrow(1, 0, key.shape[2]).mT).transpose(0, 1)
    content_query = (query + content_bias).view(batch * heads, 1, width)
    scores = torch.baddbmm(
        position_scores.reshape(batch * heads, 1, -1), content_query, key.flatten(0, 1).mT,
        beta=scaling, alpha=scaling,
    )  # fmt: skip
    return torch.bmm(scores.softmax(dim=-1), value.flatten(0, 1)).view(batch, 1, heads, -1)


class _WideAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, query, key, value, positions, content_bias, position_bias, visible, window, scaling, recompute
    ) -> torch.Tensor:
        arguments = (query, key, value, positions, content_bias, position_bias)
        attn_output = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
        kept = []
        for rows, heads in _pieces(query, key, PIECE):
            weights = _weights(*_part(arguments, rows, heads), _rows(visible, rows), window, scaling)
            _multiply(weights, value[rows, heads], attn_output[rows, :, heads])
            if not recompute:
                kept.append(weights)
        ctx.save_for_backward(*arguments, visible, *kept)
        ctx.window, ctx.scaling = window, scaling
        return attn_output

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor) -> tuple:
        saved = ctx.saved_tensors  # asking twice would run an activation checkpoint twice
        *arguments, visible = saved[:7]
        kept = saved[7:]
        query, key, _, positions, content_bias, position_bias = arguments
        grad_query, grad_key, grad_value = (torch.empty_like(tensor) for tensor in arguments[:3])
        grad_positions = torch.zeros_like(positions)
        grad_content_bias, grad_position_bias = torch.zeros_like(content_bias), torch.zeros_like(position_bias)
        for index, (rows, heads) in enumerate(_pieces(query, key, PIECE)):
            part = _part(arguments, rows, heads)
            weights = kept[index] if kept else _weights(*part, _rows(visible, rows), ctx.window, ctx.scaling)
            part_query, part_key, part_value, part_positions, part_content_bias, part_position_bias = part
            grad_attended = grad_output[rows, :, heads].transpose(1, 2)
            grad_weights = grad_attended @ part_value.transpose(-1, -2)
            grad_value[rows, heads] = weights.transpose(-1, -2) @ grad_attended
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)

            grad_content = grad_scores @ part_key * ctx.scaling
            grad_key[rows, heads] = grad_scores.transpose(-1, -2) @ _biased(part_query, part_content_bias, ctx.scaling)
            grad_wide = weights.new_zeros(*weights.shape[:3], weights.shape[3] + 1)
            relative_shift(grad_wide).copy_(grad_scores)
            grad_position = grad_wide @ part_positions * ctx.scaling
            position_query = _biased(part_query, part_position_bias, ctx.scaling)
            grad_positions[heads] += (grad_wide.transpose(-1, -2) @ position_query).sum(0)

            grad_query[rows, heads] = grad_content + grad_position
            grad_content_bias[heads] += grad_content.sum((0, 2))
            grad_position_bias[heads] += grad_position.sum((0, 2))
        return grad_query, grad_key, grad_value, grad_positions, grad_content_bias, grad_position_bias, *[None] * 4


def _pieces(query: torch.Tensor, key: torch.Tensor, scores: int) -> list[tuple[slice, slice]]:
    """Rows and heads that are worked on together, some `scores` of them: several rows, or some of one row's heads."""
    batch, num_heads, length = query.shape[:3]
    per_head = length * key.shape[2]
    heads = min(num_heads, max(1, scores // per_head))
    rows = max(1, scores // (per_head * num_heads))
    return [
        (slice(row, row + rows), slice(head, head + heads))
        for row in range(0, batch, rows)
        for head in range(0, num_heads, heads)
    ]


def _part(arguments: tuple, rows: slice, heads: slice) -> tuple[torch.Tensor, ...]:
    return *(tensor[rows, heads] for tensor in arguments[:3]), *(tensor[heads] for tensor in arguments[3:])


def _rows(visible: torch.Tensor | None, rows: slice) -> torch.Tensor | None:
    return visible if visible is None or visible.shape[0] == 1 else visible[rows]


def _biased(query: torch.Tensor, bias: torch.Tensor, scaling: float) -> torch.Tensor:
    return (query + bias[:, None]) * scaling


def _weights(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    content_bias: torch.Tensor,
    position_bias: torch.Tensor,
    visible: torch.Tensor | None,
    window: int | None,
    scaling: float,
    wide: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weights `(B, H, T, K)` of a piece, in the buffer `wide` where one is given."""
    length, num_keys = query.shape[2], key.shape[2]
    wide = torch.matmul(_biased(query, position_bias, scaling), positions.transpose(-1, -2), out=wide)
    too_far = 0 if window is None else max(0, num_keys - window)
    if too_far:
        wide[..., :too_far].fill_(-torch.inf)
    if length > 1:
        wide[..., num_keys:].fill_(-torch.inf)
    content = _biased(query, content_bias, scaling).flatten(0, 1), key.flatten(0, 1).transpose(-1, -2)
    scores = relative_shift(wide).flatten(0, 1)
    # the view of one head lies in one piece: the content term is added where the position term stands
    scores = scores.baddbmm_(*content) if scores.is_contiguous() else torch.baddbmm(scores, *content)
    scores = scores.unflatten(0, query.shape[:2])
    # behind a query, the view shows what the next query's row begins with: up to `length - 2` of its farthest distances
    if too_far < length - 2:
        scores[..., num_keys - length :] += _future(length, scores)
    if visible is not None:
        scores.masked_fill_(~visible, -torch.inf)
    weights = torch.softmax(scores, dim=-1, out=scores)
    if visible is not None:
        weights.masked_fill_(~visible.any(dim=-1, keepdim=True), 0.0)
    return weights


def _future(length: int, like: torch.Tensor) -> torch.Tensor:
    return torch.full((length, length), -torch.inf, dtype=like.dtype, device=like.device).triu_(1)


def _multiply(weights: torch.Tensor, value: torch.Tensor, out: torch.Tensor) -> None:
    """Write `weights @ value`, `(B, H, T, D)`, to `out` `(B, T, H, D)`."""
    out.copy_((weights @ value).transpose(1, 2))
