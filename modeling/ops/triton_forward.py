"""The forward kernels of relative attention: a softmax in one pass (Dao et al., 2022, https://arxiv.org/abs/2205.14135),
the position term of a tile as `triton_tiles` shows it; for a single query, its keys split among programs.

A program owns the queries of a tile and goes over the tiles of keys that the window lets them see. What it keeps of each
query is the logarithm of its sum of exponentials, with base 2, from which the backward pass makes the weights again.
"""

import triton
from triton import language as tl

from transformers_xl.modeling.ops.triton_tiles import (
    LOG2_E,
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
def attend_tiles(
    inputs, output, log_sums, length, num_keys, num_heads, window, SCALING: tl.constexpr, WIDTH: tl.constexpr,
    PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of ROWS queries; ROWS is COLUMNS, or twice as many."""
    tile, batch, head = place(tl.cdiv(length, ROWS), num_heads)
    first_query = tile * ROWS
    content, position = load_queries(inputs, batch, head, first_query, length, WIDTH, PADDED, ROWS)
    TYPE: tl.constexpr = wider(content.dtype)
    greatest = tl.full((ROWS,), float("-inf"), TYPE)
    total = tl.zeros((ROWS,), TYPE)
    attended = tl.zeros((ROWS, PADDED), TYPE)
    start, stop = keys_of(first_query, length, num_keys, window, ROWS)
    column = length - ROWS - first_query  # of the table of positions, for the last query and key 0
    r = load_tile(inputs.positions, 0, head, column + start, num_keys + 1, WIDTH, PADDED, COLUMNS)
    left = product(position, r.T, PRECISION)
    middle = left
    if ROWS > COLUMNS:
        r = load_tile(inputs.positions, 0, head, column + start + COLUMNS, num_keys + 1, WIDTH, PADDED, COLUMNS)
        middle = product(position, r.T, PRECISION)
    query = first_query + tl.arange(0, ROWS)[:, None]
    for first_key in range(start, stop, COLUMNS):
        key = load_tile(inputs.key, batch, head, first_key, num_keys, WIDTH, PADDED, COLUMNS)
        r = load_tile(inputs.positions, 0, head, column + first_key + ROWS, num_keys + 1, WIDTH, PADDED, COLUMNS)
        right = product(position, r.T, PRECISION)
        scores = by_key(left, middle, right, ROWS, COLUMNS) + product(content, key.T, PRECISION)
        left = middle if ROWS > COLUMNS else right
        middle = right
        keys = first_key + tl.arange(0, COLUMNS)[None, :]
        seen = sees(inputs, batch, query, keys, length, num_keys, window)
        value = load_tile(inputs.value, batch, head, first_key, num_keys, WIDTH, PADDED, COLUMNS)
        scores = tl.where(seen, scores * (SCALING * LOG2_E), float("-inf"))
        greatest, weights, decay = next_weights(greatest, scores)
        total = total * decay + tl.sum(weights, 1)
        attended = attended * decay[:, None] + product(weights.to(value.dtype), value, PRECISION)
    attended, log_sum = divided(attended, greatest, total)
    store_tile(output, attended, batch, head, first_query, length, WIDTH, PADDED, ROWS)
    store_tile(log_sums, log_sum[:, None], batch, head, first_query, length, 1, 1, ROWS)


@triton.jit
def next_weights(greatest, scores):
    """The greatest score of each row with those of one more tile, -inf where a key is not seen; the exponentials of these,
    with base 2, and the factor of what was summed before."""
    new = tl.maximum(greatest, tl.max(scores, 1))
    base = tl.where(new == float("-inf"), 0.0, new)  # of a row that has seen nothing: no -inf less -inf
    return new, tl.exp2(scores - base[:, None]), tl.exp2(greatest - base)


@triton.jit
def divided(attended, greatest, total):
    """Values by their sums of weights, zeros of a row that saw nothing, and the logarithms of the sums, inf there: a weight
    is 2 to the power of its score less that."""
    nothing = total == 0.0
    divisor = tl.where(nothing, 1.0, total)
    return attended / divisor[:, None], tl.where(nothing, float("inf"), greatest + tl.log2(divisor))


@triton.jit(do_not_specialize=["num_parts", "per_part", "length", "num_keys", "num_heads", "window"])
def attend_part(
    inputs, outputs, log_sums, num_parts, per_part, length, num_keys, num_heads, window,
    SCALING: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Attention of one query to `per_part` of its keys. Column j of the positions is the distance of key j: no shift."""
    part, batch, head = place(num_parts, num_heads)
    content, position = load_queries(inputs, batch, head, 0, length, WIDTH, PADDED, 1)
    TYPE: tl.constexpr = wider(content.dtype)
    start, stop = keys_of(0, length, num_keys, window, 1)
    start += part * per_part
    stop = tl.minimum(stop, start + per_part)
    greatest = tl.full((1,), float("-inf"), TYPE)
    total = tl.zeros((1,), TYPE)
    attended = tl.zeros((1, PADDED), TYPE)
    for first_key in range(start, stop, COLUMNS):
        key = load_tile(inputs.key, batch, head, first_key, stop, WIDTH, PADDED, COLUMNS)
        r = load_tile(inputs.positions, 0, head, first_key, stop, WIDTH, PADDED, COLUMNS)
        scores = tl.sum(content.to(TYPE) * key.to(TYPE) + position.to(TYPE) * r.to(TYPE), 1)[None, :]
        keys = first_key + tl.arange(0, COLUMNS)[None, :]
        seen = sees(inputs, batch, keys * 0, keys, length, num_keys, window) & (keys < stop)
        scores = tl.where(seen, scores * (SCALING * LOG2_E), float("-inf"))
        value = load_tile(inputs.value, batch, head, first_key, stop, WIDTH, PADDED, COLUMNS)
        greatest, weights, decay = next_weights(greatest, scores)
        total = total * decay + tl.sum(weights, 1)
        attended = attended * decay[:, None] + tl.sum(weights.T * value.to(TYPE), 0)[None, :]
    attended, log_sum = divided(attended, greatest, total)
    store_tile(outputs, attended, batch, head, part, num_parts, WIDTH, PADDED, 1)
    store_tile(log_sums, log_sum[:, None], batch, head, part, num_parts, 1, 1, 1)


@triton.jit(do_not_specialize=["num_heads", "num_parts"])
def join_parts(
    parts, part_log_sums, output, log_sums, num_heads, num_parts,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Of all `num_parts`, at most PARTS, of a query: each weighs as much as its sum of exponentials."""
    _, batch, head = place(1, num_heads)
    attended = load_tile(parts, batch, head, 0, num_parts, WIDTH, PADDED, PARTS)
    part_sums = load_tile(part_log_sums, batch, head, 0, num_parts, 1, 1, PARTS).T
    there = (tl.arange(0, PARTS)[None, :] < num_parts) & (part_sums != float("inf"))
    greatest = tl.full((1,), float("-inf"), part_sums.dtype)
    greatest, weights, _ = next_weights(greatest, tl.where(there, part_sums, float("-inf")))
    joined, log_sum = divided(tl.sum(weights.T * attended, 0)[None, :], greatest, tl.sum(weights, 1))
    store_tile(output, joined, batch, head, 0, 1, WIDTH, PADDED, 1)
    store_tile(log_sums, log_sum[:, None], batch, head, 0, 1, 1, 1, 1)
