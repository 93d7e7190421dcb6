"""A training that goes on from a checkpoint ends as one that was never interrupted, bit for bit."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from forked import run_processes
from safetensors.torch import save_file
from tiny import tensors_of, tiny_model
from trained import LANES, SEGMENT, Flowing, arguments, small_model, text
from transformers.trainer_utils import get_last_checkpoint

from transformers_xl import MemoryTrainer
from transformers_xl.data.text_stream import TextStream
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.training import resuming, trainer_overrides
from transformers_xl.training.checkpoints import checkpoints_of, incompleteness, remove_unfinished, write_manifest
from transformers_xl.training.memory_state import load_memory, save_memory

ROOT = Path(__file__).parent.parent.parent
STEPS_PER_EPOCH = 3


class Named(TextStream):
    """A stream with a fixed identity, for what a checkpoint keeps of it."""

    text = "of seed 0"

    @property
    def identity(self) -> dict[str, int | str]:
        return {"text": self.text, "lanes": self.lanes, "segment_length": self.segment_length, "documents": "none"}


class WithoutReset(Named):
    def __getitem__(self, index: int) -> dict:
        item = super().__getitem__(index)
        del item["reset"]
        return item


def build(folder, stream_class=Named, ids=None, segment_length: int = SEGMENT, lanes: int = LANES, **fields):
    """A training of two epochs, of three steps each: two of two batches, and one of the last."""
    model = small_model(attention_dropout=0.2)
    model.model.config.dropout = 0.2
    for module in model.modules():
        if type(module).__name__ == "Dropout":
            module.p = 0.2
    stream = stream_class(text(LANES * SEGMENT * 5 + 1) if ids is None else ids, segment_length, lanes)
    defaults = {
        "use_cpu": True, "num_train_epochs": 2, "gradient_accumulation_steps": 2, "optim": "adamw_torch",
        "learning_rate": 0.01, "lr_scheduler_type": "cosine", "warmup_steps": 1, "save_strategy": "steps", "save_steps": 1,
        "logging_steps": 2, "eval_strategy": "epoch", "per_device_train_batch_size": lanes,
    }  # fmt: skip
    args = arguments(folder, **(defaults | fields))
    return MemoryTrainer(model, args, train_dataset=stream, eval_dataset=Named(text(60, seed=1), SEGMENT, LANES))


def ends_of(trainer: MemoryTrainer) -> list:
    """Everything that a training ends with: tensors, and what can be compared as it is."""
    timed = ("runtime", "per_second", "preparation_time", "train_loss")
    log = [row for row in trainer.state.log_history if "train_loss" not in row]
    log = [{name: value for name, value in row.items() if not any(word in name for word in timed)} for row in log]
    moments = [value for state in trainer.optimizer.state_dict()["state"].values() for value in state.values()]
    tensors = [
        *trainer.model.state_dict().values(),
        *tensors_of(trainer.memory["train"]),
        *moments,
        torch.get_rng_state(),
    ]
    return [tensors, log, trainer.lr_scheduler.state_dict(), trainer.state.global_step]


def equal(ours: list, theirs: list) -> bool:
    return ours[1:] == theirs[1:] and all(torch.equal(a, b) for a, b in zip(ours[0], theirs[0], strict=True))


@pytest.mark.parametrize("model_type", ["block_recurrent", "infini_transformer", "recurrent_memory_transformer"])
def test_what_moves_by_blocks_goes_on_in_the_middle_of_a_block(tmp_path, model_type):
    def training() -> MemoryTrainer:
        model = tiny_model(model_type, "causal_lm", torch.float32, dropout=0.2).train()
        args = arguments(tmp_path, save_strategy="steps", save_steps=2, max_steps=3)
        return MemoryTrainer(model, args, train_dataset=TextStream(text(LANES * 5 * 3 + 1), 5, LANES))

    whole, resumed = training(), training()
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert equal(ends_of(resumed), ends_of(whole))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, list]:
    """The checkpoints of an uninterrupted training, and what it ends with."""
    folder = tmp_path_factory.mktemp("whole")
    trainer = build(folder)
    trainer.train()
    return folder, ends_of(trainer)


@pytest.mark.parametrize("step", range(1, 2 * STEPS_PER_EPOCH + 1))
def test_resumed_from_any_step_a_training_ends_the_same(tmp_path, whole, step: int):
    """In mid-epoch, between epochs (3) and at the end (6), where a log is due and where it is not."""
    trainer = build(tmp_path)
    result = trainer.train(resume_from_checkpoint=whole[0] / f"checkpoint-{step}")
    assert equal(ends_of(trainer), whole[1])
    logged = [row["loss"] for row in whole[1][1] if "loss" in row]
    if step in (2, 4):  # the mean loss is that of the steps of this call
        assert result.training_loss == pytest.approx(sum(logged[step // 2 :]) / len(logged[step // 2 :]), abs=1e-6)


class Rolled(TextStream):
    def __init__(self, ids, segment_length: int, lanes: int):
        super().__init__(ids, segment_length, lanes, roll=True)


@pytest.mark.parametrize("step", [1, 3, 4])
def test_lanes_that_roll_go_on_in_their_epoch(tmp_path, step: int):
    trainer = build(tmp_path / "whole", Rolled)
    trainer.train()
    expected = ends_of(trainer)
    assert trainer.train_dataset.epoch == 1
    checkpoint = tmp_path / "whole" / f"checkpoint-{step}"
    resumed = build(tmp_path / "resumed", Rolled)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert equal(ends_of(resumed), expected)


def test_without_its_memory_it_would_not(tmp_path, whole, monkeypatch):
    monkeypatch.setattr(trainer_overrides, "load_memory", lambda *args: (None, load_memory(*args)[1]))
    trainer = build(tmp_path)
    trainer.train(resume_from_checkpoint=whole[0] / "checkpoint-2")
    assert not equal(ends_of(trainer), whole[1])


def test_a_dataset_without_reset_has_no_memory_in_the_next_epoch(tmp_path):
    trainer = build(tmp_path / "whole", WithoutReset)
    trainer.train()
    resumed = build(tmp_path / "resumed", WithoutReset)
    resumed.train(resume_from_checkpoint=tmp_path / "whole" / f"checkpoint-{STEPS_PER_EPOCH}")
    assert equal(ends_of(resumed), ends_of(trainer))


def test_the_last_step_of_an_epoch_is_saved_after_its_evaluation(whole):
    for epoch in (1, 2):
        state = json.loads((whole[0] / f"checkpoint-{STEPS_PER_EPOCH * epoch}" / "trainer_state.json").read_text())
        assert len([row for row in state["log_history"] if "eval_loss" in row]) == epoch


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lanes": LANES - 1}, "`lanes`=2 is not the 3"),
        ({"segment_length": SEGMENT - 1}, "`segment_length`=5 is not the 6"),
        (
            {"stream_class": type("Other", (Named,), {"text": "of seed 1"})},
            "`text`='of seed 1' is not the 'of seed 0'",
        ),
        ({"ids": text(LANES * SEGMENT * 6 + 1)}, "`segments`=18 is not the 15"),
        ({"stream_class": TextStream}, "`text`|`documents`"),
        ({"gradient_accumulation_steps": 1}, "`gradient_accumulation_steps`=1 is not the 2"),
    ],
)
def test_another_stream_is_refused_before_any_work(tmp_path, whole, changes: dict, message: str):
    trainer = build(tmp_path, **changes)
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    with pytest.raises(ValueError, match=message):
        trainer.train(resume_from_checkpoint=whole[0] / "checkpoint-2")
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_another_number_of_processes_is_refused(tmp_path, whole, monkeypatch):
    monkeypatch.setattr(
        resuming, "stream_of", lambda *args: {**json.loads(manifest.read_text())["stream"], "world_size": 2}
    )
    manifest = whole[0] / "checkpoint-2" / "checkpoint.json"
    with pytest.raises(ValueError, match="`world_size`=2 is not the 1"):
        build(tmp_path).train(resume_from_checkpoint=whole[0] / "checkpoint-2")


@pytest.mark.parametrize("name", ["optimizer.pt", "memory-0.safetensors", "rng_state.pth", "checkpoint.json"])
def test_a_checkpoint_with_a_missing_or_short_file_is_not_taken(tmp_path, whole, name: str):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    file = tmp_path / f"checkpoint-{2 * STEPS_PER_EPOCH}" / name
    file.write_bytes(file.read_bytes()[:-1] if name != "rng_state.pth" else b"")
    if name == "rng_state.pth":
        file.unlink()
    if name == "checkpoint.json":
        file.write_text(file.read_text()[:40])
    with pytest.raises(ValueError, match=f"is not a complete checkpoint.*{name}"):
        build(tmp_path).train(resume_from_checkpoint=file.parent)
    trainer = build(tmp_path)
    trainer.train(resume_from_checkpoint=True)
    assert trainer._initial_global_step == 5
    assert equal(ends_of(trainer), whole[1])


FILES = [
    "checkpoint.json", "config.json", "memory-0.safetensors", "model.safetensors", "optimizer.pt", "rng_state.pth",
    "scheduler.pt", "trainer_state.json", "training_args.json",
]  # fmt: skip


def flip(file: Path, share: float) -> None:
    """Flip a bit, `share` of the way through a file."""
    content = bytearray(file.read_bytes())
    position = int(share * (len(content) - 1))
    content[position] ^= 1 << position % 8
    file.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_refused(tmp_path, whole, name: str):
    """In a checkpoint that was asked for by its name; the last one is passed over, with a warning."""
    assert incompleteness(whole[0] / "checkpoint-6") is None
    for share in (i / 30 for i in range(31)):
        shutil.copytree(whole[0] / "checkpoint-6", tmp_path / "checkpoint-6", dirs_exist_ok=True)
        flip(tmp_path / "checkpoint-6" / name, share)
        assert f"`{name}`" in incompleteness(tmp_path / "checkpoint-6")
    with pytest.raises(
        ValueError, match=rf"resume_from_checkpoint.*checkpoint-6' is not a complete checkpoint.*`{name}`"
    ):
        build(tmp_path).train(resume_from_checkpoint=tmp_path / "checkpoint-6")


def test_a_damaged_last_checkpoint_is_passed_over(tmp_path, whole, caplog):
    for step in (5, 6):
        shutil.copytree(whole[0] / f"checkpoint-{step}", tmp_path / f"checkpoint-{step}")
    flip(tmp_path / "checkpoint-6" / "model.safetensors", 0.9)
    trainer = build(tmp_path)
    trainer.train(resume_from_checkpoint=True)
    [warning] = [text for text in caplog.messages if "complete checkpoint" in text]
    assert (
        f"{str(tmp_path / 'checkpoint-6')!r} is not a complete checkpoint (`model.safetensors` is damaged" in warning
    )
    assert trainer._initial_global_step == 5
    assert equal(ends_of(trainer), whole[1])


def without_hashes(checkpoint: Path) -> None:
    """Make the manifest that of a checkpoint of before they were kept."""
    manifest = json.loads((checkpoint / "checkpoint.json").read_text())
    del manifest["sha256"]
    manifest["files"] = {name: written["size"] for name, written in manifest["files"].items()}
    (checkpoint / "checkpoint.json").write_text(json.dumps(manifest, indent=2) + "\n")


def test_a_checkpoint_without_hashes_resumes(tmp_path, whole):
    shutil.copytree(whole[0] / "checkpoint-2", tmp_path / "checkpoint-2")
    without_hashes(tmp_path / "checkpoint-2")
    trainer = build(tmp_path)
    trainer.train(resume_from_checkpoint=True)
    assert equal(ends_of(trainer), whole[1])
    optimizer = tmp_path / "checkpoint-2" / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-1])
    assert "`optimizer.pt` has" in incompleteness(tmp_path / "checkpoint-2")


def test_a_damaged_best_checkpoint_is_not_loaded(tmp_path, monkeypatch):
    """The best one is looked at again when the training is over."""
    trainer = build(
        tmp_path, load_best_model_at_end=True, metric_for_best_model="loss", eval_strategy="steps", eval_steps=1
    )
    rotate = trainer_overrides.rotate_checkpoints

    def damage(folder: str, *args, **kwargs) -> None:
        rotate(folder, *args, **kwargs)
        if trainer.state.global_step == trainer.state.max_steps:
            flip(Path(trainer.state.best_model_checkpoint, "model.safetensors"), 0.9)

    monkeypatch.setattr(trainer_overrides, "rotate_checkpoints", damage)
    with pytest.raises(ValueError, match="`load_best_model_at_end`=True.*`model.safetensors` is damaged"):
        trainer.train()


@pytest.mark.parametrize("method", ["save_model", "_save_optimizer_and_scheduler", "_save_rng_state"])
def test_a_checkpoint_that_could_not_be_written_leaves_those_before(tmp_path, monkeypatch, method: str):
    trainer = build(tmp_path)
    write = getattr(trainer, method)

    def fail(*args, **kwargs):
        if trainer.state.global_step == 2:
            raise OSError("no space left on device")
        write(*args, **kwargs)

    monkeypatch.setattr(trainer, method, fail)
    with pytest.raises(OSError, match="no space"):
        trainer.train()
    assert checkpoints_of(tmp_path) == [get_last_checkpoint(str(tmp_path))] == [str(tmp_path / "checkpoint-1")]
    again = build(tmp_path)
    again.train(resume_from_checkpoint=True)
    assert not list(tmp_path.glob("_*"))  # what was left of it is gone


def test_a_disk_that_is_full_is_named(tmp_path, monkeypatch):
    """torch's writer says something else, and of no file."""

    def full(state, path, *args, **kwargs):
        if str(path).endswith("optimizer.pt"):
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 41024 vs 40912")
        saved(state, path, *args, **kwargs)

    saved = torch.save
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"is the disk full\?: '.*/checkpoint-1'"):
        build(tmp_path, max_steps=1).train()
    assert not checkpoints_of(tmp_path)


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    for learning_rate in (0.01, 0.02):
        trainer = build(tmp_path, max_steps=1, learning_rate=learning_rate, eval_strategy="no")
        trainer.train()
    assert json.loads((tmp_path / "checkpoint-1" / "training_args.json").read_text())["learning_rate"] == 0.02
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]


