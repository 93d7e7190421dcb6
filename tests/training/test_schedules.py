"""The schedules of Transformer-XL's released code are those of transformers, compared with what it computes (train.py)."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau
from transformers import Trainer

from transformers_xl.training.trainer import MemoryTrainingArguments

RATE, STEPS = 2.5e-4, 40


def rates(tmp_path, **fields) -> list[float]:
    """The learning rate of each step."""
    args = MemoryTrainingArguments(str(tmp_path), learning_rate=RATE, max_steps=STEPS, report_to="none", **fields)
    trainer = Trainer(torch.nn.Linear(2, 2), args)
    trainer.create_optimizer_and_scheduler(STEPS)
    seen = []
    for _ in range(STEPS):
        seen.append(trainer.optimizer.param_groups[0]["lr"])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    return seen


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=RATE)


@pytest.mark.parametrize("minimum", [0.0, 1e-5])
def test_cosine(tmp_path, minimum: float):
    adam = optimizer()
    theirs, expected = CosineAnnealingLR(adam, STEPS, eta_min=minimum), []
    for _ in range(STEPS):
        expected.append(adam.param_groups[0]["lr"])
        adam.step()
        theirs.step()
    fields = {"lr_scheduler_type": "cosine"}
    if minimum:
        fields = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": minimum}}
    assert rates(tmp_path, **fields) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_cosine_with_warm_up(tmp_path):
    """The cosine of transformers begins where the warm-up ends; theirs has been falling meanwhile, by less than this."""
    warm_up, ours = 4, rates(tmp_path, lr_scheduler_type="cosine", warmup_steps=4)
    theirs = [
        RATE * (step / warm_up if step < warm_up else (1 + math.cos(math.pi * step / STEPS)) / 2)
        for step in range(STEPS)
    ]
    assert ours[:warm_up] == pytest.approx(theirs[:warm_up])
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < RATE * warm_up / STEPS
    assert ours[warm_up] == RATE


def test_inverse_square_root(tmp_path):
    """Their rate is that of step 1 of an endless fall; ours is the peak, theirs / sqrt(warm-up)."""
    warm_up = 5
    theirs = RATE * math.sqrt(warm_up)
    expected = [theirs * (step**-0.5 if step > warm_up else step / warm_up**1.5) for step in range(STEPS)]
    assert rates(tmp_path, lr_scheduler_type="inverse_sqrt", warmup_steps=warm_up) == pytest.approx(expected)


def test_performance_on_the_development_set(tmp_path):
    losses = [3.0, 2.0, 2.5, 2.4, 1.9, 2.0, 2.1, 2.2]
    adam = optimizer()
    theirs = ReduceLROnPlateau(adam, factor=0.5, patience=0, min_lr=RATE / 8)
    args = MemoryTrainingArguments(
        str(tmp_path), learning_rate=RATE, report_to="none", lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"factor": 0.5, "patience": 0, "min_lr": RATE / 8}, eval_strategy="steps", eval_steps=1,
    )  # fmt: skip
    trainer = Trainer(torch.nn.Linear(2, 2), args, eval_dataset=[0])
    trainer.create_optimizer_and_scheduler(STEPS)
    seen = []
    for loss in losses:
        theirs.step(loss)
        trainer.lr_scheduler.step(loss)
        seen.append(trainer.optimizer.param_groups[0]["lr"])
        assert seen[-1] == adam.param_groups[0]["lr"]
    assert seen[-1] == RATE / 8 < seen[3] < RATE
