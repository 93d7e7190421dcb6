"""A `Trainer` whose checkpoints hold the memory, and from which a training goes on as if it had never stopped."""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import (
    PREFIX_CHECKPOINT_DIR,
    HubStrategy,
    TrainOutput,
    has_length,
    rotate_checkpoints,
)
from transformers.utils import PushInProgress
from transformers.utils.hub import hf_api

from transformers_xl.training.callbacks import CheckpointCallback
from transformers_xl.training.checkpoints import (
    check_resumable,
    last_checkpoint,
    publish,
    remove_unfinished,
    unfinished,
    write_manifest,
)
from transformers_xl.training.memory_state import Memory, load_memory, memory_file, save_memory
from transformers_xl.training.rows import stream_of

# what a checkpoint has for others than the training that goes on from it
PUBLISHED = (
    "*.safetensors",
    "*.safetensors.index.json",
    "*config.json",
    "token*",
    "vocab*",
    "*.py",
    "*.model",
    "merges.txt",
)
KEPT_BACK = ("memory-*", "*.bin", "*.pt", "*.pth", "_*", f"{PREFIX_CHECKPOINT_DIR}-*")


class ResumableTrainer(Trainer):
    """What `MemoryTrainer` does about checkpoints; `memory` holds the memories, under `"train"` and `"eval"`."""

    memory: dict[str, Memory]
    push_in_progress: Any
    _resumes_in_mid_epoch = False
    _resumed_from: Path | None = None  # until all of it is restored
    _was_stopped = False
    _passes = 0

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train, from the beginning or from a checkpoint.

        Args:
            resume_from_checkpoint: the folder of a checkpoint, or True for the last complete one of `output_dir`.
            args, kwargs: as `transformers.Trainer.train` takes them.

        Raises:
            ValueError: there is no complete checkpoint, or it stopped in another stream: the field is named.
        """
        self.memory.clear()
        self._resumed_from, self._was_stopped, self._passes = None, False, 0
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_checkpoint(str(self.args.output_dir))
            if resume_from_checkpoint is None:
                raise ValueError(
                    f"`resume_from_checkpoint`=True, but `output_dir`={self.args.output_dir!r} has no complete checkpoint: "
                    "train without resuming."
                )
        if resume_from_checkpoint:
            self._resumed_from = folder = Path(resume_from_checkpoint)
            check_resumable(folder, stream_of(self.train_dataset, self.args))
            state = json.loads((folder / TRAINER_STATE_NAME).read_text())
            control = state["stateful_callbacks"]["TrainerControl"]["args"]
            # early stopping, not the end: a training that is over may be resumed with more steps
            stopped = control["should_training_stop"] and state["global_step"] < state["max_steps"]
            self._was_stopped = stopped and self.args.restore_callback_states_from_checkpoint
        return super().train(str(resume_from_checkpoint) if resume_from_checkpoint else None, *args, **kwargs)

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

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Called by the library on every process, with all else in place and before the first step."""
        super()._load_rng_state(checkpoint)
        if checkpoint is None:
            return
        self._resumed_from = None
        memory, logging = load_memory(memory_file(Path(checkpoint), self.args.process_index), self.args.device)
        if memory is not None and self._resumes_in_mid_epoch:
            self.memory["train"] = memory
        # the loss of the steps since the last log: logged with those to come, but not part of this call's mean
        self._tr_loss = logging["loss_since_log"]
        self._total_loss_scalar -= self.accelerator.gather(self._tr_loss).mean().item()
        self._globalstep_last_logged = int(logging["last_logged_step"])
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
            logging = {
                "loss_since_log": self._tr_loss,
                "last_logged_step": torch.tensor(self._globalstep_last_logged),
            }
            save_memory(memory_file(folder, self.args.process_index), self.memory.get("train"), logging)
        for callback in self._checkpoint_callbacks():
            callback.on_checkpoint(self.args, self.state, folder, cast(nn.Module, self.model))
        best = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
        if self.state.best_global_step and (best == checkpoint or best.is_dir()):
            self.state.best_model_checkpoint = str(best)
        if self.args.should_save:
            self._collect_callback_states()
            self.state.save_to_json(str(folder / TRAINER_STATE_NAME))

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
            (folder / "training_args.json").write_text(self.args.to_json_string() + "\n")

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push what a checkpoint has for others. The library's own push would write a pickle of the arguments first."""
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        pushing = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if pushing and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        output_dir = str(self.args.output_dir)
        # copied, because the checkpoint may be removed while it is pushed
        for pattern in PUBLISHED:
            for file in Path(checkpoint_folder).glob(pattern):
                if not file.name.startswith("memory-"):
                    shutil.copy(file, output_dir)
        job = hf_api().upload_folder(
            repo_id=cast(str, self.hub_model_id),
            folder_path=output_dir,
            commit_message=f"Training in progress, step {self.state.global_step}",
            token=self.args.hub_token,
            run_as_future=True,
            ignore_patterns=list(KEPT_BACK),
            revision=self.args.hub_revision,
        )
        jobs: Any = [*self.push_in_progress.jobs, job] if pushing else [job]
        self.push_in_progress = PushInProgress(jobs)


__all__ = ["ResumableTrainer"]
