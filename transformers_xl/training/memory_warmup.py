"""A memory, or a number of segments, that grows as a training begins: a short one is cheaper and learned sooner."""

from typing import Any, NamedTuple

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from transformers_xl.modeling.modeling_memory import MemoryPreTrainedModel


class ConfigWarmup(TrainerCallback, ExportableState):
    """Raises a field of the model's config from `start` to its own value over the first `steps` of the training, in a line.

    Below 1, `steps` are a share of the training. A checkpoint from the time before has the value of its step in its config;
    the value that the training is bound for stands in the state of this callback, under the name of the field.
    """

    field: str

    def __init__(self, start: int, steps: float):
        self.start, self.steps = start, steps
        self.whole: int | None = None

    def state(self) -> dict[str, dict]:
        return {"args": {"start": self.start, "steps": self.steps}, "attributes": {self.field: self.whole}}

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: MemoryPreTrainedModel | None = None,
        **kwargs: Any,
    ) -> None:
        if model is not None:
            callbacks: Any = state.stateful_callbacks  # by name, as they were saved
            saved = callbacks.get(type(self).__name__, {}) if state.global_step else {}
            self.whole = saved.get("attributes", {}).get(self.field) or getattr(model.config, self.field)
            self.set_step(state, model)

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: MemoryPreTrainedModel | None = None,
        **kwargs: Any,
    ) -> None:
        if model is not None:
            self.set_step(state, model)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: MemoryPreTrainedModel | None = None,
        **kwargs: Any,
    ) -> None:
        if model is not None and self.whole is not None:
            self.set_value(model, self.whole)

    def set_step(self, state: TrainerState, model: MemoryPreTrainedModel) -> None:
        steps = self.steps if self.steps >= 1 else self.steps * state.max_steps
        done = min(1.0, state.global_step / max(1.0, steps))
        whole = self.whole or getattr(model.config, self.field)
        self.set_value(model, self.start + int((whole - self.start) * done))

    def set_value(self, model: MemoryPreTrainedModel, value: int) -> None:
        setattr(model.config, self.field, value)


class MemoryLengthWarmup(ConfigWarmup):
    """The length of the memory grows."""

    field = "mem_len"

    def set_value(self, model: MemoryPreTrainedModel, value: int) -> None:
        model.resize_memory(value)


class BpttWarmup(ConfigWarmup):
    """The number of segments grows through which the gradient of memory tokens passes: Bulatov et al., 2022,
    https://arxiv.org/abs/2207.06881, train first on one segment, then on more.

    Differs from the original: a step reads equally many segments from the beginning to the end, in more groups at first;
    and the number grows evenly with the steps.
    """

    field = "bptt_segments"


class Warmup(NamedTuple):
    """A warm-up that arguments ask for: the callback, the argument that says where it starts, and that of its steps."""

    callback: type[ConfigWarmup]
    start_name: str
    steps_name: str

    def start(self, args: TrainingArguments) -> int | None:
        return getattr(args, self.start_name, None)

    def steps(self, args: TrainingArguments) -> float:
        return getattr(args, self.steps_name, 0.0)

    def check(self, model: Any, args: TrainingArguments) -> None:
        """Raise a `ValueError` where a field cannot grow as the arguments say."""
        start, steps, field = self.start(args), self.steps(args), self.callback.field
        if (start is None) != (steps == 0) or steps < 0:
            raise ValueError(
                f"`{self.start_name}`={start} and `{self.steps_name}`={steps} belong together: give a value to begin with, "
                f"and the steps (or a share below 1) in which it grows to `{field}`; or neither."
            )
        if start is None or model is None:
            return
        whole = getattr(getattr(model, "config", None), field, None)
        if whole is None or not hasattr(model, "resize_memory"):
            raise ValueError(
                f"`{self.start_name}`={start}, but `model` is a {type(model).__name__}, which has no "
                f"`{field}`: leave it out."
            )
        if start > whole:
            raise ValueError(
                f"`{self.start_name}`={start} is above `{field}`={whole} of the model: begin with a smaller value."
            )
        if field == "mem_len":
            model.config.with_mem_len(start)
        elif start < 1:
            raise ValueError(f"`{self.start_name}`={start} must be at least 1.")


WARMUPS = (
    Warmup(MemoryLengthWarmup, "initial_mem_len", "mem_len_warmup_steps"),
    Warmup(BpttWarmup, "initial_bptt_segments", "bptt_warmup_steps"),
)


def check_warmups(model: Any, args: TrainingArguments) -> None:
    """Raise a `ValueError` where a memory cannot grow as the arguments say."""
    for warmup in WARMUPS:
        warmup.check(model, args)


def warmups_of(args: TrainingArguments) -> list[ConfigWarmup]:
    """The callbacks that the arguments ask for."""
    asked = [(warmup.callback, warmup.start(args), warmup.steps(args)) for warmup in WARMUPS]
    return [callback(start, steps) for callback, start, steps in asked if start is not None]


__all__ = ["BpttWarmup", "ConfigWarmup", "MemoryLengthWarmup", "check_warmups", "warmups_of"]
