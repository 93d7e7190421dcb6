"""What the Trainer pushes: a model with its code, and no pickle."""

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import HubStrategy, SaveStrategy
from transformers.utils import logging
from transformers.utils.hub import PushInProgress, hf_api

from transformers_xl.hub.uploading import Pushed, PushError, explained, push_folder
from transformers_xl.training.run_cards import RunCards

logger = logging.get_logger(__name__)

# of a checkpoint, beside the tokenizer: weights, whole or in shards, what describes them, and their code
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "training_args.json",
    "*.py",
)


class CheckpointPushes(TrainerCallback):
    """Pushes the checkpoints of a trainer, and waits for the last push."""

    def __init__(self, trainer: "HubPushes"):
        self.trainer = trainer

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.push_to_hub and self.trainer.last_checkpoint is not None:
            self.trainer.push_checkpoint(self.trainer.last_checkpoint)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.finish_pushes()


class HubPushes(RunCards):
    """Pushes of a `Trainer` through [`~transformers_xl.hub.uploading.push_folder`]: one commit each, of the files of a
    model. The method of transformers would push its arguments as a pickle, and leave the code behind.

    Where a push in the background fails, training continues; it is told when the next one begins, and at the end.
    """

    hub_model_id: Any  # None until a push is asked for
    push_in_progress: Any
    last_checkpoint: Path | None

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        with explained(self.args.hub_model_id or self._output_dir.name, {}, token=token):
            super().init_hf_repo(token=token, private=private)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in transformers; only files of a model are pushed.

        Raises:
            PushError: the server refused, failed or went away; says what is on the server and what is not.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)  # on all processes: the weights may be spread over them
        if not self.is_world_process_zero():
            return None
        given = [kwargs.pop("tags", None) or [], getattr(self.model, "model_tags", None) or []]
        tags = [tag for some in given for tag in ([some] if isinstance(some, str) else some)]
        name = kwargs.pop("model_name", None) or self.hub_model_id
        self.create_model_card(model_name=name, tags=list(dict.fromkeys(tags)) or None, **kwargs)
        self.finish_pushes()
        push = self._push(self._output_dir, commit_message, token, revision)
        return push().commit if blocking else hf_api().run_as_future(lambda: push().commit)

    @property
    def _output_dir(self) -> Path:
        return Path(str(self.args.output_dir)).absolute()

    def _push(
        self, folder: Path, commit_message: str | None, token: str | None = None, revision: str | None = None
    ) -> partial:
        return partial(
            push_folder,
            folder,
            self.hub_model_id,
            revision=revision or self.args.hub_revision,
            commit_message=commit_message,
            token=token or self.args.hub_token,
        )

    def push_checkpoint(self, checkpoint: Path) -> None:
        """Push the model in `checkpoint` in the background, as `hub_strategy` and `hub_always_push` say."""
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        in_progress = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if in_progress and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self._tell_failed_pushes()
        # a copy for this push: the checkpoint may have made room for the next one before it is over
        copy = Path(tempfile.mkdtemp(prefix="_push-", dir=self._output_dir))
        for pattern in MODEL_FILES:
            for path in checkpoint.glob(pattern):
                shutil.copy(path, copy)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(copy)
        by_steps = self.args.save_strategy == SaveStrategy.STEPS
        now = f"step {self.state.global_step}" if by_steps else f"epoch {int(self.state.epoch)}"
        # through the one `hf_api()` pushes run one after the other
        job = hf_api().run_as_future(_and_remove, copy, self._push(copy, f"Training in progress, {now}"))
        if self.push_in_progress is None:
            self.push_in_progress = PushInProgress()
        self.push_in_progress.jobs.append(job)

    def finish_pushes(self) -> None:
        """Wait for pushes in the background, and log those that failed."""
        self._finish_current_push()
        self._tell_failed_pushes()

    def _tell_failed_pushes(self) -> None:
        """Log the failure of every push that is over, and forget what is over."""
        pushes = getattr(self, "push_in_progress", None)
        if pushes is None:
            return
        over = [job for job in pushes.jobs if job.done()]
        pushes.jobs = [job for job in pushes.jobs if job not in over]
        for error in [job.exception() for job in over]:
            if isinstance(error, PushError):
                logger.error(str(error))
            elif error is not None:
                raise error


def _and_remove(folder: Path, push: Callable[[], Pushed]) -> CommitInfo:
    try:
        return push().commit
    finally:
        shutil.rmtree(folder, ignore_errors=True)


__all__ = ["CheckpointPushes", "HubPushes"]
