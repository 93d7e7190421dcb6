"""Callbacks of `MemoryTrainer`."""

import signal
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from transformers_xl.modeling.adapters import without_adapters


class CheckpointCallback(TrainerCallback):
    """A callback that adds files to a checkpoint.

    The `on_save` of transformers comes after the checkpoint has its name: what it writes would be missing from one
    that a killed process left. `MemoryTrainer` calls these two on every process.
    """

    def on_checkpoint(self, args: TrainingArguments, state: TrainerState, folder: Path, model: nn.Module) -> None:
        """Write into `folder`, before the checkpoint counts as complete."""

    def on_resume(self, args: TrainingArguments, state: TrainerState, folder: Path, model: nn.Module) -> None:
        """Read from the checkpoint `folder`, when the model has its weights and before the first step."""


class TrainingProgress(TrainerCallback):
    """Tells a model which share of its training is over, where it has a `training_progress`: its losses have a schedule."""

    def on_step_begin(self, args, state, control, model: nn.Module | None = None, **kwargs) -> None:
        # an attribute of a `PeftModel` would stay on the wrapper
        model = without_adapters(model)
        if model is not None and hasattr(model, "training_progress"):
            model.training_progress = state.global_step / max(1, state.max_steps)


def follow_spans(model: nn.Module) -> None:
    """Trim the layers of a model with adaptive span anew, after its weights were exchanged: `config.layer_spans` belongs to
    the weights before. A model that was never trimmed stays so: its spans may grow."""
    base = without_adapters(model)
    if hasattr(base, "trim_spans") and base.config.layer_spans is not None:
        base.trim_spans()


class SpanTrimming(CheckpointCallback):
    """Lets the layers of a model with adaptive span keep no more than their heads see, after every step."""

    def on_step_end(self, args, state, control, model: nn.Module | None = None, **kwargs) -> None:
        trim_spans = getattr(model, "trim_spans", None)
        if trim_spans is not None:
            trim_spans()

    def on_resume(self, args, state, folder: Path, model: nn.Module) -> None:
        self.on_step_end(args, state, None, model)


class SavingAfterEpoch(TrainerCallback):
    """Saves the last step of an epoch when the epoch's own evaluation and log are done: a resumed training begins with the
    next epoch, and would never have made them."""

    due = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        at_the_end = IntervalStrategy.EPOCH in (args.eval_strategy, args.logging_strategy)
        if control.should_save and at_the_end and state.epoch == int(state.epoch):
            control.should_save, self.due = False, True
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        control.should_save, self.due = control.should_save or self.due, False
        return control


class SavingOnSignal(TrainerCallback):
    """Saves a checkpoint when the process is asked to end (Ctrl-C, or SIGTERM of a cluster), and stops the training then.

    A second signal ends it at once. Of several processes, all stop at the step at which one was asked.

    Attributes:
        stopped: whether a training was stopped so.
    """

    def __init__(self) -> None:
        self.asked = self.stopped = False
        self.handlers: dict[signal.Signals, Any] = {}

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.asked = self.stopped = False
        if threading.current_thread() is threading.main_thread():
            self.handlers = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.handlers = {}

    def on_step_end(self, args, state, control, **kwargs) -> TrainerControl:
        if args.world_size > 1:
            asked = torch.tensor(int(self.asked), device=args.device)
            torch.distributed.all_reduce(asked)
            self.asked = bool(asked)
        if self.asked:
            control.should_save = True
        return control

    def on_save(self, args, state, control, **kwargs) -> TrainerControl:
        # only now: a checkpoint that knows of the stop would be taken for one of a training that is over
        if self.asked:
            self.stopped = control.should_training_stop = True
        return control

    def on_train_end(self, args, state, control, **kwargs) -> None:
        self._restore()


__all__ = ["CheckpointCallback", "SavingAfterEpoch", "SavingOnSignal", "SpanTrimming", "TrainingProgress"]
