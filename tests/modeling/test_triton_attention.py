"""The kernels of relative attention on a CPU: what they compute, in a process of its own, and what they are compiled to."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forked import run_processes
from naive_relative_attention import arguments, by_window
from optional_packages import needs
from patience import PATIENCE
from tiny import tiny_model, tokens

from transformers_xl.modeling.ops.wide_attention import wide_attention

needs("triton")

from transformers_xl.modeling.ops.triton_attention import triton_relative_attention  # noqa: E402  after `needs`

HERE, ROOT = Path(__file__).parent, Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_values_and_gradients_in_the_interpreter():
    """Triton asks for its interpreter while the kernels are imported, and must not ask in this process."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", HERE / "interpreted_kernels.py"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]


# what the kernels are compiled to must not become worse: bytes that a thread spills, for a window and no mask
SPILLED = {("grad_of_queries", 80): 64}
SHARED = 99 * 1024  # bytes: what one program may have on all GPUs from sm_80 on


@pytest.mark.slow
def test_what_the_kernels_are_compiled_to(tmp_path: Path):
    """Without a GPU, for two kinds of one: types and shapes that the interpreter lets pass are errors here."""
    script, file = ROOT / "benchmarks" / "compile_kernels.py", tmp_path / "figures.json"
    given = ["--capability", 80, 90, "--width", 64, "--dtype", "bfloat16", "--masked", 0, "--output", file]
    done = run_processes(script, *given, processes=1, TRITON_CACHE_DIR=str(tmp_path))
    assert done.succeeded, done.stderr[-2000:]
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 12
    for row in rows:
        assert row["registers"] <= 255
        assert row["shared"] <= SHARED, row
        assert row["spilled"] <= SPILLED.get((row["kernel"], row["capability"]), 0), row


@pytest.mark.slow
def test_the_benchmark_for_a_gpu_runs_through(tmp_path: Path, monkeypatch):
    """At a tiny size on a CPU, so that a GPU at hand is not spent on its faults."""
    for more in ([], ["--tune"]):
        monkeypatch.setattr(sys, "argv", ["bench_gpu.py", "--dry-run", "--output", str(tmp_path), *more])
        runpy.run_path(str(ROOT / "benchmarks" / "bench_gpu.py"), run_name="__main__")
    result = json.loads((tmp_path / "gpu_cpu_dry_run.json").read_text())
    forms = ["Triton kernels", "SDPA, additive mask", "SDPA without positions"]
    assert sorted(result["attention"]) == sorted([*forms, *(f"{form}, fewer queries" for form in forms)])
    assert {row["model"] for row in result["generation"]} == {"Transformer-XL", "Mistral"}
    assert len(result["training"]) == 2
    assert (tmp_path / "gpu_cpu_dry_run.png").is_file()


def on_gpu(shape: tuple, dtype: torch.dtype) -> list[torch.Tensor]:
    return [(each / 2).detach().to("cuda").requires_grad_() for each in arguments(shape, dtype, "cpu")]


# several tiles of every kernel, and lengths and widths that are no multiple of one
ON_A_GPU = [
    (*case, dtype)
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    for case in [
        ((2, 3, 300, 200, 64), 257, False),
        ((1, 2, 130, 0, 41), None, True),
        ((2, 2, 257, 90, 64 if dtype == torch.float32 else 128), 100, False),
        ((3, 2, 1, 1600, 64), 1500, False),
        ((2, 2, 1, 3200, 41), None, True),
    ]
]


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "window", "padded", "dtype"), ON_A_GPU, ids=str)
def test_values_and_gradients_on_a_gpu(shape, window, padded, dtype):
    """Against attention in one piece, in float64 on a CPU; twice, bit for bit."""
    given, visible = on_gpu(shape, dtype), None
    exact = [each.detach().cpu().double().requires_grad_() for each in given]
    if padded:
        length, num_keys = shape[2], shape[2] + shape[3]
        visible = by_window(length, num_keys, window) & (torch.rand(shape[0], 1, length, num_keys) < 0.7)
    expected = wide_attention(*exact, visible, window, shape[4] ** -0.5)
    direction = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * direction).sum(), exact)
    results = []
    for _ in range(2):
        visible = None if visible is None else visible.cuda()
        output = triton_relative_attention(*given, visible, window, shape[4] ** -0.5)
        results.append([output, *torch.autograd.grad(output, given, direction.to(output))])
    for result, again, want in zip(*results, [expected, *wanted], strict=True):
        assert torch.equal(result, again)
        error = (result.double().cpu() - want).norm() / want.norm()
        assert error < {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]


@pytest.mark.gpu
def test_a_model_learns_in_bfloat16_by_autocast_compiled_and_not():
    """On the kernels: one graph, and the loss of plain steps in float32 on a CPU."""
    model, ids = tiny_model("transformer_xl", "causal_lm", torch.float32), tokens(2, 20)
    expected = model(ids, labels=ids).loss
    model, ids = model.cuda().train(), ids.cuda()
    losses, gradients = [], []
    for form in (model, torch.compile(model, fullgraph=True)):
        with torch.autocast("cuda", torch.bfloat16):
            loss = form(ids, labels=ids).loss
        gradients.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
        losses.append(loss.float().cpu())
    torch.testing.assert_close(losses, [expected] * 2, atol=0.05, rtol=0.02)
    for plain, compiled in zip(*gradients, strict=True):
        if plain is not None:
            assert (plain - compiled).norm() < 0.05 * plain.norm() + 1e-4


@pytest.mark.gpu
def test_memory_grows_with_the_length_and_not_with_its_square():
    peaks = []
    for length in (1024, 4096):
        given = on_gpu((1, 4, length, 0, 64), torch.bfloat16)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        triton_relative_attention(*given, None, None, 0.125).sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 5 * peaks[0]