def test_a_checkpoint_that_was_whole_but_had_no_name_yet_gets_it(tmp_path):
    """Of one that was killed while it replaced one of the same step; what else begins so is not ours."""
    build(tmp_path, max_steps=1, eval_strategy="no").train()
    os.replace(tmp_path / "checkpoint-1", tmp_path / "_saving-checkpoint-1")
    (tmp_path / "_saving-notes").mkdir()
    build(tmp_path, max_steps=1, eval_strategy="no").train(resume_from_checkpoint=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_saving-notes", "checkpoint-1"]
    for name in ("_saving-checkpoint-1.old", "_saving-checkpoint-2"):
        (tmp_path / name).mkdir()
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_saving-notes", "checkpoint-1"]


@pytest.mark.parametrize(
    ("changed", "renamed", "message"),
    [
        ({"global_step": 10**12}, "checkpoint-2", "`global_step`=1000000000000 is not that of the folder, 2"),
        ({"global_step": 10**12}, "another name", "is above the 6 steps of this training"),
        (
            {"global_step": 10**12, "max_steps": 10**13},
            f"checkpoint-{10**12}",
            "is above the 6 steps of this training",
        ),
        ({"global_step": "2"}, "checkpoint-2", "`global_step`='2' must be a number of steps"),
        ({"global_step": True}, "checkpoint-2", "`global_step`=True must be"),
        ({"max_steps": -1}, "checkpoint-2", "`max_steps`=-1 must be"),
        ({"stateful_callbacks": {}}, "checkpoint-2", r"trainer_state\.json' cannot be read: KeyError"),
    ],
)
def test_a_checkpoint_whose_step_cannot_be_is_refused(tmp_path, whole, changed: dict, renamed: str, message: str):
    folder = Path(shutil.copytree(whole[0] / "checkpoint-2", tmp_path / renamed))
    state = json.loads((folder / "trainer_state.json").read_text()) | changed
    (folder / "trainer_state.json").write_text(json.dumps(state))
    stream = json.loads((folder / "checkpoint.json").read_text())["stream"]
    (folder / "checkpoint.json").unlink()
    write_manifest(folder, stream)
    trainer = build(tmp_path)
    with pytest.raises(ValueError, match=message):
        trainer.train(resume_from_checkpoint=folder)
    assert trainer.state.global_step in (0, 10**12)


def test_a_training_that_has_no_step_left_takes_none(tmp_path):
    """Neither at the end of an epoch nor in its middle; fewer steps than it has taken are refused."""
    for steps in (3, 4):
        build(tmp_path, max_steps=steps, eval_strategy="no").train()
        again = build(tmp_path, max_steps=steps, eval_strategy="no")
        again.train(resume_from_checkpoint=True)
        assert again.state.global_step == steps
    for fields in ({"max_steps": 3}, {"num_train_epochs": 1}):
        with pytest.raises(ValueError, match="`global_step`=4 of the checkpoint .* is above the 3 steps"):
            build(tmp_path, eval_strategy="no", **fields).train(resume_from_checkpoint=True)


def test_nothing_to_resume(tmp_path, whole):
    with pytest.raises(ValueError, match="has no complete checkpoint"):
        build(tmp_path).train(resume_from_checkpoint=True)
    trainer = build(tmp_path, save_only_model=True, eval_strategy="no", max_steps=1)
    trainer.train()
    with pytest.raises(ValueError, match="save_only_model"):
        build(tmp_path).train(resume_from_checkpoint=True)


def test_the_position_in_an_iterable_dataset_is_known_in_its_first_pass(tmp_path):
    """It has five batches: the checkpoint of step 2 resumes exactly, that of step 6 is refused."""
    ends = []
    for name, resumed in (("whole", None), ("resumed", "checkpoint-2"), ("refused", "checkpoint-6")):
        trainer = build(tmp_path / name, max_steps=7, gradient_accumulation_steps=1, eval_strategy="no")
        trainer.train_dataset = Flowing(trainer.train_dataset)
        if name == "refused":
            with pytest.raises(ValueError, match="has no length and was read more than once"):
                trainer.train(tmp_path / "whole" / resumed)
        else:
            trainer.train(resumed and tmp_path / "whole" / resumed)
            ends.append(ends_of(trainer))
    assert equal(*ends)


def test_a_training_that_is_over_may_go_on_for_longer(tmp_path, whole):
    trainer = build(tmp_path, num_train_epochs=3)
    trainer.train(resume_from_checkpoint=whole[0] / f"checkpoint-{2 * STEPS_PER_EPOCH}")
    assert trainer.state.global_step == 3 * STEPS_PER_EPOCH


def test_memory_is_stored_as_it_is(tmp_path):
    shared = torch.randn(3, 8, 4)
    layers = LayerMemory((shared[:, 2:],)), LayerMemory(state=(shared[:, :2].bfloat16(),))
    memory = Memory(layers, torch.tensor([6, 2, 0]), torch.arange(3), (shared,))
    save_memory(tmp_path / "memory", memory, {"loss": torch.tensor(1.5)})
    loaded, extra = load_memory(tmp_path / "memory", torch.device("cpu"))
    for ours, theirs in zip(tensors_of(loaded), tensors_of(memory), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    assert loaded.named_tensors().keys() == memory.named_tensors().keys()
    assert extra == {"loss": torch.tensor(1.5)}
    save_memory(tmp_path / "nothing", None, {})
    assert load_memory(tmp_path / "nothing", torch.device("cpu")) == (None, {})
    save_file({"mems.0": shared, "mems_mask": torch.ones(3, 8), "loss": torch.tensor(1.5)}, tmp_path / "earlier")
    with pytest.raises(
        ValueError, match="'.*earlier' holds a memory as an earlier version wrote it.*begin a new training"
    ):
        load_memory(tmp_path / "earlier", torch.device("cpu"))


def test_what_a_checkpoint_holds(whole):
    """Pickles are transformers' own, which it reads with `weights_only=True`."""
    names = {path.name for path in (whole[0] / "checkpoint-2").iterdir() if path.suffix != ".py"}  # beside its code
    assert names == {
        "config.json", "generation_config.json", "model.safetensors", "training_args.json", "optimizer.pt", "scheduler.pt",
        "rng_state.pth", "memory-0.safetensors", "trainer_state.json", "checkpoint.json",
    }  # fmt: skip


@pytest.mark.slow
def test_killed_trainings_end_the_same():
    """Two kills of one process and one of a pair; `make stress` makes 200."""
    script = ROOT / "benchmarks" / "stress_resume.py"
    done = run_processes(script, "--kills", 3, "--processes", 2, 1, "--seed", 1, processes=1)
    assert done.succeeded, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(report["processes"], report["kills"]) for report in reports] == [(2, 1), (1, 2)]
