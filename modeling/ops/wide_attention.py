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
columns, the triangle after the queries is masked in the view (`_future`).

For training, a segment is cut into blocks of queries, and a block reads only the keys that its window reaches. On the
left, T = 128 queries after a memory of 128, with a window of 129; on the right, what the queries of one block see (x) of
its keys, for three of them and a window of 4:

    key      0       32      64      96      128     160     192     224     256
             |----------- memory -----------||---------- segment -----------|    key  0 1 2 3 4 5
    block 0  [======================================]                              a  x x x x . .
    block 1          [======================================]                      b  . x x x x .
    block 2                  [======================================]              c  . . x x x x
    block 3                          [======================================]

Far columns have no place in that picture: what a memory holds beside the window lies where it says. Their scores by
distance are a product of the same kind, from which each query takes those of its columns (`gather`; the backward pass adds
them up there). They stand before the others under one softmax, so that no keys are copied.

A block, times some heads and rows of the batch, is a piece: about half a million scores, which stay in the processor's
cache. New memory costs more than arithmetic: the pieces of a call are worked on in the same space.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch.autograd.function import once_differentiable

from transformers_xl.modeling.ops.columns import keep_last
from transformers_xl.modeling.ops.one_token import one_token_attention, with_far_columns
from transformers_xl.modeling.ops.relative_attention import FarColumns, relative_shift, table_rows

Tensors = tuple[torch.Tensor, ...]

# Scores of a piece: they are made, normalised and used while they are still in the processor's cache. Without gradients,
# a head with at least ONE_HEAD of them is a piece, and every head is worked on in the same buffer.
PIECE, ONE_HEAD = 2**19, 2**16
READ_BLOCK = 64  # shortest block of queries that is read at once, where nothing learns
BLOCK = 32  # shortest block of queries that is worked on apart from the others


class _Columns(NamedTuple):
    """Keys and values that stand side by side, and what the queries know of them.

    Args:
        key, value: `(B, H, K, D)`.
        positions: `(H, N, D)`, projected positions: of the distances K-1 .. -1, or those that `table_index` names.
        visible: `(B or 1, 1, T, K)` bool; None: all.
        table_index: `(B or 1, 1, T, K)`, the row of `positions` for each query and column; None: columns are distances.
    """

    key: torch.Tensor
    value: torch.Tensor
    positions: torch.Tensor
    visible: torch.Tensor | None = None
    table_index: torch.Tensor | None = None

    @classmethod
    def of(cls, far: FarColumns, positions: torch.Tensor) -> Self:
        """Far columns; the last row of `positions` `(H, P, D)` is the distance -1."""
        assert far.distance is not None, "`with_far_columns` reads these"
        rows = positions.shape[1] - 1 - far.min_distance
        index = table_rows(far.distance, positions.shape[1]).clamp(max=rows - 1)
        return cls(far.key, far.value, positions.narrow(1, 0, rows), far.visible, index)

    def heads_first(self) -> Self:
        """The same with heads before rows, so that the queries of all rows meet the positions of a head in one product."""
        key, value = self.key.transpose(0, 1).contiguous(), self.value.transpose(0, 1).contiguous()
        visible, index = (None if each is None else each.transpose(0, 1) for each in (self.visible, self.table_index))
        return type(self)(key, value, self.positions, visible, index)

    def part(self, piece: "_Piece") -> Self:
        """What a piece reads of them, heads first."""
        keys, positions = piece.keys, self.positions[piece.heads]
        if self.table_index is not None:
            keys = slice(None)
        else:
            positions = positions[:, -1 - (keys.stop - keys.start) :]
        visible, index = (
            None if each is None else each[:, piece.rows if each.shape[1] > 1 else slice(None), piece.queries, columns]
            for each, columns in ((self.visible, keys), (self.table_index, slice(None)))
        )
        rows = piece.heads, piece.rows, keys
        return type(self)(self.key[rows], self.value[rows], positions, visible, index)

    def block(self, queries: slice, keys: slice | None = None) -> Self:
        """What some queries see of some of its columns, of all where none are named."""
        visible, index = (None if each is None else each[:, :, queries] for each in (self.visible, self.table_index))
        if keys is None:
            return self._replace(visible=visible, table_index=index)
        key, value = self.key[:, :, keys], self.value[:, :, keys]
        positions = keep_last(self.positions, key.shape[2] + 1)
        return type(self)(key, value, positions, None if visible is None else visible[..., keys])

    def zeros(self) -> Self:
        """Where gradients are summed."""
        return self._replace(**{name: torch.zeros_like(getattr(self, name)) for name in ("key", "value", "positions")})


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
    far: FarColumns | None = None,
) -> torch.Tensor:
    """Attention with relative positions, in float32 or float64.

    Args:
        query: `(B, H, T, D)`, of the last T of K positions.
        key: `(B, H, K, D)`.
        value: `(B, H, K, D)`.
        positions: `(H, >= K + 1, D)`, projected positions of the distances .., K-1 .. -1.
        content_bias: u, `(H, D)`.
        position_bias: v, `(H, D)`.
        visible: `(B, 1, T, K)` bool where rows differ (padding, documents); None where a query sees what `window` says.
        window: a query sees this many positions, itself included; None: all up to itself.
        scaling: factor of the scores.
        recompute: keep no weights for the backward pass, but make them once more.
        far: further columns.

    Returns:
        `(B, T, H, D)`. A query that sees nothing gets zeros.

    Raises:
        RuntimeError: derivatives of its gradients are asked for; `attn_implementation="eager"` has them.
    """
    queries = query, content_bias, position_bias
    tensors = (*queries, key, value, positions, *(() if far is None else far[:2]))
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    follows_window = far is not None and far.distance is None
    if query.shape[2] == 1 and not learns and (far is None or (follows_window and visible is None)):
        return one_token_attention(*queries, key, value, positions, visible, window, scaling, far)
    if far is not None and follows_window:
        key, value = with_far_columns(key, value, far, window)
        far = window = None
    columns = [_Columns(key, value, keep_last(positions, key.shape[2] + 1), visible)]
    if far is not None:
        columns.append(_Columns.of(far, positions))
    if learns:
        flat = [tensor for each in columns for tensor in each]
        return _WideAttention.apply(window, scaling, recompute, *queries, *flat)
    return _without_gradients(queries, columns, window, scaling)


