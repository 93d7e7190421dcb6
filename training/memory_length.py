"""A memory that grows while a model learns: short texts first, as the beginning of a training is cheaper so."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from transformers_xl.modeling.modeling_memory import MemoryPreTrainedModel


class MemoryLengthWarmup(TrainerCallback, ExportableState):
    """Raises the model's `mem_len` from `start` to its own over the first `steps` of the training, in a line.

    Below 1, `steps` are a share of the training. A checkpoint from the time before has the length of its step in its
    config; the length that the training is bound for stands in the state of this callback.
    """

    def __init__(self, start: int, steps: float, mem_len: int | None = None):
        self.start, self.steps, self.mem_len = start, steps, mem_len

    def state(self) -> dict[str, dict]:
        return {"args": {"start": self.start, "steps": self.steps}, "attributes": {"mem_len": self.mem_len}}

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
            self.mem_len = saved.get("attributes", {}).get("mem_len") or model.config.mem_len
            self.set_length(state, model)

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: MemoryPreTrainedModel | None = None,
        **kwargs: Any,
    ) -> None:
        if model is not None:
            self.set_length(state, model)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: MemoryPreTrainedModel | None = None,
        **kwargs: Any,
    ) -> None:
        if model is not None and self.mem_len is not None:
            model.resize_memory(self.mem_len)

    def set_length(self, state: TrainerState, model: MemoryPreTrainedModel) -> None:
        steps = self.steps if self.steps >= 1 else self.steps * state.max_steps
        done = min(1.0, state.global_step / max(1.0, steps))
        whole = self.mem_len or model.config.mem_len
        model.resize_memory(self.start + int((whole - self.start) * done))


def check_memory_warmup(model: Any, args: TrainingArguments) -> None:
    """Raise a `ValueError` where a memory cannot grow as the arguments say."""
    start, steps = getattr(args, "initial_mem_len", None), getattr(args, "mem_len_warmup_steps", 0)
    if (start is None) != (steps == 0) or steps < 0:
        raise ValueError(
            f"`initial_mem_len`={start} and `mem_len_warmup_steps`={steps} belong together: give a length to begin with, "
            "in positions, and the steps (or a share below 1) in which it grows to `mem_len`; or neither."
        )
    if start is None or model is None:
        return
    if not hasattr(model, "resize_memory"):
        raise ValueError(
            f"`initial_mem_len`={start}, but `model` is a {type(model).__name__}, whose memory has no length."
        )
    if start > model.config.mem_len:
        raise ValueError(
            f"`initial_mem_len`={start} is above `mem_len`={model.config.mem_len} of the model: a memory grows."
        )
    model.config.with_mem_len(start)


__all__ = ["MemoryLengthWarmup", "check_memory_warmup"]
