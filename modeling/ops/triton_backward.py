"""The backward kernels of relative attention. Weights are made once more, from scores and the logarithms of their sums.

Three kernels, each of which owns what it sums, so that nothing is added up by atomic operations and two runs are equal bit
for bit:

    grad_of_queries    owns queries, goes over keys      the gradients of q, and of u and v for each tile
    grad_of_keys       owns keys, goes over queries      those of k and v
    grad_of_positions  owns distances, goes over queries that of r, for some rows of the batch

With s the scores, w the weights, o the output and g its gradient, that of a score is w (g . v - g . o), times the scaling.
The first kernel carries a block of distances from tile to tile as the forward one does, and its gradient with it: a tile
is the right one of a block, the next the left one, and then it is whole. The second one has other queries at each tile,
and makes both blocks. In the third one columns are distances: there the position term is a plain product, and what is by
key is turned.
"""

import triton
from triton import language as tl

from transformers_xl.modeling.ops.triton_tiles import (
    LOG2_E,
    by_distance,
    by_key,
    keys_of,
    load_queries,
    load_tile,
    place,
    product,
    sees,
    store_tile,
    wider,
)


@triton.jit(do_not_specialize=["length", "num_keys", "num_heads", "window"])
def grad_of_queries(
    inputs, known, grad_query, grad_content_bias, grad_position_bias, length, num_keys, num_heads, window,
    SCALING: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Also writes g . o of each query, the `means` that the other kernels read."""
    tile, batch, head = place(tl.cdiv(length, SIZE), num_heads)
    first_query = tile * SIZE
    content, position = load_queries(inputs, batch, head, first_query, length, WIDTH, PADDED, SIZE)
    TYPE: tl.constexpr = wider(content.dtype)
    g = load_tile(known.grad_output, batch, head, first_query, length, WIDTH, PADDED, SIZE)
    attended = load_tile(known.output, batch, head, first_query, length, WIDTH, PADDED, SIZE)
    mean = tl.sum(g.to(TYPE) * attended.to(TYPE), 1)[:, None]
    store_tile(known.means, mean, batch, head, first_query, length, 1, 1, SIZE)
    log_sum = load_tile(known.log_sums, batch, head, first_query, length, 1, 1, SIZE)
    start, stop = keys_of(first_query, length, num_keys, window, SIZE)
    column = length - SIZE - first_query
    query = first_query + tl.arange(0, SIZE)[:, None]
    r = load_tile(inputs.positions, 0, head, column + start, num_keys + 1, WIDTH, PADDED, SIZE)
    left = product(position, r.T, PRECISION)
    grad_left = tl.zeros((SIZE, SIZE), TYPE)
    grad_content = tl.zeros((SIZE, PADDED), TYPE)
    grad_position = tl.zeros((SIZE, PADDED), TYPE)
    for first_key in range(start, stop, SIZE):
        key = load_tile(inputs.key, batch, head, first_key, num_keys, WIDTH, PADDED, SIZE)
        value = load_tile(inputs.value, batch, head, first_key, num_keys, WIDTH, PADDED, SIZE)
        next_r = load_tile(inputs.positions, 0, head, column + first_key + SIZE, num_keys + 1, WIDTH, PADDED, SIZE)
        right = product(position, next_r.T, PRECISION)
        scores = by_key(left, left, right, SIZE, SIZE) + product(content, key.T, PRECISION)
        keys = first_key + tl.arange(0, SIZE)[None, :]
        seen = sees(inputs, batch, query, keys, length, num_keys, window)
        grad = grad_of_scores(scores, seen, log_sum, mean, product(g, value.T, PRECISION), SCALING)
        grad_content += product(grad.to(key.dtype), key, PRECISION)
        of_left, of_right = by_distance(grad, SIZE)
        grad_position += product((grad_left + of_left).to(r.dtype), r, PRECISION)
        left, r, grad_left = right, next_r, of_right
    grad_position += product(grad_left.to(r.dtype), r, PRECISION)
    store_tile(grad_query, grad_content + grad_position, batch, head, first_query, length, WIDTH, PADDED, SIZE)
    tiles = tl.cdiv(length, SIZE)
    store_tile(grad_content_bias, tl.sum(grad_content, 0)[None], batch, head, tile, tiles, WIDTH, PADDED, 1)
    store_tile(grad_position_bias, tl.sum(grad_position, 0)[None], batch, head, tile, tiles, WIDTH, PADDED, 1)


@triton.jit
def grad_of_scores(scores, seen, log_sum, mean, grad_weights, SCALING: tl.constexpr):
    """Gradients of unscaled scores, zeros where a query does not see the key."""
    return weights_of(scores, seen, log_sum, SCALING) * (grad_weights - mean) * SCALING


@triton.jit
def weights_of(scores, seen, log_sum, SCALING: tl.constexpr):
    return tl.where(seen, tl.exp2(scores * (SCALING * LOG2_E) - log_sum), 0.0)


@triton.jit(do_not_specialize=["length", "num_keys", "num_heads", "window"])
def grad_of_keys(
    inputs, known, grad_key, grad_value, length, num_keys, num_heads, window, SCALING: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """And of the values."""
    tile, batch, head = place(tl.cdiv(num_keys, SIZE), num_heads)
    first_key = tile * SIZE
    key = load_tile(inputs.key, batch, head, first_key, num_keys, WIDTH, PADDED, SIZE)
    value = load_tile(inputs.value, batch, head, first_key, num_keys, WIDTH, PADDED, SIZE)
    TYPE: tl.constexpr = wider(key.dtype)
    before = num_keys - length
    start, stop = tl.maximum(0, first_key - before), length
    if window is not None:
        stop = tl.minimum(length, first_key + SIZE - 1 + window - before)
    keys = first_key + tl.arange(0, SIZE)[None, :]
    grad_of_key = tl.zeros((SIZE, PADDED), TYPE)
    grad_of_value = tl.zeros((SIZE, PADDED), TYPE)
    column = length - SIZE + first_key  # of the table of positions, for the last query of the tile of query 0
    right_r = load_tile(inputs.positions, 0, head, column - start + SIZE, num_keys + 1, WIDTH, PADDED, SIZE)
    for first_query in range(start, stop, SIZE):
        content, position = load_queries(inputs, batch, head, first_query, length, WIDTH, PADDED, SIZE)
        g = load_tile(known.grad_output, batch, head, first_query, length, WIDTH, PADDED, SIZE)
        log_sum = load_tile(known.log_sums, batch, head, first_query, length, 1, 1, SIZE)
        mean = load_tile(known.means, batch, head, first_query, length, 1, 1, SIZE)
        left_r = load_tile(inputs.positions, 0, head, column - first_query, num_keys + 1, WIDTH, PADDED, SIZE)
        left, right = product(position, left_r.T, PRECISION), product(position, right_r.T, PRECISION)
        scores = by_key(left, left, right, SIZE, SIZE) + product(content, key.T, PRECISION)
        query = first_query + tl.arange(0, SIZE)[:, None]
        seen = sees(inputs, batch, query, keys, length, num_keys, window)
        weights = weights_of(scores, seen, log_sum, SCALING)
        grad_of_value += product(weights.to(g.dtype).T, g, PRECISION)
        grad = weights * (product(g, value.T, PRECISION) - mean) * SCALING
        grad_of_key += product(grad.to(key.dtype).T, content, PRECISION)
        right_r = left_r
    store_tile(grad_key, grad_of_key, batch, head, first_key, num_keys, WIDTH, PADDED, SIZE)
    store_tile(grad_value, grad_of_value, batch, head, first_key, num_keys, WIDTH, PADDED, SIZE)


@triton.jit(do_not_specialize=["num_rows", "per_part", "length", "num_keys", "num_heads", "window"])
def grad_of_positions(
    inputs, known, grad_r, num_rows, per_part, length, num_keys, num_heads, window,
    SCALING: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For `per_part` of the `num_rows` rows of the batch."""
    tile, part, head = place(tl.cdiv(num_keys + 1, SIZE), num_heads)
    first_column = tile * SIZE
    r = load_tile(inputs.positions, 0, head, first_column, num_keys + 1, WIDTH, PADDED, SIZE)
    grad_of_r = tl.zeros((SIZE, PADDED), wider(r.dtype))
    # query t is at distance K - 1 - c of key c - (T - 1) + t, which there has to be
    start, stop = tl.maximum(0, length - first_column - SIZE), length
    if window is not None:
        stop = tl.where(num_keys - first_column - SIZE < window, length, 0)
    m = tl.arange(0, SIZE)[:, None]
    n = tl.arange(0, SIZE)[None, :]
    for row in range(part * per_part, tl.minimum(num_rows, (part + 1) * per_part)):
        batch = tl.cast(row, tl.int64)
        for first_query in range(start, stop, SIZE):
            content, position = load_queries(inputs, batch, head, first_query, length, WIDTH, PADDED, SIZE)
            g = load_tile(known.grad_output, batch, head, first_query, length, WIDTH, PADDED, SIZE)
            log_sum = load_tile(known.log_sums, batch, head, first_query, length, 1, 1, SIZE)
            mean = load_tile(known.means, batch, head, first_query, length, 1, 1, SIZE)
            first_key = first_column - (length - 1) + first_query  # of the tile's first query and column
            by_column = turned(inputs.key, content, batch, head, first_key, num_keys, WIDTH, PADDED, SIZE, PRECISION)
            scores = by_column + product(position, r.T, PRECISION)
            grad_weights = turned(inputs.value, g, batch, head, first_key, num_keys, WIDTH, PADDED, SIZE, PRECISION)
            query, keys = first_query + m, first_key + n + m
            seen = sees(inputs, batch, query, keys, length, num_keys, window)
            grad = grad_of_scores(scores, seen, log_sum, mean, grad_weights, SCALING)
            grad_of_r += product(grad.to(position.dtype).T, position, PRECISION)
    store_tile(grad_r, grad_of_r, part, head, first_column, num_keys + 1, WIDTH, PADDED, SIZE)


@triton.jit
def turned(
    keys, queries, batch, head, first, num_keys,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Products of query m and key `first` + n + m as row m, column n: of two tiles of keys."""
    m = tl.arange(0, SIZE)[:, None]
    n = tl.arange(0, SIZE)[None, :]
    near = load_tile(keys, batch, head, first, num_keys, WIDTH, PADDED, SIZE)
    far = load_tile(keys, batch, head, first + SIZE, num_keys, WIDTH, PADDED, SIZE)
    both = tl.where(n >= m, product(queries, near.T, PRECISION), product(queries, far.T, PRECISION))
    return tl.gather(both, (n + m) % SIZE, 1)
