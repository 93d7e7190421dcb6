"""Relative attention in one piece, forward and backward: Dai et al., 2019, https://arxiv.org/abs/1901.02860, appendix B.

    score[i, j] = ((q_i + u) . k_j + (q_i + v) . r_{i-j}) / sqrt(d)

The position term is one product with all distances, "wide" because every query meets every distance; as scores by key
it is a view of that buffer (`relative_shift`), to which the content term is added. The backward pass writes the gradient
through the same view. For T = 3 queries a, b, c and K = 5 keys, two of them of the memory (a2: query a at distance 2):

    wide, (T, K + 1)              its memory, and the view (T, K) of it, from number T - 1 on

    distance  4  3  2  1  0 -1    a4 a3 a2 a1 a0 a- b4 b3 b2 b1 b0 b- c4 c3 c2 c1 c0 c-
           a  a4 a3 a2 a1 a0 a-         [- row a ----] [- row b ----] [- row c ----]
           b  b4 b3 b2 b1 b0 b-
           c  c4 c3 c2 c1 c0 c-   key  0  1  2  3  4
                                    a  a2 a1 a0 a- b4   a-: a key after the query, the last column of wide
    left out: the first T - 1       b  b3 b2 b1 b0 b-   b4: after it too, but what the row of b begins with
    numbers, and the last one       c  c4 c3 c2 c1 c0

What its distance hides is a block of columns of `wide`, filled before the view is read: the future (-1), and what a
window does not reach, on the left: of a window of 3, distances 4 and 3, b4 among them. Where that are fewer than T - 2
columns, the triangle behind the queries is masked in the view (`_future`).

For training, a segment is cut into blocks of queries, and a block reads only the keys that its window reaches. On the
left, T = 128 queries behind a memory of 128, with a window of 129; on the right, what the queries of one block see (x) of
its keys, for three of them and a window of 4:

    key      0       32      64      96      128     160     192     224     256
             |----------- memory -----------||---------- segment -----------|    key  0 1 2 3 4 5
    block 0  [======================================]                              a  x x x x . .
    block 1          [======================================]                      b  . x x x x .
    block 2                  [======================================]              c  . . x x x x
    block 3                          [======================================]

A block, times some heads and rows of the batch, is a piece: about half a million scores, which stay in the processor's
cache. New memory costs more than arithmetic: the pieces of a call are worked on in the same space.
"""

import math
from typing import NamedTuple

import torch
from torch.autograd.function import once_differentiable

from transformers_xl.modeling.ops.relative_attention import relative_shift
from transformers_xl.modeling.ops.rolling_buffer import Tensors

