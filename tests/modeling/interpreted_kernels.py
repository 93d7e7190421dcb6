"""The Triton kernels of relative attention on a CPU: values and gradients against the definition, in Triton's interpreter.

`test_triton_attention.py` runs this file by pytest in a process of its own: the interpreter takes the place of the compiler
when the kernels are imported. Tiles are 16 x 16, so that small texts have several; sums are float64, so that equal is
equal to ten places. What surrounds each tensor in memory is NaN, and so is new memory: a number from there would show.
"""

import os

assert os.environ.get("TRITON_INTERPRET") == "1"

import pytest  # noqa: E402  after the block above
import torch  # noqa: E402
from naive_relative_attention import (  # noqa: E402
    SHAPES,
    TOLERANCE,
    arguments,
    by_column,
    by_definition,
    by_window,
)
from optional_packages import needs  # noqa: E402
from tiny import pairwise  # noqa: E402

needs("triton")
from triton.language import float32  # noqa: E402
from triton.runtime.interpreter import InterpreterBuilder  # noqa: E402

from transformers_xl.modeling.ops import triton_attention  # noqa: E402
from transformers_xl.modeling.ops.relative_attention import FarColumns  # noqa: E402
from transformers_xl.modeling.ops.triton_attention import triton_relative_attention  # noqa: E402
from transformers_xl.modeling.ops.triton_tiles import Tile  # noqa: E402
from transformers_xl.modeling.ops.wide_attention import wide_attention  # noqa: E402

SMALL, TALL = Tile(16, 16, 4, 1), Tile(32, 16, 4, 1)


@pytest.fixture(autouse=True)
def _small_tiles_in_a_desert(monkeypatch):
    monkeypatch.setattr(triton_attention, "TILES", dict.fromkeys(triton_attention.TILES, SMALL))
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    yield
    torch.use_deterministic_algorithms(False)