def _without_gradients(queries: Tensors, columns: list[_Columns], window: int | None, scaling: float) -> torch.Tensor:
    """One block of queries after the other, each with the keys that its window reaches: a long text costs no more time or
    memory than its length times the window."""
    query, content_bias, position_bias = queries
    (batch, num_heads, length, _), num_keys = query.shape, columns[0].key.shape[2]
    attn_output = query.new_empty(batch, length, num_heads, columns[0].value.shape[3])
    content_query, position_query = ((query + bias[:, None]) * scaling for bias in (content_bias, position_bias))
    block = length if window is None else max(window, READ_BLOCK)
    for start in range(0, length, block):
        stop = min(start + block, length)
        last = num_keys - length + stop
        some = slice(start, stop), slice(0 if window is None else max(0, last - (stop - start) - window + 1), last)
        parts = [columns[0].block(*some), *(far.block(some[0]) for far in columns[1:])]
        content, position = (each[:, :, some[0]] for each in (content_query, position_query))
        _read_block(attn_output[:, some[0]], content, position, parts, window)
    return attn_output


def _read_block(
    attn_output: torch.Tensor,
    content_query: torch.Tensor,
    position_query: torch.Tensor,
    columns: list[_Columns],
    window: int | None,
) -> None:
    """Fill `attn_output` `(B, T, H, D)`: some rows, or a row's heads one after the other in one space; keys and values are
    read as they lie."""
    (batch, num_heads, length, _), num_keys = content_query.shape, columns[0].key.shape[2]
    one_head = length * num_keys >= ONE_HEAD
    heads = 1 if one_head else num_heads
    rows = 1 if one_head else max(1, PIECE // (length * num_keys * num_heads))
    # an exported graph takes no memory for its results
    compiling = torch.compiler.is_compiling()
    space = None if compiling else content_query.new_empty(min(rows, batch), heads, length, num_keys + 1)
    for row in range(0, batch, rows):
        for head in range(0, num_heads, heads):
            some = slice(row, row + rows), slice(head, head + heads)
            parts = [_some_rows(each, *some) for each in columns]
            out = None if space is None else space[: batch - row]
            wide = torch.matmul(position_query[some], parts[0].positions.mT, out=out)
            wides = [wide, *(position_query[some] @ far.positions.mT for far in parts[1:])]
            weights = _weights(wides, content_query[some], parts, window, in_place=True)
            attn_output[some[0], :, some[1]] = _attended(weights, parts).transpose(1, 2)


def _some_rows(columns: _Columns, rows: slice, heads: slice) -> _Columns:
    key, value, positions, visible, index = columns
    if visible is not None and visible.shape[0] > 1:
        visible = visible[rows]
    if index is not None and index.shape[0] > 1:
        index = index[rows]
    return _Columns(key[rows, heads], value[rows, heads], positions[heads], visible, index)


class _WideAttention(torch.autograd.Function):
    """Heads come first inside: the queries of all rows meet the positions of a head in one product."""

    @staticmethod
    def forward(ctx, window, scaling, recompute, query, content_bias, position_bias, *flat) -> torch.Tensor:
        queries = query.transpose(0, 1).contiguous(), content_bias, position_bias
        columns = [each.heads_first() for each in _columns_of(flat)]
        heads, batch, length, _ = queries[0].shape
        attn_output = query.new_empty(batch, length, heads, columns[0].value.shape[3])
        pieces = _pieces(queries[0], columns, window)
        spaces = _spaces(query, pieces, columns)
        kept = []
        for piece in pieces:
            parts = [each.part(piece) for each in columns]
            weights = _piece_weights(piece, queries, parts, window, scaling, spaces)
            attn_output[piece.rows, piece.queries, piece.heads].copy_(_attended(weights, parts).permute(1, 2, 0, 3))
            if not recompute:
                kept.append(weights)
        ctx.save_for_backward(*queries, attn_output, *(tensor for each in columns for tensor in each), *kept)
        ctx.window, ctx.scaling, ctx.num_columns = window, scaling, len(flat)
        return attn_output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output: torch.Tensor) -> tuple:
        saved = ctx.saved_tensors  # asking twice would run an activation checkpoint twice
        queries, attn_output, kept = saved[:3], saved[3], saved[4 + ctx.num_columns :]
        columns = _columns_of(saved[4 : 4 + ctx.num_columns])
        grad_columns = [each.zeros() for each in columns]
        grad_query, *grad_biases = torch.empty_like(queries[0]), *(torch.zeros_like(bias) for bias in queries[1:])
        # what the softmax takes from each score's gradient: the mean of the weights' gradients under the weights
        means = (grad_output * attn_output).sum(-1).permute(2, 0, 1)[..., None]
        grad_output = grad_output.permute(2, 0, 1, 3)
        pieces = _pieces(queries[0], columns, ctx.window)
        spaces, space = _spaces(grad_output, pieces, columns), _space(grad_output, pieces, columns)
        for number, piece in enumerate(pieces):
            parts, grad_parts = ([each.part(piece) for each in both] for both in (columns, grad_columns))
            weights = kept[number] if kept else _piece_weights(piece, queries, parts, ctx.window, ctx.scaling, spaces)
            grad_scores = _grad_scores(piece, weights, parts, grad_parts, grad_output, means, space)
            grad_content, grad_position = _grad_terms(
                piece, grad_scores, queries, parts, grad_parts, ctx.scaling, spaces
            )
            piece.queries_of(grad_query).copy_(grad_content + grad_position)
            for grad_bias, grad in zip(grad_biases, (grad_content, grad_position), strict=True):
                grad_bias[piece.heads] += grad.sum((1, 2))
        flat = [(each.key.transpose(0, 1), each.value.transpose(0, 1), each.positions) for each in grad_columns]
        return (
            *[None] * 3,
            grad_query.transpose(0, 1),
            *grad_biases,
            *(g for each in flat for g in (*each, None, None)),
        )


