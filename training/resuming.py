"""A `Trainer` whose checkpoints hold the memory, and from which a training goes on as if it had never stopped."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import broadcast_object_list, gather_object
from torch import nn
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import (
    PREFIX_CHECKPOINT_DIR,
    TrainOutput,
    has_length,
    rotate_checkpoints,
)
from transformers.utils import logging

from transformers_xl.training.callbacks import CheckpointCallback
from transformers_xl.training.changed_arguments import changed_arguments, write_arguments
from transformers_xl.training.checkpoints import (
    check_resumable,
    check_whole,
    checkpoints_of,
    publish,
    remove_unfinished,
    unfinished,
    write_manifest,
)
from transformers_xl.training.memory_state import Memory, load_memory, memory_file, save_memory
from transformers_xl.training.output_lock import LOCK, output_lock
from transformers_xl.training.rows import stream_of

logger = logging.get_logger(__name__)


class ResumableTrainer(Trainer):
    """What `MemoryTrainer` does about checkpoints; `memory` holds the memories, under `"train"` and `"eval"`."""

    memory: dict[str, Memory]
    _resumes_in_mid_epoch = False
    _resumed_from: Path | None = None  # until all of it is restored
    _was_stopped = False
    _passes = 0

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
            ValueError: there is no complete checkpoint; it stopped in another stream, the field is named; or another
                process trains into the same folder.
        """
        self.memory.clear()
        self._resumed_from, self._was_stopped, self._passes = None, False, 0
        with ExitStack() as held:
            lock = output_lock(Path(self._get_output_dir(trial)) / LOCK)
            self._where_files_are_written(lambda: held.enter_context(lock))
            if resume_from_checkpoint:
                self._resumed_from = self._whole_checkpoint(resume_from_checkpoint)
                self._prepare_to_resume(self._resumed_from)
            checkpoint = None if self._resumed_from is None else str(self._resumed_from)
            return super().train(checkpoint, trial, ignore_keys_for_eval)

    def _where_files_are_written(self, action: Callable[[], Any]) -> None:
        """Call `action` on the process that writes files (of each machine, with `save_on_each_node`). What it refuses is
        raised on all of them: none is left waiting for the others."""
        error = None
        if self.args.should_save:
            try:
                action()
            except Exception as raised:
                error = raised
        refusals = [text for text in gather_object([error and str(error)]) if text is not None]
        if error is not None:
            raise error
        if refusals:
            raise ValueError(refusals[0])

    def _whole_checkpoint(self, asked: str | Path | bool) -> Path:
        if not isinstance(asked, bool):
            named = Path(asked)
            try:
                self._where_files_are_written(lambda: check_whole(named))
            except ValueError as error:
                raise ValueError(
                    f"`resume_from_checkpoint`={error}: give another, or True for the last complete one of `output_dir`."
                ) from error
            return named
        # one list for all processes, which may not see the same folders
        for folder in map(Path, broadcast_object_list([checkpoints_of(str(self.args.output_dir))])[0]):
            try:
                self._where_files_are_written(lambda folder=folder: check_whole(folder))
                return folder
            except ValueError as error:
                self._warn(f"{error}: the one before it is tried.")
        raise ValueError(
            f"`resume_from_checkpoint`=True, but `output_dir`={self.args.output_dir!r} has no complete checkpoint: train "
            "without resuming."
        )

    def _prepare_to_resume(self, folder: Path) -> None:
        check_resumable(folder, stream_of(self.train_dataset, self.args))
        for sentence in changed_arguments(folder, self.args):
            self._warn(sentence)
        state = json.loads((folder / TRAINER_STATE_NAME).read_text())
        control = state["stateful_callbacks"]["TrainerControl"]["args"]
        # early stopping, not the end: a training that is over may be resumed with more steps
        stopped = control["should_training_stop"] and state["global_step"] < state["max_steps"]
        self._was_stopped = stopped and self.args.restore_callback_states_from_checkpoint

    def _warn(self, sentence: str) -> None:
        if self.is_world_process_zero():
            logger.warning(sentence)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        self.memory.pop("train", None)  # an epoch begins without memory, whether the dataset says `reset` or not
        if self._was_stopped:
            self.control.should_training_stop = True
            return
        self._passes += 1
        self._resumes_in_mid_epoch = kwargs["steps_trained_in_current_epoch"] > 0
        super()._run_epoch(*args, **kwargs)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> TrainOutput:
        if self._resumed_from is not None:  # there was no step left to take
            self._resumes_in_mid_epoch = True
            self._load_rng_state(str(self._resumed_from))
        return super()._finalize_training(*args, **kwargs)

    def _load_best_model(self) -> None:
        best = Path(str(self.state.best_model_checkpoint))
        try:
            self._where_files_are_written(lambda: check_whole(best))
        except ValueError as error:
            raise ValueError(
                f"`load_best_model_at_end`=True, but {error}: resume from the last checkpoint with "
                "`load_best_model_at_end=False`."
            ) from error
        super()._load_best_model()

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Called by the library on every process, with all else in place and before the first step."""
        super()._load_rng_state(checkpoint)
        if checkpoint is None:
            return
        self._resumed_from = None
        memory, logged = load_memory(memory_file(Path(checkpoint), self.args.process_index), self.args.device)
        if memory is not None and self._resumes_in_mid_epoch:
            self.memory["train"] = memory
        # the loss of the steps since the last log: logged with those to come, but not part of this call's mean
        self._tr_loss = logged["loss_since_log"]
        self._total_loss_scalar -= self.accelerator.gather(self._tr_loss).mean().item()
        self._globalstep_last_logged = int(logged["last_logged_step"])
        for callback in self._checkpoint_callbacks():
            callback.on_resume(self.args, self.state, Path(checkpoint), cast(nn.Module, self.model))

    def _checkpoint_callbacks(self) -> list[CheckpointCallback]:
        return [callback for callback in self.callback_handler.callbacks if isinstance(callback, CheckpointCallback)]

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """The library's, but written under another name, with the memory of every process, and renamed when complete."""
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        run_dir = Path(self._get_output_dir(trial))
        checkpoint = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        folder = unfinished(checkpoint)
        if self.args.should_save:
            remove_unfinished(run_dir)
        self.accelerator.wait_for_everyone()
        folder.mkdir(parents=True, exist_ok=True)

        self.save_model(str(folder), _internal_call=True)
        if not self.args.save_only_model:
            self._save_optimizer_and_scheduler(str(folder))
            self._save_scaler(str(folder))
            self._save_rng_state(str(folder))
            logged = {
                "loss_since_log": self._tr_loss,
                "last_logged_step": torch.tensor(self._globalstep_last_logged),
            }
            save_memory(memory_file(folder, self.args.process_index), self.memory.get("train"), logged)
        for callback in self._checkpoint_callbacks():
            callback.on_checkpoint(self.args, self.state, folder, cast(nn.Module, self.model))
        best = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
        if self.state.best_global_step and (best == checkpoint or best.is_dir()):
            self.state.best_model_checkpoint = str(best)
        if self.args.should_save:
            self._collect_callback_states()
            self.state.save_to_json(str(folder / TRAINER_STATE_NAME))
            write_arguments(folder, self.args)  # sharded weights are saved without

        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            stream = stream_of(self.train_dataset, self.args)
            write_manifest(folder, stream, self._obstacle())
            publish(checkpoint)
        self.accelerator.wait_for_everyone()

        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))
        if self.args.should_save:
            best_checkpoint = self.state.best_model_checkpoint
            rotate_checkpoints(str(run_dir), self.args.save_total_limit, best_checkpoint, use_mtime=True)

    def _obstacle(self) -> str | None:
        """Why no training can go on from a checkpoint of this moment, None if one can."""
        if self.args.save_only_model:
            return "`save_only_model=True` left out the optimizer and the memory"
        if self._passes > 1 and not has_length(self.train_dataset):
            return "the dataset has no length and was read more than once, so that its position is not known"
        return None

    def _collect_callback_states(self) -> None:
        states: dict[str, Any] = {}
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                states.setdefault(type(callback).__name__, []).append(callback.state())
        stored: Any = {name: each[0] if len(each) == 1 else each for name, each in states.items()}
        self.state.stateful_callbacks = stored  # a dictionary; the library annotates it as a list

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        super()._save(str(folder), state_dict)
        if self.args.should_save:
            # the library's record of the arguments is a pickle, and goes to the Hub with the model
            (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
            write_arguments(folder, self.args)


__all__ = ["ResumableTrainer"]
