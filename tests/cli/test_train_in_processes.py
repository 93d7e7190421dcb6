"""`transformers-xl train` in two processes, started as a user starts it, trains the model that one process trains."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import run
from safetensors.torch import load_file

ROOT = Path(__file__).parent.parent.parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
ACCELERATE = [
    sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
    "--main_process_port", "0", "--mixed_precision", "no", "--dynamo_backend", "no",
]  # fmt: skip
# every process draws masks of its own: without dropout they add up to those of one process
SMALL = (
    "--hidden-size 32 --layers 2 --heads 2 --mem-len 16 --segment-length 8 --batch-size 4 --steps 40 --warmup-steps 1 "
    "--dropout 0"
)
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 20


def launch(launcher: list[str], *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    command = [*launcher, "-m", "transformers_xl.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def text_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def of_one(text_file: Path) -> Path:
    result = run("train", text_file, "-o", text_file.parent / "one", *SMALL.split())
    assert result.exit_code == 0, result.output
    return text_file.parent / "one"


def measured(folder: Path) -> dict:
    return json.loads((folder / "training_metrics.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "environment"),
    [(TORCHRUN, {}), (ACCELERATE, {"ACCELERATE_USE_CPU": "true"})],
    ids=["torchrun", "accelerate"],
)
def test_two_processes_train_what_one_does(text_file, of_one, tmp_path, launcher: list[str], environment: dict):
    folder = tmp_path / "two"
    done = launch(launcher, "train", text_file, "-o", folder, *SMALL.split(), **environment)
    assert done.returncode == 0, done.stderr[-4000:]
    ours, theirs = measured(folder), measured(of_one)
    assert (ours["training"]["processes"], theirs["training"]["processes"]) == (2, 1)
    for name in ("steps", "tokens", "lengths"):
        assert ours["training"][name] == theirs["training"][name]
    # Adam makes steps of a size of its own out of gradients that are rounding
    assert ours["training"]["loss"] == pytest.approx(theirs["training"]["loss"], abs=1e-3)
    for mine, other in zip(ours["evaluations"], theirs["evaluations"], strict=True):
        assert mine["bits_per_byte"] == pytest.approx(other["bits_per_byte"], abs=1e-3)
    weights, expected = (load_file(path / "model.safetensors") for path in (folder, of_one))
    for name, tensor in expected.items():
        assert (weights[name] - tensor).abs().max() < 1e-3, name

    said = done.stdout + done.stderr
    for once in (
        "starting ...",
        "to learn from",
        "'train_runtime'",
        "with memory",
        "without memory",
        f"wrote {folder}",
    ):
        assert said.count(once) == 1, once
    assert {path.name for path in folder.iterdir()} == {path.name for path in of_one.iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


@pytest.mark.slow
def test_lanes_that_cannot_be_shared_are_refused(text_file, tmp_path):
    done = launch(TORCHRUN, "train", text_file, "-o", tmp_path / "two", *SMALL.split(), "--batch-size", 5)
    assert done.returncode != 0
    sentence = "Error: `batch_size`=5 lanes cannot be shared by 2 processes: make it a multiple of 2."
    assert done.stderr.count(sentence) == 1
    assert not list(tmp_path.iterdir())


def test_models_are_compared_in_one_process(text_file, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = run("compare", text_file, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "`WORLD_SIZE`=2" in result.output
    assert not list(tmp_path.iterdir())
