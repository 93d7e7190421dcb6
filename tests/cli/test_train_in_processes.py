"""`transformers-xl train` in two processes, started as a user starts it, trains the model that one process trains."""

import json
import signal
from pathlib import Path

import pytest
from forked import Finished, run_processes
from programs import run
from safetensors.torch import load_file

ROOT = Path(__file__).parent.parent.parent
TWO = ROOT / "examples/accelerate/cpu_two_processes.yaml"
# every process draws masks of its own: without dropout they add up to those of one process
SMALL = (
    "--model.hidden_size 32 --model.num_hidden_layers 2 --model.num_attention_heads 2 --model.mem_len 16 "
    "--model.segment_length 8 --data.batch_size 4 --training.max_steps 12 --training.warmup_steps 1 "
    "--model.dropout 0 --training.optim sgd --training.learning_rate 0.05 --training.lr_scheduler_type constant "
    "--training.max_grad_norm 0 --training.eval_strategy steps --training.eval_steps 6"
)
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 20


def accelerate_launch(*arguments: object) -> Finished:
    """The launcher is forked, and starts its processes anew."""
    launcher = ("accelerate.commands.launch", "--config_file", TWO, "--main_process_port", 0)
    return run_processes(*launcher, "-m", "transformers_xl.cli", *arguments, processes=1)


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


def assert_equal(folder: Path, expected: Path) -> None:
    """Losses of every evaluation, and weights of a training by SGD: up to rounding."""
    ours, theirs = measured(folder), measured(expected)
    for mine, other in zip(ours["evaluations"], theirs["evaluations"], strict=True):
        assert mine["nats"] / mine["tokens"] == pytest.approx(other["nats"] / other["tokens"], abs=1e-6)
    found, wanted = ([row["eval_loss"] for row in each["log"] if "eval_loss" in row] for each in (ours, theirs))
    assert found == pytest.approx(wanted, abs=1e-6)
    weights, tensors = (load_file(path / "model.safetensors") for path in (folder, expected))
    for name, tensor in tensors.items():
        assert (weights[name] - tensor).abs().max() < 1e-4, name  # a rounding at the kink of a ReLU


@pytest.mark.slow
def test_two_processes_stopped_and_resumed_train_what_one_does(text_file, of_one, tmp_path):
    """Started by `accelerate launch`, resumed as `torchrun` does."""
    folder = tmp_path / "two"
    words = ("train", text_file, "-o", folder, *SMALL.split())
    first = accelerate_launch(*words, "--training.max_steps", 6)
    assert first.succeeded, first.stderr[-4000:]
    said = first.stdout + first.stderr
    once = (
        "starting ...",
        "training tokens",
        "'train_runtime'",
        "with memory",
        "memory taken away",
        f"wrote {folder}",
    )
    assert {line: said.count(line) for line in once} == dict.fromkeys(once, 1)

    second = run_processes("transformers_xl.cli", *words, "--resume")
    assert second.succeeded, second.stderr[-4000:]
    ours, theirs = measured(folder)["training"], measured(of_one)["training"]
    assert (ours["processes"], ours["first_step"], theirs["processes"]) == (2, 6, 1)
    for name in ("steps", "lengths"):
        assert ours[name] == theirs[name]
    assert_equal(folder, of_one)
    assert {path.name for path in folder.iterdir()} == {path.name for path in of_one.iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


@pytest.mark.slow
def test_lanes_that_cannot_be_shared_are_refused(text_file, tmp_path):
    words = ("train", text_file, "-o", tmp_path / "two", *SMALL.split(), "--data.batch_size", 5)
    done = run_processes("transformers_xl.cli", *words)
    assert done.exit_codes == [2, -signal.SIGKILL]  # the second one leaves the message to the first
    sentence = "Error: `data.batch_size`=5 rows cannot be divided among 2 processes: make it a multiple of 2."
    assert done.stderr.count(sentence) == 1
    assert not list(tmp_path.iterdir())


def test_models_are_compared_in_one_process(text_file, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = run("compare", text_file, "-o", tmp_path / "out")  # before the plan is read
    assert result.exit_code == 2
    assert "`WORLD_SIZE`=2" in result.output
    assert not list(tmp_path.iterdir())
