"""Relative attention by Triton kernels, for CUDA: Dai et al., 2019, https://arxiv.org/abs/1901.02860, appendix B.

    score[i, j] = ((q_i + u) . k_j + (q_i + v) . r_{i-j}) / sqrt(d)

Scores and weights exist tile by tile alone: nothing of the size T x K is kept or written. `triton_forward` and
`triton_backward` hold the kernels; here they are launched, as two operators of torch that a compiled graph calls without
looking inside.

Tests run them in Triton's interpreter on a CPU, and check what they are compiled to, without a GPU. docs/performance.md has
their speed on one.
"""

import functools
import math

import torch
import triton

from transformers_xl.modeling.ops.columns import keep_last
from transformers_xl.modeling.ops.relative_attention import FarColumns
from transformers_xl.modeling.ops.triton_backward import grad_of_keys, grad_of_positions, grad_of_queries
from transformers_xl.modeling.ops.triton_forward import attend_part, attend_tiles, join_parts
from transformers_xl.modeling.ops.triton_tiles import Inputs, Known, Sizes, Strided, Tile
from transformers_xl.modeling.ops.wide_attention import with_far_columns

MAX_PARTS = 64  # that one token's keys are split into
PROGRAMS = 512  # that are worth starting at least: a few for each of a GPU's multiprocessors

# The tile of each kernel, of heads up to so many numbers wide, of so many bytes. Chosen by registers and spills, for sm_80
# and newer, see `python benchmarks/compile_kernels.py`; what is fastest, `python benchmarks/bench_gpu.py --tune` finds.
TILES = {
    ("attend_tiles", 64, 2): Tile(64, 32, 4, 2),
    ("attend_tiles", 128, 2): Tile(32, 32, 4, 2),
    ("attend_tiles", 64, 4): Tile(64, 32, 4, 2),
    ("attend_part", 64, 2): Tile(1, 64, 4, 2),
    ("attend_part", 128, 2): Tile(1, 64, 4, 2),
    ("attend_part", 64, 4): Tile(1, 64, 4, 2),
    ("grad_of_queries", 64, 2): Tile(32, 32, 4, 2),
    ("grad_of_queries", 128, 2): Tile(32, 32, 8, 1),
    ("grad_of_queries", 64, 4): Tile(16, 16, 4, 1),
    ("grad_of_keys", 64, 2): Tile(32, 32, 4, 2),
    ("grad_of_keys", 128, 2): Tile(32, 32, 8, 1),
    ("grad_of_keys", 64, 4): Tile(16, 16, 4, 1),
    ("grad_of_positions", 64, 2): Tile(32, 32, 4, 2),
    ("grad_of_positions", 128, 2): Tile(32, 32, 8, 1),
    ("grad_of_positions", 64, 4): Tile(16, 16, 4, 1),
}
# The fastest of those tried on an H200, for numbers of 2 bytes: attention takes 0.64 to 0.90 of its time with the others.
# Most spill, on sm_80 far more: `python benchmarks/compile_kernels.py --hopper`.
HOPPER_TILES = TILES | {
    ("attend_tiles", 64, 2): Tile(64, 64, 4, 3),
    ("attend_tiles", 128, 2): Tile(64, 32, 4, 2),
    ("grad_of_queries", 64, 2): Tile(64, 64, 4, 3),
    ("grad_of_queries", 128, 2): Tile(64, 64, 8, 2),
    ("grad_of_keys", 64, 2): Tile(64, 64, 4, 2),
    ("grad_of_keys", 128, 2): Tile(64, 64, 4, 3),
    ("grad_of_positions", 64, 2): Tile(64, 64, 4, 1),
    ("grad_of_positions", 128, 2): Tile(32, 32, 4, 3),
}


def takes(width: int, dtype: torch.dtype, far: FarColumns | None) -> bool:
    """Not columns at told distances, nor heads wider than 128, in float32 than 64, whose tiles spill and were not tried."""
    return width <= (64 if dtype == torch.float32 else 128) and (far is None or far.distance is None)


