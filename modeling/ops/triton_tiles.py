"""What the Triton kernels of relative attention share: reading a tile, who sees whom in it, and scores by distance as
scores by key. https://triton-lang.org

A tile is some queries and some keys. What its position term needs are the distances between them: neighbours in the table
of positions, one for every diagonal of the tile. They are cut into blocks as long as the tile has keys. For four queries
a .. d and four keys, the product with two blocks of distances, left and right, and what becomes of it (a5: query a and
column 5 of the two blocks):

    left          right            by key          where it stands
    a0 a1 a2 a3 | a4 a5 a6 a7      a3 a4 a5 a6     a4 a5 a6 a3  turned to the left by 3
    b0 b1 b2 b3 | b4 b5 b6 b7      b2 b3 b4 b5  =  b4 b5 b2 b3                        2
    c0 c1 c2 c3 | c4 c5 c6 c7      c1 c2 c3 c4     c4 c1 c2 c3                        1
    d0 d1 d2 d3 | d4 d5 d6 d7      d0 d1 d2 d3     d0 d1 d2 d3                        0

The last picture takes each number where it stands, from the left block or from the right one: a selection that moves
nothing. To turn the rows is one `gather`. The next four keys need the distances from column 4 on: the right block of
this tile is the left one of the next, and its product is carried in registers. One product a tile makes the position term.

Only `modeling.auto` imports the kernels, where Triton is installed; the code beside saved weights does without.
"""

from typing import NamedTuple

import torch
import triton
from transformers.utils import is_triton_available
from triton import language as tl

if not is_triton_available("3.6"):
    raise ImportError(
        "The kernels of relative attention were proved with Triton 3.6 and 3.7: an older one is left alone."
    )

LOG2_E = tl.constexpr(1.4426950408889634)  # the kernels' exponents have base 2


class Strided(NamedTuple):
    """A tensor `(B, H, N, D)` as a kernel takes it: its memory, and the distances in it of neighbours."""

    memory: torch.Tensor
    batch: int
    head: int
    row: int
    column: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Strided":
        return cls(tensor, *tensor.stride())


class Inputs(NamedTuple):
    """What all kernels read: queries `(B, H, T, D)`, keys and values `(B, H, K, D)`, positions `(1, H, K + 1, D)`, the
    biases `(1, H, 1, D)`, and `visible` `(B, 1, T, K)` or None."""

    query: Strided
    key: Strided
    value: Strided
    positions: Strided
    content_bias: Strided
    position_bias: Strided
    visible: Strided | None

    @classmethod
    def of(cls, query, key, value, positions, content_bias, position_bias, visible) -> "Inputs":
        """Of the tensors that `wide_attention` takes; nothing is copied."""
        return cls(
            query=Strided.of(query),
            key=Strided.of(key),
            value=Strided.of(value),
            positions=Strided.of(positions[None]),
            content_bias=Strided.of(content_bias[None, :, None]),
            position_bias=Strided.of(position_bias[None, :, None]),
            visible=None if visible is None else Strided.of(visible.expand(len(query), -1, -1, -1).view(torch.uint8)),
        )


class Known(NamedTuple):
    """What the backward kernels know of the forward pass: the output and its gradient, `(B, H, T, D)`, and of each query,
    `(B, H, T, 1)`, the logarithm of its sum of exponentials, with base 2, and the product of output and gradient, which
    `grad_of_queries` writes for the others."""

    output: Strided
    grad_output: Strided
    log_sums: Strided
    means: Strided


class Sizes(NamedTuple):
    """What each kernel is told in this order. The last three are constants in it; a width is padded to a power of two."""

    length: int
    num_keys: int
    num_heads: int
    window: int | None
    scaling: float
    width: int
    padded: int

    @classmethod
    def of(cls, query: torch.Tensor, key: torch.Tensor, window: int | None, scaling: float) -> "Sizes":
        _, heads, length, width = query.shape
        return cls(length, key.shape[2], heads, window, scaling, width, max(16, triton.next_power_of_2(width)))


class Tile(NamedTuple):
    """How many queries (or what a kernel owns in their place) and keys are worked on at once, and by how many warps."""

    rows: int
    columns: int
    warps: int
    stages: int


