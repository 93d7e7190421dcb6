"""The learning curve of a run: held-out scores by step and by time, each of which is that of a shorter run."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from transformers_xl.modeling.evaluating import evaluating
from transformers_xl.training.averaging import WeightAverage

DECAY = 0.99  # of the average of the weights


@dataclass(frozen=True)
class CurvePoint:
    """A moment of a training.

    Args:
        step: optimizer steps so far.
        seconds: of the training so far, those of the scores left out: of the processor, or, on a GPU, of the clock.
        bits_per_byte: of the held-out text.
    """

    step: int
    seconds: float
    bits_per_byte: float


class LearningCurve(TrainerCallback):
    """Scores an exponential average of the weights after some steps, and leaves the model with it.

    With a constant learning rate and averaged weights, a point is what a training of so many steps would have given; in the
    middle of a decay it is not.

    Args:
        score: returns the bits per byte of a model, which is in evaluation mode.
        points: the steps.
    """

    def __init__(self, score: Callable[[PreTrainedModel], float], points: list[int]):
        self.score, self.steps = score, points
        self.average = WeightAverage("ema", DECAY)
        self.points: list[CurvePoint] = []
        self.clock = time.process_time
        self.seconds = self.resumed_at = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.clock = time.process_time if args.device.type == "cpu" else time.perf_counter
        self.resumed_at = self.clock()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel | None = None,
        **kwargs: Any,
    ) -> None:
        assert model is not None, "the Trainer says which model it trains"
        step = state.global_step
        self.average.decay = min(DECAY, step / (step + 9))  # what the weights were at the start is soon forgotten
        self.average.update(model)
        if step not in self.steps:
            return
        self.seconds += self.clock() - self.resumed_at
        with self.average.swapped_in(model), evaluating(model):
            self.points.append(CurvePoint(step, round(self.seconds, 2), self.score(model)))
        self.resumed_at = self.clock()

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel | None = None,
        **kwargs: Any,
    ) -> None:
        assert model is not None, "the Trainer says which model it trained"
        self.average.copy_to(model)


__all__ = ["CurvePoint", "LearningCurve"]
