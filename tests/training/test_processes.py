"""Two processes learn what one does that has all the rows: each keeps the memory of its own."""

from pathlib import Path

import in_processes
import pytest
import torch
from forked import run_processes
from trained import SEGMENT

from transformers_xl.data.text_stream import TextStream

SCRIPT = Path(in_processes.__file__)

# to eight bits it differs with the shapes that are multiplied (Muon computes its steps so); what is written from segment to
# segment makes it grow
ROUNDING = {"bf16": 2000, "muon": 2000, "tokens": 100, "shard tokens": 100}


def load(folder: Path, name: str) -> list[dict[str, torch.Tensor]]:
    return [torch.load(folder / f"{name}-{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    done = run_processes(SCRIPT, folder)
    assert done.succeeded, done.stderr[-4000:]
    return folder


def check(ours: list[dict[str, torch.Tensor]], theirs: dict[str, torch.Tensor], rounding: float = 1.0) -> None:
    """Two processes `ours` against one: weights, by the root of the mean square of what they differ by, since in eight bits
    one of thousands may be off by much on some processor; and the rows of a process against its share."""
    for rank, found in enumerate(ours):
        share = slice(2 * rank, 2 * rank + 2)
        difference = (found["weights"] - theirs["weights"]).square().mean().sqrt()
        assert difference <= 2.5e-7 * rounding  # what Muon's steps of a training change: 6e-3
        torch.testing.assert_close(found["memory"], theirs["memory"][share], atol=1e-5 * rounding, rtol=0)
        for name in ("losses", "evaluations", "predictions"):
            if name in theirs:
                torch.testing.assert_close(found[name], theirs[name], atol=1e-5 * rounding, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", in_processes.TRAININGS)
def test_two_processes_learn_what_one_does(folder, tmp_path, name: str):
    check(load(folder, name), in_processes.train(tmp_path, name), rounding=ROUNDING.get(name, 1))


@pytest.mark.slow
def test_rows_are_not_interchangeable(folder):
    """The memories of two processes differ, or the comparison above would prove nothing."""
    first, second = load(folder, "plain")
    assert (first["memory"] - second["memory"]).abs().max() > 0.1


@pytest.mark.slow
def test_a_process_that_runs_out_does_not_hang_the_others(folder):
    for found in load(folder, "run_out"):
        assert (found["map steps"], found["iterable steps"]) == (2, 2)
        assert found["map refused"]
        assert found["iterable refused"]
        assert found["lanes refused"]


@pytest.mark.slow
def test_all_processes_refuse_what_one_finds_damaged_or_locked(folder):
    """The file of the second process, and a lock that only the first one asks for."""
    for found in load(folder, "damage"):
        assert found["locked"]
        assert found["named"]
        assert (found["last"], found["again"]) == (2, 3)
        assert found["released"]


@pytest.mark.slow
@pytest.mark.parametrize("name", in_processes.SHARDED)
def test_sharded_weights_learn_what_whole_ones_do(folder, tmp_path, name: str):
    check(load(folder, name), in_processes.shard(tmp_path, in_processes.SHARDED[name]), ROUNDING.get(name, 1))


@pytest.mark.gpu
def test_fsdp2_through_accelerate(tmp_path):
    """Sharded over two devices, the losses of one process without sharding."""
    devices = 2
    if torch.cuda.device_count() < devices:
        pytest.skip("needs two CUDA devices")
    done = run_processes(SCRIPT, tmp_path, "fsdp2", processes=devices)
    assert done.succeeded, done.stderr[-4000:]
    stream = TextStream(in_processes.IDS, SEGMENT, in_processes.ROWS)
    plain = in_processes.build(tmp_path / "plain", stream, use_cpu=False)
    plain.train()
    expected = in_processes.losses(plain)
    for rank in range(devices):
        found = torch.load(tmp_path / f"fsdp2-{rank}.pt", weights_only=True)
        torch.testing.assert_close(found["whole losses"], expected, atol=1e-3, rtol=0)
        torch.testing.assert_close(found["resumed"], found["whole"], atol=1e-6, rtol=0)
        assert torch.equal(found["resumed evaluation"], found["whole evaluation"])


@pytest.mark.gpu
def test_ddp_with_nccl(tmp_path):
    """On two devices where there are two: the losses of a CPU."""
    devices = min(2, torch.cuda.device_count())
    done = run_processes(SCRIPT, tmp_path, "nccl", processes=devices)
    assert done.succeeded, done.stderr[-4000:]
    plain = in_processes.build(tmp_path / "plain", TextStream(in_processes.IDS, SEGMENT, in_processes.ROWS))
    plain.train()
    for rank in range(devices):
        found = torch.load(tmp_path / f"nccl-{rank}.pt", weights_only=True)
        torch.testing.assert_close(found["losses"], in_processes.losses(plain), atol=1e-3, rtol=0)