def _columns_of(flat: Sequence[torch.Tensor]) -> list[_Columns]:
    width = len(_Columns._fields)
    return [_Columns(*flat[start : start + width]) for start in range(0, len(flat), width)]


class _Piece(NamedTuple):
    """What is worked on together: queries of some rows and heads, and the keys that the window lets them see."""

    heads: slice
    rows: slice
    queries: slice
    keys: slice

    def shape(self, num_columns: int) -> tuple[int, ...]:
        """That of scores of so many columns."""
        heads, rows, queries = (part.stop - part.start for part in self[:3])
        return heads, rows, queries, num_columns

    @property
    def num_keys(self) -> int:
        return self.keys.stop - self.keys.start

    def queries_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its part of `(H, B, T, ...)`."""
        return tensor[self.heads, self.rows, self.queries]


def _pieces(query: torch.Tensor, columns: list[_Columns], window: int | None) -> list[_Piece]:
    """Some PIECE scores each: several heads of all rows, or some rows of one head."""
    num_heads, batch, length = query.shape[:3]
    num_keys, num_far, pieces = columns[0].key.shape[2], _num_far(columns), []
    # the first queries of a block see keys that its last ones do not, and the other way round: small blocks waste less
    block = max(BLOCK, length // 4) if num_keys <= 4 * length else length
    for start in range(0, length, block):
        stop = min(start + block, length)
        remembered = num_keys - length
        first = 0 if window is None else max(0, remembered + start + 1 - window)
        queries, keys = slice(start, stop), slice(first, remembered + stop)
        per_row = (stop - start) * (keys.stop - keys.start + num_far)
        rows = min(batch, max(1, PIECE // per_row))
        heads = min(num_heads, max(1, PIECE // (per_row * batch)))
        pieces += [
            _Piece(slice(head, min(head + heads, num_heads)), slice(row, min(row + rows, batch)), queries, keys)
            for head in range(0, num_heads, heads)
            for row in range(0, batch, rows)
        ]
    return pieces


def _num_far(columns: list[_Columns]) -> int:
    return sum(each.key.shape[2] for each in columns[1:])


def _space(like: torch.Tensor, pieces: list[_Piece], columns: list[_Columns]) -> torch.Tensor:
    """Memory for the scores of any of the pieces, one after the other."""
    num_far = _num_far(columns)
    return like.new_empty(max(math.prod(piece.shape(piece.num_keys + num_far)) for piece in pieces))


def _spaces(like: torch.Tensor, pieces: list[_Piece], columns: list[_Columns]) -> list[torch.Tensor]:
    """Memory for the scores by distance of any of the pieces, one after the other: of each kind of columns."""
    near = max(math.prod(piece.shape(piece.num_keys + 1)) for piece in pieces)
    far = [max(math.prod(piece.shape(each.positions.shape[1])) for piece in pieces) for each in columns[1:]]
    return [like.new_empty(size) for size in (near, *far)]


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


def _piece_weights(
    piece: _Piece,
    queries: Tensors,
    parts: list[_Columns],
    window: int | None,
    scaling: float,
    spaces: list[torch.Tensor],
) -> torch.Tensor:
    """The weights `(H, B, T, K)` of a piece; `spaces` hold the scores by distance meanwhile."""
    query = piece.queries_of(queries[0])
    content_query, position_query = (_biased(query, bias[piece.heads], scaling) for bias in queries[1:])
    wides = []
    for part, space in zip(parts, spaces, strict=True):
        wides.append(_shaped(space, piece.shape(part.positions.shape[1])))
        _bmm(position_query.flatten(1, 2), part.positions.mT, out=wides[-1].flatten(1, 2))
    return _weights(wides, content_query, parts, window)


def _weights(
    wides: list[torch.Tensor],
    query: torch.Tensor,
    parts: list[_Columns],
    window: int | None,
    in_place: bool = False,
) -> torch.Tensor:
    """The weights `(..., T, S + K)` of scores by distance, which are overwritten, and of scaled queries and keys of two
    leading dimensions, the far columns first; they may stand in the memory of the scores if they are used at once
    (`in_place`)."""
    wide, length, num_keys = wides[0], query.shape[2], parts[0].key.shape[2]
    too_far = 0 if window is None else max(0, num_keys - window)
    if too_far:
        wide[..., :too_far].fill_(-torch.inf)
    if length > 1:
        wide[..., num_keys:].fill_(-torch.inf)
    scores = relative_shift(wide)
    # the view of one head lies in one piece: the content term can be added where the position term stands
    if not in_place or len(parts) > 1 or not scores.is_contiguous():
        num_far = _num_far(parts)
        scores = wide.new_empty(*wide.shape[:3], num_far + num_keys)
        scores.narrow(-1, num_far, num_keys).copy_(relative_shift(wide))
    views = _views(scores, parts)
    for view, part, by_distance in zip(views, parts, wides, strict=True):
        if part.table_index is not None:
            view.copy_(by_distance.gather(-1, part.table_index.expand_as(view)))
        view.flatten(0, 1).baddbmm_(query.flatten(0, 1), part.key.flatten(0, 1).mT)
        if part.visible is not None:
            view.masked_fill_(~part.visible, -torch.inf)
    # after a query, the view shows what the next query's row begins with: up to `length - 2` of its farthest distances
    if too_far < length - 2:
        views[0][..., num_keys - length :] += _future(length, scores)
    weights = torch.softmax(scores, dim=-1, out=scores)
    seen = [part.visible.any(dim=-1, keepdim=True) for part in parts if part.visible is not None]
    if len(seen) == len(parts):  # else each query sees something
        weights.masked_fill_(~(seen[0] if len(seen) == 1 else seen[0] | seen[1]), 0.0)
    return weights


def _views(scores: torch.Tensor, parts: list[_Columns]) -> list[torch.Tensor]:
    """What belongs to each of the `parts`: the far ones stand in front of the near ones."""
    if len(parts) == 1:
        return [scores]
    num_far = _num_far(parts)
    return [scores.narrow(-1, num_far, parts[0].key.shape[2]), scores.narrow(-1, 0, num_far)]


def _attended(weights: torch.Tensor, parts: list[_Columns]) -> torch.Tensor:
    """The values under their weights, `(..., T, D)`."""
    products = [view @ part.value for view, part in zip(_views(weights, parts), parts, strict=True)]
    return products[0] if len(products) == 1 else products[0].add_(products[1])


def _future(length: int, like: torch.Tensor) -> torch.Tensor:
    return torch.full((length, length), -torch.inf, dtype=like.dtype, device=like.device).triu_(1)


def _grad_scores(
    piece: _Piece,
    weights: torch.Tensor,
    parts: list[_Columns],
    grad_parts: list[_Columns],
    grad_output: torch.Tensor,
    means: torch.Tensor,
    space: torch.Tensor,
) -> torch.Tensor:
    """The gradient of the scores of a piece, in `space`; that of the values is added to `grad_parts`."""
    grad_attended = piece.queries_of(grad_output).contiguous()
    grad_scores = _shaped(space, weights.shape)
    both = zip(_views(weights, parts), _views(grad_scores, parts), parts, grad_parts, strict=True)
    for weight, grad, part, grad_part in both:
        grad_part.value.add_(weight.mT @ grad_attended)
        _bmm(grad_attended.flatten(0, 1), part.value.flatten(0, 1).mT, out=grad.flatten(0, 1))
    return grad_scores.sub_(piece.queries_of(means)).mul_(weights)


def _grad_terms(
    piece: _Piece,
    grad_scores: torch.Tensor,
    queries: Tensors,
    parts: list[_Columns],
    grad_parts: list[_Columns],
    scaling: float,
    spaces: list[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of the queries of both terms, `(H, B, T, D)`; those of keys and positions are added to `grad_parts`."""
    query = piece.queries_of(queries[0])
    content_query, position_query = (_biased(query, bias[piece.heads], scaling) for bias in queries[1:])
    grad_content, grad_position = torch.zeros_like(query), torch.zeros_like(query)
    for grad, part, grad_part, space in zip(_views(grad_scores, parts), parts, grad_parts, spaces, strict=True):
        grad_wide = _shaped(space, piece.shape(part.positions.shape[1]))
        if part.table_index is None:
            relative_shift(grad_wide).copy_(grad)
            grad_wide.flatten(-2)[..., : grad.shape[-2] - 1] = 0  # what the view leaves out
            grad_wide[..., -1, -1] = 0
        else:
            grad_wide.zero_().scatter_add_(-1, part.table_index.expand_as(grad), grad)
        grad_content += grad @ part.key
        grad_part.key.add_(grad.mT @ content_query)
        grad_wide = grad_wide.flatten(1, 2)
        grad_position += torch.bmm(grad_wide, part.positions).view_as(query)
        grad_part.positions.add_(torch.bmm(grad_wide.mT, position_query.flatten(1, 2)))
    return grad_content.mul_(scaling), grad_position.mul_(scaling)