def in_desert(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, with NaN around them in memory, in every direction."""
    around = torch.full([size + 2 for size in tensor.shape], torch.nan, dtype=tensor.dtype)
    inner = around[tuple(slice(1, -1) for _ in tensor.shape)]
    inner.copy_(tensor.detach())
    return inner.detach().requires_grad_()


def compare(given: list[torch.Tensor], seen: torch.Tensor, visible: torch.Tensor | None, window: int | None) -> None:
    """Values and gradients of `seen`, (B, T, K)."""
    length, num_keys = seen.shape[1:]
    tolerance = TOLERANCE[given[0].dtype]
    exact = [each.detach().double().requires_grad_() for each in given]
    expected = by_definition(*exact, seen, by_column(length, num_keys), scaling=0.7)
    direction = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * direction).sum(), exact)
    there = [in_desert(each) for each in given]
    output = triton_relative_attention(*there, visible, window, 0.7)
    torch.testing.assert_close(output.double(), expected, **tolerance)
    gradients = torch.autograd.grad(output, there, in_desert(direction.to(output.dtype)))
    for gradient, want in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), want, **tolerance)


# every program is interpreted: two rows and two heads are several
FEWER = [(min(batch, 2), min(heads, 2), *rest) for batch, heads, *rest in SHAPES]
FIFTH = pairwise(FEWER, [None, 1, 3, 6, 20], [False, True])[::5]
# several tiles of queries, keys and distances; one token; as few keys as there can be
SEVERAL_TILES = [
    ((1, 1, 20, 13, 5), None, False),
    ((1, 1, 33, 0, 16), 18, False),
    ((1, 1, 17, 32, 3), 20, True),
    ((1, 1, 1, 40, 20), None, False),
    ((2, 1, 1, 40, 4), 35, True),
]


@pytest.mark.parametrize(("shape", "window", "padded"), [*FIFTH, *SEVERAL_TILES], ids=str)
def test_values_and_gradients(shape, window, padded):
    given = arguments(shape, torch.float64, "cpu")
    batch, _, length, memory, _ = shape
    seen = by_window(length, memory + length, window).expand(batch, -1, -1)
    visible = None
    if padded:
        seen = seen & (torch.rand(batch, 1, memory + length) < 0.6)
        seen[0, 0] = False  # and one that sees nothing, whatever is drawn
        visible = seen[:, None]
    compare(given, seen, visible, window)


def test_tiles_of_twice_as_many_queries_as_keys(monkeypatch):
    tall = {kernel: TALL if kernel[0] == "attend_tiles" else SMALL for kernel in triton_attention.TILES}
    monkeypatch.setattr(triton_attention, "TILES", tall)
    given = arguments((1, 1, 33, 9, 4), torch.float64, "cpu")
    assert triton_attention.tile_of("attend_tiles", given[0]) == TALL
    compare(given, by_window(33, 42, 30)[None], None, 30)


def test_rows_of_the_batch_share_a_sum(monkeypatch):
    """Of the gradient of positions; a mask that is the same for all rows, and keys that lie along them, as in a cache."""
    monkeypatch.setattr(triton_attention, "PROGRAMS", 4)
    given = arguments((3, 1, 4, 2, 3), torch.float64, "cpu")
    given[1] = given[1].detach().transpose(-1, -2).contiguous().transpose(-1, -2).requires_grad_()
    visible = by_window(4, 6, 5) & (torch.rand(4, 6) < 0.7)
    compare(given, visible.expand(3, -1, -1), visible[None, None], None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_types_of_numbers(dtype, monkeypatch):
    """The interpreter multiplies the bits of bfloat16 as integers: here it is helped."""
    multiply = InterpreterBuilder.create_dot

    def create_dot(self, left, right, *rest):
        wide = [self.cast_impl(each, float32) if each.dtype.is_bf16() else each for each in (left, right)]
        return multiply(self, *wide, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    given = [(each / 2).detach() for each in arguments((1, 1, 17, 5, 16), dtype, "cpu")]
    compare(given, by_window(17, 22, 15)[None], None, 15)


def test_biases_and_positions_may_be_wider_as_under_autocast():
    given = arguments((1, 1, 5, 2, 4), torch.float32, "cpu")
    expected = wide_attention(*given, None, 4, 0.7)
    query, key, value = (each.half() for each in given[:3])
    output = triton_relative_attention(query, key, value, *given[3:], None, 4, 0.7)
    torch.testing.assert_close(output.float(), expected, **TOLERANCE[torch.float16])
    grad = torch.autograd.grad(output.float().sum(), given[3])[0]
    assert grad.dtype == torch.float32


@pytest.mark.parametrize("window", [None, 3, 20])
def test_far_columns_directly_with_far_columns_of_one_token(window):
    given = arguments((2, 1, 1, 12, 4), torch.float64, "cpu")
    query, key, value, positions, *biases = given
    far = FarColumns(key[:, :, :4], value[:, :, :4])
    near = (key[:, :, 4:], value[:, :, 4:], positions, *biases, None, window, 0.7)
    expected = wide_attention(query, *near, far=far)
    torch.testing.assert_close(triton_relative_attention(query, *near, far=far), expected, **TOLERANCE[torch.float64])


@pytest.mark.parametrize(("dtype", "widest"), [(torch.float32, 64), (torch.bfloat16, 128)])
def test_what_the_kernels_take(dtype: torch.dtype, widest: int):
    assert [triton_attention.takes(width, dtype, None) for width in (1, widest, widest + 1)] == [True, True, False]
    given = arguments((1, 1, 2, 0, 4), dtype, "cpu")
    assert triton_attention.takes(4, dtype, FarColumns(given[1], given[2]))
    assert not triton_attention.takes(4, dtype, FarColumns(given[1], given[2], distance=torch.full((1, 2, 2), 1)))


def test_the_operator_is_what_torch_wants_of_one():
    """Nothing is changed in place, results have the form that is promised, and a compiled graph holds them."""
    given = arguments((1, 1, 3, 2, 4), torch.float64, "cpu")
    torch.library.opcheck(triton_attention.attend, (*given, None, 2, 0.5))


def test_gradients_of_gradients_are_refused():
    given = arguments((1, 1, 2, 0, 4), torch.float64, "cpu")
    output = triton_relative_attention(*given, None, None, 0.5)
    gradient = torch.autograd.grad(output.square().sum(), given[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="no autograd"):
        gradient.sum().backward()
