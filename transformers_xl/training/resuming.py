"""A `Trainer` whose checkpoints hold the memory, and from which a training resumes as if it had never stopped."""

import re
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput
from transformers.utils import logging

from transformers_xl.files.blaming import blamed
from transformers_xl.files.json_files import read_json
from transformers_xl.files.output_lock import LOCK, output_lock
from transformers_xl.training.changed_arguments import changed_adapters, changed_arguments, write_arguments
from transformers_xl.training.checkpoints import check_resumable, check_whole, checkpoints_of, remove_unfinished
from transformers_xl.training.rows import stream_of
from transformers_xl.training.trainer_overrides import TrainerOverrides

logger = logging.get_logger(__name__)


class CheckingSteps(TrainerCallback):
    """Refuses a checkpoint that is further than the training is to go, which would end at once."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step > state.max_steps:
            raise ValueError(
                f"`global_step`={state.global_step} of the checkpoint {str(self.folder)!r} is above the {state.max_steps} "
                "steps of this training: set `max_steps` or `num_train_epochs` higher, or resume from another checkpoint."
            )


class Restoring(TrainerCallback):
    """Gives a trainer what the checkpoint `folder` holds, also where no step is left to take."""

    def __init__(self, trainer: TrainerOverrides, folder: Path):
        self.trainer, self.folder = trainer, folder

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.restore_training_state(self.folder)
        # transformers would take a step in the middle of an epoch
        self.trainer.was_stopped = self.trainer.was_stopped or state.global_step == state.max_steps


class ResumableTrainer(TrainerOverrides):
    """What `MemoryTrainer` does about checkpoints; `memory` holds the memories, under `"train"` and `"eval"`."""

    def train(
        self,
        resume_from_checkpoint: str | Path | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, from the beginning or from a checkpoint.

        Args:
            resume_from_checkpoint: the folder of a checkpoint, or True for the last complete one of `output_dir`: one that
                is damaged is passed over with a warning.
            trial, ignore_keys_for_eval: as `transformers.Trainer.train` takes them.

        Raises:
            ValueError: there is not a complete checkpoint; it stopped in another stream, the field is named; or another
                process trains into the same folder.
        """
        self.memory.clear()
        self.was_stopped, self.epochs_begun, self.trained_tokens, checkpoint = False, 0, 0, None
        with ExitStack() as held:
            lock = output_lock(Path(self._get_output_dir(trial)) / LOCK)
            self.on_writing_processes(lambda: held.enter_context(lock))
            if resume_from_checkpoint:
                run_dir = Path(self._get_output_dir(trial))
                self.on_writing_processes(lambda: remove_unfinished(run_dir))
                folder = self._whole_checkpoint(resume_from_checkpoint)
                self._prepare_to_resume(folder)
                self.callback_handler.callbacks.insert(0, CheckingSteps(folder))  # before others write
                held.callback(self.remove_callback, CheckingSteps)
                self.add_callback(Restoring(self, folder))
                held.callback(self.remove_callback, Restoring)
                checkpoint = str(folder)
            return super().train(checkpoint, trial, ignore_keys_for_eval)

    def _whole_checkpoint(self, asked: str | Path | bool) -> Path:
        if not isinstance(asked, bool):
            named = Path(asked)
            try:
                self.on_writing_processes(partial(check_whole, named))
            except ValueError as error:
                raise ValueError(
                    f"`resume_from_checkpoint`={error}: give another, or True for the last complete one of `output_dir`."
                ) from error
            return named
        # one list for all processes, which may not see the same folders
        for folder in map(Path, broadcast_object_list([checkpoints_of(str(self.args.output_dir))])[0]):
            try:
                self.on_writing_processes(partial(check_whole, folder))
                return folder
            except ValueError as error:
                self._warn(f"{error}: the one before it is tried.")
        raise ValueError(
            f"`resume_from_checkpoint`=True, but `output_dir`={self.args.output_dir!r} has no complete checkpoint: train "
            "without resuming."
        )

    def _prepare_to_resume(self, folder: Path) -> None:
        check_resumable(folder, stream_of(self.train_dataset, self.args))
        for name, before, now in changed_adapters(folder, self.model):
            raise ValueError(
                f"`{name}`={now!r} of the adapters is {before!r} in the checkpoint {str(folder)!r}: make them as they "
                "were, or train without resuming."
            )
        for sentence in changed_arguments(folder, self.args):
            self._warn(sentence)
        state = _trainer_state(folder)
        with blamed(folder / TRAINER_STATE_NAME):
            control = state["stateful_callbacks"]["TrainerControl"]["args"]
            asked_to_stop = control["should_training_stop"]
        # early stopping, not the end: a training that is over may be resumed with more steps
        stopped = asked_to_stop and state["global_step"] < state["max_steps"]
        self.was_stopped = stopped and self.args.restore_callback_states_from_checkpoint

    def _warn(self, sentence: str) -> None:
        if self.is_world_process_zero():
            logger.warning(sentence)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in transformers, with the arguments as JSON."""
        super().save_model(output_dir, _internal_call)
        folder = Path(output_dir or str(self.args.output_dir))
        if self.args.should_save and folder.is_dir():
            # transformers' record of the arguments is a pickle, and goes to the Hub with the model
            (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
            write_arguments(folder, self.args)


def _trainer_state(folder: Path) -> dict[str, Any]:
    """What transformers keeps of a training in the checkpoint `folder`.

    Raises:
        ValueError: it is damaged, or its step is not that of the folder's name.
    """
    file = folder / TRAINER_STATE_NAME
    state = read_json(file)
    named = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", folder.name)
    for name in ("global_step", "max_steps"):
        if type(state.get(name)) is not int or state[name] < 0:
            raise ValueError(f"{str(file)!r}: `{name}`={state.get(name)!r} must be a number of steps.")
    if named and int(named[1]) != state["global_step"]:
        raise ValueError(
            f"{str(file)!r}: `global_step`={state['global_step']} is not that of the folder, {named[1]}: resume from "
            "another checkpoint."
        )
    return state


__all__ = ["ResumableTrainer"]
