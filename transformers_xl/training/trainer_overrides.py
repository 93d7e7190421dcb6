"""What training overrides of transformers' Trainer under private names: what neither a callback nor a public method can do.

`tests/training/test_trainer_overrides.py` compares every private name that is used here with the installed transformers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length, rotate_checkpoints

from transformers_xl.files.atomic_write import refused_disk
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.training.callbacks import CheckpointCallback, follow_spans
from transformers_xl.training.checkpoints import check_whole, publish, remove_unfinished, unfinished, write_manifest
from transformers_xl.training.memory_state import load_memory, memory_file, save_memory
from transformers_xl.training.memory_warmup import MemoryLengthWarmup
from transformers_xl.training.rows import check_beginnings, check_dataset, stream_of


class TrainerOverrides(Trainer):
    """A `Trainer` that carries `memory`, under `"train"` and `"eval"`, into its checkpoints and back."""

    memory: dict[str, Memory]
    was_stopped = False  # early, before the checkpoint that this training resumes from
    epochs_begun = 0
    trained_tokens = 0  # by the last call of `train`, in one process
    last_checkpoint: Path | None = None

    def _get_dataloader(
        self,
        dataset: Dataset,
        description: str,
        batch_size: int,
        sampler_fn: Callable | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader:
        """Why: evaluation reads every batch, and transformers never drops the last one of an iterable dataset."""
        # again: a search may have changed the batch size, and `evaluate` and `predict` bring datasets of their own
        name = "train_dataset" if is_training else "eval_dataset"
        check_dataset(name, dataset, batch_size, self.args, is_training)
        check_beginnings(name, dataset, self._lasting_mem_len())
        drop_last = self.args.dataloader_drop_last
        if isinstance(dataset, IterableDataset):
            loader = DataLoader(
                dataset,
                batch_size,
                collate_fn=self.data_collator,
                drop_last=is_training and drop_last,  # else Accelerate fills it up with rows of the first
                pin_memory=self.args.dataloader_pin_memory,
            )
            return self.accelerator.prepare(loader)
        self.args.dataloader_drop_last = is_training and drop_last
        try:
            return super()._get_dataloader(dataset, description, batch_size, sampler_fn, is_training, dataloader_key)
        finally:
            self.args.dataloader_drop_last = drop_last

    def _lasting_mem_len(self) -> int | None:
        """That of the model, or the one that it grows to in this training."""
        growing = [each.whole for each in self.callback_handler.callbacks if isinstance(each, MemoryLengthWarmup)]
        now = getattr(self.accelerator.unwrap_model(self.model).config, "mem_len", None)
        return next((whole for whole in growing if whole is not None and self.is_in_train), now)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Why: only here it is known whether an epoch resumes in its middle, with its memory; callbacks cannot skip one."""
        if self.was_stopped:
            self.control.should_training_stop = True
            return
        self.epochs_begun += 1
        is_first = kwargs["epoch"] == kwargs["epochs_trained"]
        if is_first:  # also of another attempt, with smaller batches
            self.trained_tokens = 0
        if not (is_first and kwargs["steps_trained_in_current_epoch"] > 0):
            self.memory.pop("train", None)  # whether the dataset says `reset` or not
        super()._run_epoch(*args, **kwargs)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Why: a file holds tied weights once, and transformers calls the others missing, each time that it resumes."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _load_best_model(self) -> None:
        """Why: transformers would load a damaged checkpoint, and leaves the config as the last step made it."""
        best = Path(str(self.state.best_model_checkpoint))
        try:
            self.on_writing_processes(lambda: check_whole(best))
        except ValueError as error:
            raise ValueError(
                f"`load_best_model_at_end`=True, but {error}: resume from the last checkpoint with "
                "`load_best_model_at_end=False`."
            ) from error
        super()._load_best_model()
        follow_spans(cast(nn.Module, self.model))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Why: a checkpoint is written under another name, with every process's memory, and renamed when it is complete."""
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        run_dir = Path(self._get_output_dir(trial))
        checkpoint = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        folder = unfinished(checkpoint)
        if self.args.should_save:
            remove_unfinished(run_dir)
        self.accelerator.wait_for_everyone()
        folder.mkdir(parents=True, exist_ok=True)
        with refused_disk(checkpoint):
            self.save_model(str(folder), _internal_call=True)
            if not self.args.save_only_model:
                self._save_training_state(folder)
        for callback in self.checkpoint_callbacks():
            callback.on_checkpoint(self.args, self.state, folder, cast(nn.Module, self.model))
        best = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
        if self.state.best_global_step and (best == checkpoint or best.is_dir()):
            self.state.best_model_checkpoint = str(best)
        if self.args.should_save:
            self._collect_callback_states()
            self.state.save_to_json(str(folder / TRAINER_STATE_NAME))
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            write_manifest(folder, stream_of(self.train_dataset, self.args), self._obstacle())
            publish(checkpoint)
        self.accelerator.wait_for_everyone()
        self.last_checkpoint = checkpoint
        if self.args.should_save:
            best_checkpoint = self.state.best_model_checkpoint
            rotate_checkpoints(str(run_dir), self.args.save_total_limit, best_checkpoint, use_mtime=True)

    def _save_training_state(self, folder: Path) -> None:
        self._save_optimizer_and_scheduler(str(folder))
        self._save_scaler(str(folder))
        self._save_rng_state(str(folder))
        logged = {"loss_since_log": self._tr_loss, "last_logged_step": torch.tensor(self._globalstep_last_logged)}
        save_memory(memory_file(folder, self.args.process_index), self.memory.get("train"), logged)

    def restore_training_state(self, folder: Path) -> None:
        """Restore what the checkpoint `folder` holds in addition to transformers' files, before the first step."""
        # transformers does so itself, but not where no step is left to take
        self._load_rng_state(str(folder))
        memory, logged = load_memory(memory_file(folder, self.args.process_index), self.args.device)
        if memory is not None:
            self.memory["train"] = memory
        # the loss of the steps since the last log: logged with those to come, but not part of this call's mean
        self._tr_loss = logged["loss_since_log"]
        self._total_loss_scalar -= self.accelerator.gather(self._tr_loss).mean().item()
        self._globalstep_last_logged = int(logged["last_logged_step"])
        for callback in self.checkpoint_callbacks():
            callback.on_resume(self.args, self.state, folder, cast(nn.Module, self.model))

    def checkpoint_callbacks(self) -> list[CheckpointCallback]:
        return [callback for callback in self.callback_handler.callbacks if isinstance(callback, CheckpointCallback)]

    def _collect_callback_states(self) -> None:
        states: dict[str, Any] = {}
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                states.setdefault(type(callback).__name__, []).append(callback.state())
        stored: Any = {name: each[0] if len(each) == 1 else each for name, each in states.items()}
        self.state.stateful_callbacks = stored  # a dictionary; transformers annotates it as a list

    def _obstacle(self) -> str | None:
        """Why no training can resume from a checkpoint of this moment, None if one can."""
        if self.args.save_only_model:
            return "`save_only_model=True` left out the optimizer and the memory"
        if self.epochs_begun > 1 and not has_length(self.train_dataset):
            return "the dataset has no length and was read more than once, so that its position is not known"
        return None

    def on_writing_processes(self, action: Callable[[], Any]) -> None:
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


__all__ = ["TrainerOverrides"]
