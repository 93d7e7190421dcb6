"""A training that is resumed with another learning rate or schedule says which of the two applies, and that one does."""

import pytest
from trained import LANES, SEGMENT, arguments, small_model, text

from transformers_xl import MemoryTrainer
from transformers_xl.data.text_stream import TextStream
from transformers_xl.training.changed_arguments import changed_arguments, write_arguments

FIELDS = {
    "optim": "adamw_torch", "learning_rate": 0.01, "lr_scheduler_type": "linear", "warmup_steps": 2, "max_steps": 8,
    "save_strategy": "steps", "save_steps": 4, "use_cpu": True,
}  # fmt: skip


def build(folder, **fields) -> MemoryTrainer:
    stream = TextStream(text(LANES * SEGMENT * 8 + 1), SEGMENT, LANES)
    evaluated = {"eval_strategy": "steps", "eval_steps": 1} if "lr_scheduler_type" in fields else {}
    args = arguments(folder, **(FIELDS | evaluated | fields))
    return MemoryTrainer(small_model(), args, train_dataset=stream, eval_dataset=stream)


def rates(trainer: MemoryTrainer) -> list[float]:
    """The learning rate of every step from the fifth on."""
    return [row["learning_rate"] for row in trainer.state.log_history if row["step"] > 4 and "learning_rate" in row]


def resumed(folder, caplog, before: dict, now: dict) -> tuple[MemoryTrainer, list[str]]:
    """A training from the middle of another, and what it said of arguments that differ, or of weights that are tied."""
    build(folder, **before).train()
    caplog.clear()
    trainer = build(folder, **(before | now))
    trainer.train(resume_from_checkpoint=folder / "checkpoint-4")
    return trainer, [said for said in caplog.messages if "differs from" in said or "missing keys" in said]


def test_nothing_is_said_of_equal_arguments(tmp_path, caplog):
    assert resumed(tmp_path, caplog, {}, {"logging_strategy": "steps"})[1] == []


@pytest.mark.parametrize(
    ("name", "before", "now"),
    [
        ("learning_rate", 0.01, 0.02),
        ("weight_decay", 0.1, 0.2),
        ("adam_beta2", 0.99, 0.9),
    ],
)
def test_the_optimizer_is_that_of_the_checkpoint(tmp_path, caplog, name: str, before: float, now: float):
    trainer, said = resumed(tmp_path, caplog, {name: before}, {name: now})
    assert len(said) == 1
    assert f"`{name}`={now!r} differs from {before!r} in the checkpoint" in said[0]
    assert f"{before!r} applies. To train with {now!r}, load the weights" in said[0]
    if name == "learning_rate":
        assert rates(trainer) == pytest.approx([0.01 * left / 6 for left in (4, 3, 2, 1)])
    elif name == "weight_decay":
        assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.1, 0.0]
    else:
        assert trainer.optimizer.param_groups[0]["betas"] == (0.9, 0.99)


def test_rates_of_groups_are_those_of_the_checkpoint(tmp_path):
    write_arguments(tmp_path, arguments(tmp_path, group_learning_rates={"keys": 0.1}))
    [said] = changed_arguments(tmp_path, arguments(tmp_path, group_learning_rates={"keys": 0.2}))
    assert "`group_learning_rates`={'keys': 0.2} differs from {'keys': 0.1}" in said
    assert "{'keys': 0.1} applies." in said


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({"max_steps": 6}, [0.01 * left / 4 for left in (2, 1)]),
        ({"warmup_steps": 0}, [0.01 * left / 8 for left in (4, 3, 2, 1)]),
        ({"lr_scheduler_type": "constant"}, [0.01] * 4),
        (
            {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": 0.004, "power": 1.0}},
            [0.004 + 0.006 * left / 6 for left in (4, 3, 2, 1)],
        ),
    ],
)
def test_the_schedule_is_that_of_the_run(tmp_path, caplog, now: dict, expected: list[float]):
    """The first rate is still the checkpoint's, which had computed it."""
    trainer, said = resumed(tmp_path, caplog, {}, now)
    assert len(said) == len(now)
    for name, value in now.items():
        assert any(f"`{name}`={value!r} differs" in sentence for sentence in said)
    assert all("applies from here on" in sentence for sentence in said)
    assert rates(trainer)[1:] == pytest.approx(expected[1:])


def test_the_length_in_epochs(tmp_path, caplog):
    said = resumed(tmp_path, caplog, {"max_steps": -1, "num_train_epochs": 1}, {"num_train_epochs": 2})[1]
    assert len(said) == 1
    assert "`num_train_epochs`=2 differs from 1" in said[0]


def test_the_length_in_epochs_has_no_effect_beside_that_in_steps(tmp_path, caplog):
    assert resumed(tmp_path, caplog, {"num_train_epochs": 1}, {"num_train_epochs": 2})[1] == []


@pytest.mark.parametrize("schedule", ["reduce_lr_on_plateau", "greedy"])
def test_a_schedule_that_follows_the_loss_is_that_of_the_checkpoint(tmp_path, caplog, schedule: str):
    before = {"lr_scheduler_type": schedule, "lr_scheduler_kwargs": {"factor": 0.5}}
    trainer, said = resumed(tmp_path, caplog, before, {"lr_scheduler_kwargs": {"factor": 0.25}})
    assert len(said) == 1
    assert "{'factor': 0.5} applies. To train with {'factor': 0.25}" in said[0]
    assert trainer.lr_scheduler.factor == 0.5
    for now in ("linear", schedule):
        other = build(tmp_path / "other", lr_scheduler_type="linear" if now == schedule else schedule)
        other.train()
        with pytest.raises(ValueError, match=f"`lr_scheduler_type`='{now}' cannot resume"):
            build(tmp_path / "other", lr_scheduler_type=now).train(resume_from_checkpoint=True)


def test_another_optimizer_is_refused(tmp_path, caplog):
    """Its state is another; the kernels of AdamW share one."""
    trainer, said = resumed(tmp_path, caplog, {}, {"optim": "adamw_torch_fused"})
    assert len(said) == 1
    assert "`optim`='adamw_torch_fused' differs from 'adamw_torch'" in said[0]
    assert "'adamw_torch_fused' applies from here on" in said[0]
    assert trainer.state.global_step == 8
    other = build(tmp_path, optim="sgd")
    with pytest.raises(
        ValueError, match=r"`optim`='sgd' cannot resume where the 'adamw_torch' of the checkpoint .*resume with that"
    ):
        other.train(resume_from_checkpoint=tmp_path / "checkpoint-4")
    assert other.state.global_step == 0


def test_a_warmup_is_that_of_the_checkpoint(tmp_path, caplog):
    """transformers makes a callback anew from what the checkpoint says of it."""
    before = {"initial_mem_len": 1, "mem_len_warmup_steps": 1000.0}
    trainer, said = resumed(tmp_path, caplog, before, {"mem_len_warmup_steps": 5.0})
    assert len(said) == 1
    assert "`mem_len_warmup_steps`=5.0 differs from 1000.0 in the checkpoint" in said[0]
    assert "1000.0 applies. To train with 5.0, load the weights" in said[0]
    assert trainer.state.stateful_callbacks["MemoryLengthWarmup"]["args"]["steps"] == 1000.0
