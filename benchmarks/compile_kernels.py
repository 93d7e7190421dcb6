"""What the Triton kernels of relative attention are compiled to, without a GPU: registers, spills and shared memory.

    python benchmarks/compile_kernels.py                        every kernel, type and width, for sm_80 and sm_90
    python benchmarks/compile_kernels.py --kernel grad_of_keys --width 128 --tiles 64,64,8,1 32,32,4,1

The kernels are launched as the models launch them, on tensors of a CPU: Triton is told of a device that is not there, and
stops where it would start the program. The table of tiles in `modeling/ops/triton_attention.py` was chosen by these figures
(the second form compares tiles); what is fastest is known on a GPU alone (`bench_gpu.py`).
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from transformers_xl.modeling.ops import triton_attention
from transformers_xl.modeling.ops.triton_tiles import Tile

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class Case(NamedTuple):
    """One way to launch the kernels."""

    capability: int
    width: int
    dtype: str
    masked: bool
    one_token: bool


class AbsentDevice:
    """What Triton asks of its driver before it compiles."""

    def __init__(self, capability: int):
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # compiled kernels are kept by it

    def get_current_stream(self, device: int) -> int:
        return 0


def compiled(case: Case, kernels: list[str]) -> dict[str, triton.compiler.CompiledKernel]:
    """The kernels of a call and its backward pass, by name; of `kernels` alone, if any are named."""
    found: dict[str, triton.compiler.CompiledKernel] = {}
    run = JITFunction.run

    def compile_only(self, *given, grid, warmup, **options):
        if self.__name__ in kernels or not kernels:
            found[self.__name__] = run(self, *given, grid=grid, warmup=True, **options)

    triton.runtime.driver.set_active(AbsentDevice(case.capability))
    JITFunction.run = compile_only
    try:
        given, visible = tensors(case)
        output = triton_attention.triton_relative_attention(*given, visible, 100, 0.125)
        if not case.one_token:
            torch.autograd.grad(output.sum(), given)
    finally:
        JITFunction.run = run
    return found


def tensors(case: Case) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    length, num_keys = 1 if case.one_token else 64, 128
    keys = (1, 2, num_keys, case.width)
    shapes = [(1, 2, length, case.width), keys, keys, (2, num_keys + 1, case.width), *[(2, case.width)] * 2]
    given = [torch.empty(shape, dtype=TYPES[case.dtype]).requires_grad_() for shape in shapes]
    return given, torch.ones(1, 1, length, num_keys, dtype=torch.bool) if case.masked else None


def figures(kernel: triton.compiler.CompiledKernel, capability: int) -> dict[str, int]:
    """Registers of a thread, bytes that it spills, and bytes of shared memory of a program."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{name}:(\d+)", text)[1]) for name in ("REG", "STACK"))
    return {"registers": registers, "spilled": stack, "shared": kernel.metadata.shared}


def tile_sets(texts: list[str]) -> list[dict]:
    """The table of the models; or one for each of the texts, which holds that tile for all kernels."""
    tables = [dict.fromkeys(triton_attention.TILES, Tile(*map(int, text.split(",")))) for text in texts]
    return tables or [triton_attention.TILES]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, nargs="+", default=[80, 90])
    parser.add_argument("--width", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--dtype", nargs="+", choices=list(TYPES), default=["bfloat16", "float32"])
    parser.add_argument("--masked", type=int, nargs="+", default=[0, 1], help="0: a window alone, 1: also a mask")
    parser.add_argument("--one-token", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--kernel", nargs="+", default=[], help="these alone")
    parser.add_argument("--tiles", nargs="+", default=[], help="ROWS,COLUMNS,WARPS,STAGES to compare")
    parser.add_argument("--hopper", action="store_true", help="the tiles of Hopper GPUs")
    parser.add_argument("--output", type=Path, help="a file for the figures, as JSON")
    return parser.parse_args()


def main() -> None:
    args, rows = options(), []
    if args.hopper:
        triton_attention.TILES = triton_attention.HOPPER_TILES
    cases = itertools.product(
        args.capability, args.width, args.dtype, map(bool, args.masked), map(bool, args.one_token)
    )
    for given, table in itertools.product(cases, tile_sets(args.tiles)):
        case = Case(*given)
        if case.dtype == "float32" and case.width > 64:
            continue  # which the kernels decline
        triton_attention.TILES = table
        for name, kernel in compiled(case, args.kernel).items():
            tile = Tile(*triton_attention.tile_of(name, tensors(case)[0][0])) if name != "join_parts" else None
            row = {"kernel": name, **case._asdict(), "tile": tile, **figures(kernel, case.capability)}
            rows.append(row)
            print(*row.values(), flush=True)
    if args.output:
        args.output.write_text(json.dumps({"command": sys.argv, "triton": triton.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