def triton_relative_attention(
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
    """Arguments and output of [`~transformers_xl.modeling.ops.wide_attention.wide_attention`], in float32, bfloat16 or
    float16; sums are float32. `recompute` changes nothing: weights are never kept.

    Under autocast the biases and positions may be float32: all is computed in the type of `value`.
    """
    if far is not None:
        key, value = with_far_columns(key, value, far, window)
        window = None
    near = keep_last(positions, key.shape[2] + 1)
    of_one_type = (each.to(value.dtype) for each in (query, key, value, near, content_bias, position_bias))
    return attend(*of_one_type, visible, window, scaling)[0]


@torch.library.custom_op("transformers_xl::attend", mutates_args=())
def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    content_bias: torch.Tensor,
    position_bias: torch.Tensor,
    visible: torch.Tensor | None,
    window: int | None,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(B, T, H, D)` and the logarithms of the sums of exponentials, `(B, H, T)`, with base 2."""
    inputs = Inputs.of(query, key, value, positions, content_bias, position_bias, visible)
    sizes, results = Sizes.of(query, key, window, scaling), empty_results(query)
    outputs = Strided.of(results[0].transpose(1, 2)), Strided.of(results[1][..., None])
    with torch.cuda.device_of(query):
        if sizes.length == 1:
            _attend_in_parts(query, inputs, outputs, sizes)
        else:
            tile = tile_of("attend_tiles", query)
            programs = triton.cdiv(sizes.length, tile.rows) * len(query) * sizes.num_heads
            attend_tiles[(programs,)](
                inputs, *outputs, *sizes, tile.rows, tile.columns, precision(query),
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    return results


def empty_results(query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    batch, heads, length, width = query.shape
    output = query.new_empty(batch, length, heads, width)
    return output, query.new_empty(batch, heads, length, dtype=torch.promote_types(query.dtype, torch.float32))


def _attend_in_parts(query: torch.Tensor, inputs: Inputs, outputs: tuple[Strided, Strided], sizes: Sizes) -> None:
    """One token: several programs read its keys, and one more joins what they found."""
    rows, tile = len(query) * sizes.num_heads, tile_of("attend_part", query)
    tiles = triton.cdiv(min(sizes.num_keys, sizes.window or sizes.num_keys), tile.columns)
    num_parts = max(1, min(MAX_PARTS, tiles, PROGRAMS // rows))
    per_part = triton.cdiv(tiles, num_parts) * tile.columns
    shape, dtype = (len(query), sizes.num_heads, num_parts), outputs[1].memory.dtype
    attended = Strided.of(query.new_empty(*shape, sizes.width, dtype=dtype))
    log_sums = Strided.of(query.new_empty(*shape, 1, dtype=dtype))
    attend_part[(num_parts * rows,)](
        inputs, attended, log_sums, num_parts, per_part, *sizes, tile.columns,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    join_parts[(rows,)](
        attended, log_sums, *outputs, sizes.num_heads, num_parts, sizes.width, sizes.padded,
        triton.next_power_of_2(num_parts),
    )  # fmt: skip


@torch.library.custom_op("transformers_xl::gradients", mutates_args=())
def gradients(
    grad_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    content_bias: torch.Tensor,
    position_bias: torch.Tensor,
    visible: torch.Tensor | None,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    window: int | None,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the six tensors whose numbers `attend` reads; they have none of their own."""
    inputs = Inputs.of(query, key, value, positions, content_bias, position_bias, visible)
    by_head = output.transpose(1, 2), grad_output.transpose(1, 2)
    by_query = log_sums[..., None], torch.empty_like(log_sums)[..., None]
    known, sizes = Known(*map(Strided.of, (*by_head, *by_query))), Sizes.of(query, key, window, scaling)
    with torch.cuda.device_of(query):
        grad_query, grad_content_bias, grad_position_bias = _of_queries(query, inputs, known, sizes)
        grad_key, grad_value = _of_keys(key, value, inputs, known, sizes)
        grad_positions = _of_positions(query, positions, inputs, known, sizes)
    return grad_query, grad_key, grad_value, grad_positions, grad_content_bias, grad_position_bias


def _of_queries(query: torch.Tensor, inputs: Inputs, known: Known, sizes: Sizes) -> tuple[torch.Tensor, ...]:
    """And of both biases, `(H, D)`: sums over the tiles."""
    tile, grad_query = tile_of("grad_of_queries", query), torch.empty_like(query)
    batch, heads, length, width = query.shape
    shape = (batch, heads, triton.cdiv(length, tile.rows), width)
    biases = [query.new_empty(shape, dtype=known.means.memory.dtype) for _ in range(2)]
    grad_of_queries[(math.prod(shape[:3]),)](
        inputs, known, Strided.of(grad_query), *map(Strided.of, biases), *sizes, tile.rows, precision(query),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return grad_query, *(each.sum((0, 2)).to(query.dtype) for each in biases)


def _of_keys(
    key: torch.Tensor, value: torch.Tensor, inputs: Inputs, known: Known, sizes: Sizes
) -> tuple[torch.Tensor, torch.Tensor]:
    """And of the values."""
    tile, grad_key, grad_value = tile_of("grad_of_keys", key), torch.empty_like(key), torch.empty_like(value)
    grad_of_keys[(triton.cdiv(sizes.num_keys, tile.rows) * len(key) * sizes.num_heads,)](
        inputs, known, Strided.of(grad_key), Strided.of(grad_value), *sizes, tile.rows, precision(key),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return grad_key, grad_value


def _of_positions(
    query: torch.Tensor, positions: torch.Tensor, inputs: Inputs, known: Known, sizes: Sizes
) -> torch.Tensor:
    """A sum over the batch, in several parts where heads and distances alone would leave a GPU idle."""
    tile, batch = tile_of("grad_of_positions", query), len(query)
    blocks = triton.cdiv(sizes.num_keys + 1, tile.rows) * sizes.num_heads
    per_part = triton.cdiv(batch, max(1, min(batch, PROGRAMS // blocks)))
    num_parts = triton.cdiv(batch, per_part)
    parts = positions.new_empty(num_parts, *positions.shape, dtype=known.means.memory.dtype)
    grad_of_positions[(blocks * num_parts,)](
        inputs, known, Strided.of(parts), batch, per_part, *sizes, tile.rows, precision(query),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return parts.sum(0).to(positions.dtype)


def tile_of(kernel: str, tensor: torch.Tensor) -> Tile:
    return tiles_of(tensor.device)[kernel, 64 if tensor.shape[-1] <= 64 else 128, min(4, tensor.element_size())]


def tiles_of(device: torch.device) -> dict[tuple[str, int, int], Tile]:
    return HOPPER_TILES if is_hopper(device) else TILES


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Not a CPU, where kernels are interpreted or compiled alone."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def precision(tensor: torch.Tensor) -> str:
    """Of products in float32: three of TF32, as good as one in float32, or one, if that is what torch was told to take
    (`torch.set_float32_matmul_precision`). Without tensor cores a tile would not fit into the registers."""
    if tensor.dtype != torch.float32:
        return "ieee"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@attend.register_fake
def _results_of_attend(query, key, value, positions, content_bias, position_bias, visible, window, scaling):
    return empty_results(query)


@gradients.register_fake
def _results_of_gradients(grad_output, *given):
    return tuple(torch.empty_like(each) for each in given[:3]) + tuple(
        each.new_empty(each.shape) for each in given[3:6]
    )


def _keep_for_backward(ctx, inputs: tuple, output: tuple) -> None:
    *tensors, ctx.window, ctx.scaling = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, grad_output: torch.Tensor, _) -> tuple:
    return *gradients(grad_output, *ctx.saved_tensors, ctx.window, ctx.scaling), None, None, None


attend.register_autograd(_backward, setup_context=_keep_for_backward)


__all__ = ["takes", "triton_relative_attention"]
