"""A warning where a training ends before its warm-up does: what was to grow never reaches its full value."""

from collections.abc import Iterator
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from transformers_xl.training.memory_warmup import WARMUPS

logger = logging.get_logger(__name__)

WITHOUT_WARMUP = (
    "constant",
    "reduce_lr_on_plateau",
    "greedy",
)  # schedules of transformers that never read `warmup_steps`


class UnfinishedWarmups(TrainerCallback):
    """Warns when a training begins, because its number of steps may follow from the data."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            for sentence in unfinished_warmups(args, state.max_steps):
                logger.warning(sentence)


def unfinished_warmups(args: TrainingArguments, max_steps: int) -> Iterator[str]:
    """A sentence for every warm-up that a training of `max_steps` does not finish."""
    asked = [
        (each.steps_name, each.steps(args), each.callback.field) for each in WARMUPS if each.start(args) is not None
    ]
    if args.lr_scheduler_type not in WITHOUT_WARMUP:
        asked.append(("warmup_steps", args.warmup_steps, "learning_rate"))
    for name, steps, field in asked:
        if steps >= max_steps:
            yield (
                f"`{name}`={steps:g}, but the training ends after {max_steps} steps, before `{field}` has its full value: "
                f"set `{name}` below {max_steps}, or to a share of the training, such as 0.1."
            )


__all__ = ["UnfinishedWarmups", "unfinished_warmups"]
