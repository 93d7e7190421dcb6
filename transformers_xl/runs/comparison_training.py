"""One training of a comparison: AdamW without weight decay, gradients clipped at 1, and an average of the weights that is
scored.

The trainers of transformers read a fixed number of rows a step; here a model that reads blocks reads a part of the lanes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import get_scheduler

from transformers_xl.runs.comparison_plan import ComparisonPlan
from transformers_xl.runs.comparison_reading import Batch, Reading
from transformers_xl.runs.comparison_search import Setting
from transformers_xl.runs.fitting import prepare_for_inference, processes
from transformers_xl.runs.onednn_linear import accelerate_linear_layers
from transformers_xl.training.averaging import WeightAverage

DECAY = 0.99  # of the average of the weights
SCHEDULERS = {"constant": "constant_with_warmup", "cosine": "cosine", "linear": "linear"}


class Diverged(ValueError):
    """A loss is no number any more."""

    def __init__(self, step: int):
        super().__init__(f"the loss is not finite after {step} steps.")


class Training:
    """A model in training; `step` is one step of it.

    Args:
        model: built from a seed, which also sets its dropout.
        reading: how it reads.
        ids: the training text `(tokens,)`.
        plan: sizes of a batch, and the warm-up.
        setting: learning rate and schedule.
        steps: all steps of the training.
    """

    def __init__(
        self, model: Any, reading: Reading, ids: np.ndarray, plan: ComparisonPlan, setting: Setting, steps: int
    ):
        self.model = accelerate_linear_layers(model).to(processes().device).train()
        self.reading, self.steps = reading, steps
        self.batches: Iterator[Batch] = reading.batches(ids, plan.batch_size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=setting.rate, weight_decay=0.0)
        warmup = min(plan.warmup_steps, steps)
        self.scheduler = get_scheduler(SCHEDULERS[setting.schedule], self.optimizer, warmup, steps)
        self.average = WeightAverage("ema", DECAY)
        self.state: Any = None
        self.step_number = 0

    def step(self) -> float:
        """One optimizer step; nats per token of its batch, before it."""
        if hasattr(self.model, "training_progress"):
            self.model.training_progress = self.step_number / self.steps
        ids, targets, begins = next(self.batches)
        device = self.model.device
        state = None if begins else self.state
        loss, self.state = self.reading.loss(self.model, ids.to(device), targets.to(device), state)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        if hasattr(self.model, "trim_spans"):
            self.model.trim_spans()
        self.step_number += 1
        # what the weights were at the start is soon forgotten
        self.average.decay = min(DECAY, self.step_number / (self.step_number + 9))
        self.average.update(self.model)
        return loss.item()

    def run(self, documents: list[np.ndarray], points: list[int]) -> dict[int, np.ndarray]:
        """Train to the last of `points`; the nats of each document after each of them, by the averaged weights, with which
        the model ends.

        Raises:
            Diverged: a loss is no number any more.
        """
        scores = {}
        for point in points:
            while self.step_number < point:
                if not np.isfinite(self.step()):
                    raise Diverged(self.step_number)
            with self.average.swapped_in(self.model):
                scores[point] = self.reading.document_nats(self.model, documents)
            if not np.isfinite(scores[point]).all():
                raise Diverged(point)
        self.average.copy_to(self.model)
        prepare_for_inference(self.model)
        return scores


__all__ = ["Diverged", "Training"]