@triton.jit
def load_tile(tensor, batch, head, first, count, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """Rows `first` .. of a head, `(ROWS, PADDED)`; zeros where they are none of the `count` that there are."""
    rows = first + tl.arange(0, ROWS)
    columns = tl.arange(0, PADDED)
    inside = ((rows >= 0) & (rows < count))[:, None]
    if WIDTH < PADDED:
        inside = inside & (columns < WIDTH)[None, :]
    start = tensor.memory + batch * tensor.batch + head * tensor.head
    places = rows[:, None].to(tl.int64) * tensor.row + columns[None, :] * tensor.column
    return tl.load(start + places, mask=inside, other=0.0)


@triton.jit
def store_tile(tensor, tile, batch, head, first, count, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """The other way round."""
    rows = first + tl.arange(0, ROWS)
    columns = tl.arange(0, PADDED)
    inside = (rows < count)[:, None] & (columns < WIDTH)[None, :]
    start = tensor.memory + batch * tensor.batch + head * tensor.head
    places = rows[:, None].to(tl.int64) * tensor.row + columns[None, :] * tensor.column
    tl.store(start + places, tile.to(tensor.memory.dtype.element_ty), mask=inside)


@triton.jit
def load_queries(inputs, batch, head, first, length, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """`q + u` and `q + v`, in the type of the queries."""
    query = load_tile(inputs.query, batch, head, first, length, WIDTH, PADDED, ROWS)
    content_bias = load_tile(inputs.content_bias, 0, head, 0, 1, WIDTH, PADDED, 1)
    position_bias = load_tile(inputs.position_bias, 0, head, 0, 1, WIDTH, PADDED, 1)
    # a sum of two numbers of 16 bits is rounded once, and never made in bfloat16, which processors lack
    wide = query.to(wider(query.dtype))
    content = (wide + content_bias.to(wide.dtype)).to(query.dtype)
    return content, (wide + position_bias.to(wide.dtype)).to(query.dtype)


@triton.constexpr_function
def wider(dtype):
    """The type that sums are made in."""
    return tl.float64 if dtype == tl.float64 else tl.float32


@triton.jit
def product(left, right, PRECISION: tl.constexpr):
    return tl.dot(left, right, input_precision=PRECISION, out_dtype=wider(left.dtype))


@triton.jit
def by_key(left, middle, right, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Scores of neighbouring blocks of distances as scores by key: row m, column n is column n - m + ROWS - 1 of all. Of as
    many queries as keys two blocks are read, left and right; of twice as many, the upper half reads the last two of
    three, and the lower half the first two."""
    if ROWS > SIZE:
        upper = tl.arange(0, ROWS)[:, None] < SIZE
        left, right = tl.where(upper, middle, left), tl.where(upper, right, middle)
    m = tl.arange(0, ROWS)[:, None] % SIZE
    n = tl.arange(0, SIZE)[None, :]
    return tl.gather(tl.where(n >= SIZE - 1 - m, left, right), (n - m - 1 + SIZE) % SIZE, 1)


@triton.jit
def by_distance(tile, SIZE: tl.constexpr):
    """The way back, of a square tile: what belongs to the left block, and what to the right one, with zeros beside it."""
    m = tl.arange(0, SIZE)[:, None]
    n = tl.arange(0, SIZE)[None, :]
    turned = tl.gather(tile, (n + m + 1) % SIZE, 1)
    return tl.where(n >= SIZE - 1 - m, turned, 0.0), tl.where(n >= SIZE - 1 - m, 0.0, turned)


@triton.jit
def sees(inputs, batch, query, key, length, num_keys, window):
    """Whether queries see keys, for indices that broadcast to the shape of a tile."""
    distance = num_keys - length + query - key
    seen = (distance >= 0) & (query < length) & (key >= 0) & (key < num_keys)
    if window is not None:
        seen = seen & (distance < window)
    if inputs.visible is not None:
        start = inputs.visible.memory + batch * inputs.visible.batch
        places = query.to(tl.int64) * inputs.visible.row + key * inputs.visible.column
        seen = seen & (tl.load(start + places, mask=seen, other=0) != 0)
    return seen


@triton.jit
def place(per_row, num_heads):
    """Which of the `per_row` programs of a batch row and head this one is; the row, and the head."""
    program = tl.program_id(0)
    row = program // per_row
    return program % per_row, (row // num_heads).to(tl.int64), (row % num_heads).to(tl.int64)


@triton.jit
def keys_of(first_query, length, num_keys, window, ROWS: tl.constexpr):
    """The first key that the tile's queries see, and the one after the last."""
    before = num_keys - length
    first = 0
    if window is not None:
        first = tl.maximum(0, before + first_query + 1 - window)
    return first, tl.minimum(num_keys, before + first_query + ROWS)
