"""The loop with Accelerate: it is the loop by hand, also where it is resumed, and also on two processes."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.state import AcceleratorState, GradientState, PartialState
from forked import run_processes
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup

from transformers_xl import ByteTokenizer, TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.evaluation.bits_per_byte import bits_per_byte

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples/train_with_accelerate.py"
spec = importlib.util.spec_from_file_location("train_with_accelerate", SCRIPT)
example = sys.modules["train_with_accelerate"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 6
SMALL = {"lanes": 4, "segment_length": 8, "hidden_size": 16}
# 426 bytes to learn from are 13 batches of 4 lanes of 8: an epoch ends within the groups of two
BATCHES = 13


@pytest.fixture(autouse=True)
def _fresh_accelerate(monkeypatch: pytest.MonkeyPatch):
    """Accelerate keeps one state for a process; `end_training` would take the rest of the tests for the same run."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def run(text: Path, output: Path, **options) -> dict[str, torch.Tensor]:
    """Train; all tensors of the last checkpoint that are safetensors: weights and memory."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    example.train(text, output, **(SMALL | options))
    (folder,) = output.glob("checkpoint-*")
    return {
        f"{path.name}/{name}": tensor
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def build_model(dropout: float) -> TransformerXLForCausalLM:
    torch.manual_seed(0)
    config = TransformerXLConfig(
        vocab_size=259, hidden_size=16, intermediate_size=64, mem_len=16, segment_length=128, dropout=dropout
    )
    return TransformerXLForCausalLM(config)


def by_hand(steps: int, accumulation: int) -> list[torch.Tensor]:
    """The parameters after as many steps, cut and carried by hand."""
    ids = torch.tensor(ByteTokenizer().encode_bytes(TEXT.encode()))
    ids = ids[: len(ids) - round(0.1 * len(ids))]
    rows, targets = (ids[shift : shift + 4 * BATCHES * 8].view(4, -1) for shift in (0, 1))
    model = build_model(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)
    mems = None
    for batch in range(steps * accumulation):
        place = batch % BATCHES
        here = slice(8 * place, 8 * place + 8)
        outputs = model(rows[:, here], mems=mems if place else None)
        mems = outputs.mems
        (F.cross_entropy(outputs.logits.transpose(1, 2), targets[:, here]) / accumulation).backward()
        if batch % accumulation == accumulation - 1:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


def test_it_is_the_loop_by_hand_and_measures_what_it_says(text: Path, tmp_path: Path, capsys):
    """Two epochs, by groups of two batches."""
    run(text, tmp_path / "out", steps=9, accumulation=2, dropout=0.0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out/model").eval()
    for ours, theirs in zip(model.parameters(), by_hand(9, 2), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)  # a hundredth of the way, where Adam rounds
    held_out = ByteTokenizer().encode_bytes(TEXT.encode())[-round(0.1 * len(TEXT)) :]
    expected = bits_per_byte(model, torch.tensor(held_out), segment_length=8, lanes=4)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step 9")]
    assert f"held out {expected:.4f} bits per byte" in line


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_run_that_goes_on_is_the_run_that_never_stopped(text: Path, tmp_path: Path, monkeypatch, accumulation: int):
    """With dropout, from the middle of an epoch, and over its end."""
    options = {"steps": 16 // accumulation, "save_every": 6 // accumulation, "accumulation": accumulation}
    whole = run(text, tmp_path / "whole", **options)

    class Stopped(Exception):
        pass

    save, kept = example.save_checkpoint, []

    def save_and_stop(accelerator, output, progress):
        save(accelerator, output, progress)
        kept.append(progress["step"])
        raise Stopped

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(example, "save_checkpoint", save_and_stop)
            with pytest.raises(Stopped):
                run(text, tmp_path / "parts", **options)
    parts = run(text, tmp_path / "parts", **options)
    assert kept == [6 // accumulation, 12 // accumulation]
    assert equal(parts, whole)
    # and it could fail: without the memory it is another run
    with monkeypatch.context() as patch:
        patch.setattr(example, "save_checkpoint", save_and_stop)
        with pytest.raises(Stopped):
            run(text, tmp_path / "forgetful", **options)
    monkeypatch.setattr(example.CarriedMemory, "load", lambda self, models, folder: None)
    assert not equal(run(text, tmp_path / "forgetful", **options), whole)


def test_a_half_written_checkpoint_is_not_taken_for_one(text: Path, tmp_path: Path, monkeypatch):
    output = tmp_path / "out"
    run(text, output, steps=3)
    (before,) = output.glob("checkpoint-*")
    contents = {path.name: path.read_bytes() for path in before.iterdir()}

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(text, output, steps=5)
    assert (output / "unfinished").is_dir()
    assert {path.name: path.read_bytes() for path in before.iterdir()} == contents
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run(text, output, steps=5)
    assert [path.name for path in output.glob("*check*")] == ["checkpoint-5"]
    assert not (output / "unfinished").exists()


def test_what_would_be_another_run_is_refused(text: Path, tmp_path: Path):
    run(text, tmp_path / "out", steps=1)
    for options, field in (({"lanes": 2}, "lanes"), ({"segment_length": 4}, "segment_length")):
        with pytest.raises(ValueError, match=f"`{field}`"):
            run(text, tmp_path / "out", steps=2, **options)
    text.write_text(TEXT.replace("best", "last"))
    with pytest.raises(ValueError, match="`text`"):
        run(text, tmp_path / "out", steps=2)


def test_it_is_short():
    assert len(SCRIPT.read_text().splitlines()) < 160


@pytest.mark.parametrize("path", sorted((ROOT / "examples/accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_takes_the_configs(path: Path):
    config = load_config_from_file(str(path))  # refuses keys it does not know
    settings = yaml.safe_load(path.read_text())
    assert config.num_processes == settings["num_processes"] == (1 if path.stem == "one_gpu" else 2)
    assert config.mixed_precision == ("no" if path.stem == "cpu_two_processes" else "bf16")
    if path.stem == "fsdp2":
        assert config.fsdp_config["fsdp_version"] == 2


def test_two_processes_are_the_same_run(text: Path, tmp_path: Path):
    """Two gloo processes with two lanes each, stopped and resumed: weights and memory are those of one with four."""
    command = [str(text), "--output", str(tmp_path / "two")]
    for name, value in (SMALL | {"dropout": 0.0}).items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    for steps in (4, 6):
        one = run(text, tmp_path / "one", steps=steps, dropout=0.0)
        result = run_processes(SCRIPT, *command, "--steps", steps, CUDA_VISIBLE_DEVICES="", ACCELERATE_USE_CPU="true")
        assert result.succeeded, result.stderr
        assert result.stdout.count(f"step {steps}:") == 1  # one process speaks
    (folder,) = (tmp_path / "two").glob("checkpoint-*")
    assert json.loads((folder / "progress.json").read_text())["identity"]["processes"] == 2
    weights = load_file(folder / "model.safetensors")
    memories = [load_file(folder / f"memory_{rank}.safetensors") for rank in range(2)]
    for name, tensor in one.items():
        file, key = name.split("/")
        if file == "model.safetensors":
            torch.testing.assert_close(weights[key.removeprefix("module.")], tensor, atol=1e-4, rtol=1e-3)
        else:
            # each lane on its rank and row
            both = torch.cat([memory[key] for memory in memories])
            torch.testing.assert_close(both, tensor, atol=1e-3, rtol=1e-3)
            if both.is_floating_point():
                assert not torch.allclose(memories[0][key], memories[1][key], atol=1e-2)