# Scores of a piece: they are made, normalised and used while they are still in the processor's cache. Without gradients,
# a head with at least ONE_HEAD of them is a piece, and every head is worked on in the same buffer.
PIECE, ONE_HEAD = 2**19, 2**16
BLOCK = 32  # shortest block of queries that is worked on apart from the others


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
        visible: `(B, 1, T, K)` bool where rows differ (padding, documents); None where a query sees what `window` says.
        window: a query sees this many positions, itself included; None: all up to itself.
        scaling: factor of the scores.
        recompute: keep no weights for the backward pass, but make them once more.

    Returns:
        `(B, T, H, D)`. A query that sees nothing gets zeros.

    Raises:
        RuntimeError: derivatives of its gradients are asked for; `attn_implementation="eager"` has them.
    """
    arguments = (query, key, value, positions, content_bias, position_bias)
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in arguments)
    if not learns and query.shape[2] == 1 and visible is None and (window is None or key.shape[2] <= window):
        return one_token_attention(query, (key,), (value,), positions, content_bias, position_bias, scaling)
    if learns:
        return _WideAttention.apply(*arguments, visible, window, scaling, recompute)
    return _without_gradients(arguments, visible, window, scaling)


def _without_gradients(
    arguments: tuple[torch.Tensor, ...], visible: torch.Tensor | None, window: int | None, scaling: float
) -> torch.Tensor:
    """Some rows, or a row's heads one after the other in one space; keys and values are read as they lie."""
    query, key, value, positions, content_bias, position_bias = arguments
    (batch, num_heads, length, _), num_keys = query.shape, key.shape[2]
    attn_output = query.new_empty(batch, length, num_heads, value.shape[3])
    content_query, position_query = ((query + bias[:, None]) * scaling for bias in (content_bias, position_bias))
    one_head = length * num_keys >= ONE_HEAD
    heads = 1 if one_head else num_heads
    rows = 1 if one_head else max(1, PIECE // (length * num_keys * num_heads))
    # an exported graph takes no memory for its results
    space = None if torch.compiler.is_compiling() else query.new_empty(min(rows, batch), heads, length, num_keys + 1)
    for row in range(0, batch, rows):
        for head in range(0, num_heads, heads):
            some = slice(row, row + rows), slice(head, head + heads)
            seen = visible if visible is None or visible.shape[0] == 1 else visible[some[0]]
            part = None if space is None else space[: batch - row]
            wide = torch.matmul(position_query[some], positions[some[1]].mT, out=part)
            weights = _weights(wide, content_query[some], key[some], seen, window, in_place=True)
            attn_output[some[0], :, some[1]] = (weights @ value[some]).transpose(1, 2)
    return attn_output


def one_token_attention(
    query: torch.Tensor,
    keys: Tensors,
    values: Tensors,
    positions: torch.Tensor,
    content_bias: torch.Tensor,
    position_bias: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    """Attention `(B, 1, H, D)` of one token that sees all keys: generation, where few operations count more than few
    operands. `keys` and `values` are parts `(B, H, K, D)` that lie one behind the other, the token itself last; each is
    read where it stands."""
    batch, heads, _, width = query.shape
    query, num_keys = query.squeeze(2), sum(key.shape[2] for key in keys)
    position_query = (query + position_bias).transpose(0, 1)
    position_scores = torch.bmm(position_query, positions.narrow(1, 0, num_keys).mT).transpose(0, 1)
    content_query = (query + content_bias).reshape(batch * heads, 1, width)
    scores, start = position_scores.reshape(batch * heads, 1, -1), 0
    for key in keys:
        part = scores if len(keys) == 1 else scores.narrow(-1, start, key.shape[2])
        part.baddbmm_(content_query, key.flatten(0, 1).mT, beta=scaling, alpha=scaling)
        start += key.shape[2]
    weights, start = scores.softmax(dim=-1), values[0].shape[2]
    attn_output = torch.bmm(weights if len(values) == 1 else weights[..., :start], values[0].flatten(0, 1))
    for value in values[1:]:
        attn_output.baddbmm_(weights.narrow(-1, start, value.shape[2]), value.flatten(0, 1))
        start += value.shape[2]
    return attn_output.view(batch, 1, heads, -1)


class _WideAttention(torch.autograd.Function):
    """Heads come first inside: the queries of all rows meet the positions of a head in one product."""

    @staticmethod
    def forward(
        ctx, query, key, value, positions, content_bias, position_bias, visible, window, scaling, recompute
    ) -> torch.Tensor:
        query, key, value = (tensor.transpose(0, 1).contiguous() for tensor in (query, key, value))
        arguments = (query, key, value, positions, content_bias, position_bias)
        attn_output = query.new_empty(query.shape[1], query.shape[2], query.shape[0], value.shape[3])
        pieces = _pieces(query, key, window)
        wide = _space(query, pieces, 1)
        kept = []
        for piece in pieces:
            weights = _piece_weights(piece, arguments, visible, window, scaling, wide)
            out = attn_output[piece.rows, piece.queries, piece.heads]
            out.copy_((weights @ piece.keys_of(value)).permute(1, 2, 0, 3))
            if not recompute:
                kept.append(weights)
        ctx.save_for_backward(*arguments, visible, attn_output, *kept)
        ctx.window, ctx.scaling = window, scaling
        return attn_output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output: torch.Tensor) -> tuple:
        saved = ctx.saved_tensors  # asking twice would run an activation checkpoint twice
        *arguments, visible, attn_output = saved[:8]
        kept = saved[8:]
        query, key, value, positions, content_bias, position_bias = arguments
        grad_query = torch.empty_like(query)
        grad_key, grad_value, grad_positions = (torch.zeros_like(tensor) for tensor in (key, value, positions))
        grad_content_bias, grad_position_bias = torch.zeros_like(content_bias), torch.zeros_like(position_bias)
        # what the softmax takes from each score's gradient: the mean of the weights' gradients under the weights
        means = (grad_output * attn_output).sum(-1).permute(2, 0, 1)[..., None]
        grad_output = grad_output.permute(2, 0, 1, 3)
        pieces = _pieces(query, key, ctx.window)
        space, wide_space = _space(query, pieces), _space(query, pieces, 1)
        for index, piece in enumerate(pieces):
            weights = (
                kept[index] if kept else _piece_weights(piece, arguments, visible, ctx.window, ctx.scaling, wide_space)
            )
            part_query, part_key, part_value = piece.queries_of(query), piece.keys_of(key), piece.keys_of(value)
            part_positions, heads = piece.positions_of(positions), piece.heads
            grad_attended = piece.queries_of(grad_output).contiguous()
            piece.keys_of(grad_value).add_(weights.mT @ grad_attended)

            grad_weights = _shaped(space, piece.shape())
            _bmm(grad_attended.flatten(0, 1), part_value.flatten(0, 1).mT, out=grad_weights.flatten(0, 1))
            grad_weights -= piece.queries_of(means)
            grad_wide = _shaped(wide_space, piece.shape(1))
            grad_scores = relative_shift(grad_wide).copy_(grad_weights).mul_(weights)
            grad_wide.flatten(-2)[..., : weights.shape[-2] - 1] = 0  # what the view leaves out
            grad_wide[..., -1, -1] = 0

            grad_content = grad_scores @ part_key * ctx.scaling
            content_query = _biased(part_query, content_bias[heads], ctx.scaling)
            piece.keys_of(grad_key).add_(grad_scores.mT @ content_query)
            grad_position = torch.bmm(grad_wide.flatten(1, 2), part_positions).view_as(grad_content) * ctx.scaling
            position_query = _biased(part_query, position_bias[heads], ctx.scaling)
            piece.positions_of(grad_positions).add_(
                torch.bmm(grad_wide.flatten(1, 2).mT, position_query.flatten(1, 2))
            )

            piece.queries_of(grad_query).copy_(grad_content + grad_position)
            grad_content_bias[heads] += grad_content.sum((1, 2))
            grad_position_bias[heads] += grad_position.sum((1, 2))
        by_rows = (grad.transpose(0, 1) for grad in (grad_query, grad_key, grad_value))
        return *by_rows, grad_positions, grad_content_bias, grad_position_bias, *[None] * 4


class _Piece(NamedTuple):
    """What is worked on together: queries of some rows and heads, and the keys that the window lets them see."""

    heads: slice
    rows: slice
    queries: slice
    keys: slice

    def shape(self, more: int = 0) -> tuple[int, ...]:
        """That of its scores, with `more` columns than keys."""
        heads, rows, queries, keys = (part.stop - part.start for part in self)
        return heads, rows, queries, keys + more

    def queries_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its part of `(H, B, T, ...)`."""
        return tensor[self.heads, self.rows, self.queries]

    def keys_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its part of `(H, B, K, ...)`."""
        return tensor[self.heads, self.rows, self.keys]

    def positions_of(self, positions: torch.Tensor) -> torch.Tensor:
        """The distances of its keys, of `(H, K + 1, D)`."""
        return positions[self.heads, -1 - (self.keys.stop - self.keys.start) :]


def _pieces(query: torch.Tensor, key: torch.Tensor, window: int | None) -> list[_Piece]:
    """Some PIECE scores each: several heads of all rows, or some rows of one head."""
    num_heads, batch, length = query.shape[:3]
    num_keys, pieces = key.shape[2], []
    # the first queries of a block see keys that its last ones do not, and the other way round: small blocks waste less
    block = max(BLOCK, length // 4) if num_keys <= 4 * length else length
    for start in range(0, length, block):
        stop = min(start + block, length)
        behind = num_keys - length
        first = 0 if window is None else max(0, behind + start + 1 - window)
        queries, keys = slice(start, stop), slice(first, behind + stop)
        per_row = (stop - start) * (keys.stop - keys.start)
        rows = min(batch, max(1, PIECE // per_row))
        heads = min(num_heads, max(1, PIECE // (per_row * batch)))
        pieces += [
            _Piece(slice(head, min(head + heads, num_heads)), slice(row, min(row + rows, batch)), queries, keys)
            for head in range(0, num_heads, heads)
            for row in range(0, batch, rows)
        ]
    return pieces


def _piece_weights(
    piece: _Piece,
    arguments: tuple,
    visible: torch.Tensor | None,
    window: int | None,
    scaling: float,
    space: torch.Tensor,
) -> torch.Tensor:
    """The weights `(H, B, T, K)` of a piece; `space` holds the scores of its distances meanwhile."""
    query, key, _, positions, content_bias, position_bias = arguments
    query, positions = piece.queries_of(query), piece.positions_of(positions)
    wide = _shaped(space, piece.shape(1))
    position_query = _biased(query, position_bias[piece.heads], scaling).flatten(1, 2)
    _bmm(position_query, positions.mT, out=wide.flatten(1, 2))
    if visible is not None:
        rows = piece.rows if visible.shape[0] > 1 else slice(None)
        visible = visible[rows, :, piece.queries, piece.keys].transpose(0, 1)
    content_query = _biased(query, content_bias[piece.heads], scaling)
    return _weights(wide, content_query, piece.keys_of(key), visible, window)


def _space(like: torch.Tensor, pieces: list[_Piece], more: int = 0) -> torch.Tensor:
    """Memory for the scores of any of the pieces, one after the other."""
    return like.new_empty(max(math.prod(piece.shape(more)) for piece in pieces))


def _shaped(space: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return space[: math.prod(shape)].view(shape)


def _bmm(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    if torch.compiler.is_compiling():  # an exported graph takes no memory for its results
        out.copy_(torch.bmm(left, right))
    else:
        torch.bmm(left, right, out=out)


def _biased(query: torch.Tensor, bias: torch.Tensor, scaling: float) -> torch.Tensor:
    """`(query + bias) * scaling` of `(H, B, T, D)` and `(H, D)`, in one piece of memory."""
    return torch.add(query, bias[:, None, None]).mul_(scaling).contiguous()


def _weights(
    wide: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    visible: torch.Tensor | None,
    window: int | None,
    in_place: bool = False,
) -> torch.Tensor:
    """The weights `(..., T, K)` of scores by distance `(..., T, K + 1)`, which are overwritten, and of scaled queries and
    keys of two leading dimensions; they may stand in the memory of the scores if they are used at once (`in_place`)."""
    length, num_keys = query.shape[2], key.shape[2]
    too_far = 0 if window is None else max(0, num_keys - window)
    if too_far:
        wide[..., :too_far].fill_(-torch.inf)
    if length > 1:
        wide[..., num_keys:].fill_(-torch.inf)
    content = query.flatten(0, 1), key.flatten(0, 1).mT
    scores = relative_shift(wide).flatten(0, 1)
    # the view of one head lies in one piece: the content term can be added where the position term stands
    in_place = in_place and scores.is_contiguous()
    scores = scores.baddbmm_(*content) if in_place else torch.baddbmm(scores, *content)
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
