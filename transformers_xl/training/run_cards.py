"""What a `Trainer` writes about its run: the figures beside the weights, and the card that shows them."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel, Trainer
from transformers.utils import logging

from transformers_xl.data.text_stream import TextStream
from transformers_xl.hub.card_choices import choices_of_loaded
from transformers_xl.hub.cards import write_card, written_by_us
from transformers_xl.hub.measurements import (
    Text,
    Training,
    device_name,
    known_measurements,
    lengths_of,
    measurements_of,
    write_measurements,
)
from transformers_xl.modeling.auto import MODEL_TYPES

logger = logging.get_logger(__name__)


class RunCards(Trainer):
    """A model that is saved after its training has `training_metrics.json` beside it, and a card that is made of it."""

    trained_tokens: int  # by the last call of `train`, in one process

    def training_record(self, **told: Any) -> Training | None:
        """What the last call of `train` measured, None before its end. `told`: fields that the Trainer cannot know."""
        over = [row for row in self.state.log_history if "train_runtime" in row]
        if self.is_in_train or not over:
            return None
        seconds, loss = over[-1]["train_runtime"], over[-1]["train_loss"]
        lanes = self.args.train_batch_size * self.args.world_size
        model = cast(PreTrainedModel, self.model)
        steps = self.state.global_step - self._initial_global_step
        length = getattr(self.train_dataset, "segment_length", None)
        # segments of one text have no padding; of other datasets it is not known how much there was
        full = isinstance(self.train_dataset, TextStream) and not self.train_dataset.keep_tail
        tokens = self.trained_tokens * self.args.world_size if full else None
        fields: dict[str, Any] = {
            "data": self._data_record(),
            "lengths": lengths_of(model, lanes, length),
            "first_step": self._initial_global_step,
            "steps": self.state.global_step,
            "seconds": seconds,
            "tokens": tokens,
            "tokens_per_second": tokens / seconds if tokens and seconds else None,
            # of steps, and at least 0 nats: an objective of another kind is no such loss
            "loss": loss if math.isfinite(loss) and loss >= 0 and steps else None,
            "learning_rate": self.args.learning_rate,
            "gradient_accumulation_steps": self.args.gradient_accumulation_steps,
            "processes": self.args.world_size,
            "seed": self.args.seed,
            "dtype": "bf16"
            if self.args.bf16
            else "fp16"
            if self.args.fp16
            else str(model.dtype).removeprefix("torch."),
            "device": device_name(self.args.device),
            "command": None,
            "arguments": {},
        }
        return Training(**(fields | told))

    def _data_record(self) -> Text | None:
        identity = getattr(self.train_dataset, "identity", None) or {}
        if "text" not in identity:
            return None
        ids = getattr(self.train_dataset, "ids", None)
        tokens = None if ids is None else len(ids)
        return Text(type(self.train_dataset).__name__, str(identity["text"]), "token ids", None, tokens)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in transformers, with what the training measured."""
        super().save_model(output_dir, _internal_call)
        folder = Path(output_dir or str(self.args.output_dir))
        training = self.training_record() if self._is_ours else None
        if training is not None and self.args.should_save and any(folder.glob("model*.safetensors")):
            log = tuple(self.state.log_history)
            known = known_measurements(folder)  # of the same weights, which are saved once more
            found = measurements_of(cast(PreTrainedModel, self.model), folder, training=training, log=log)
            write_measurements(folder, found.with_known(known))

    @property
    def _is_ours(self) -> bool:
        return getattr(getattr(self.model, "config", None), "model_type", "") in MODEL_TYPES

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write README.md into `output_dir`: the variant, and what the run measured. One that was written by hand is
        kept, with a warning.

        Args:
            language, license, tags, model_name: as in transformers.
            finetuned_from: the model that the training began with; that of `from_pretrained`, where it came from the Hub.
            dataset_tags: data sets on the Hub.
            tasks, dataset, dataset_args: None; the task is that of the model's class, and results are those of
                `training_metrics.json`.

        Raises:
            ValueError: `tasks`, `dataset` or `dataset_args` is given.
        """
        if not self.is_world_process_zero():
            return
        for name, value in (("tasks", tasks), ("dataset", dataset), ("dataset_args", dataset_args)):
            if value is not None:
                raise ValueError(
                    f"`{name}`={value!r} cannot be checked against the files of the run, which already say it: leave it "
                    "out, and name data sets on the Hub in `dataset_tags`."
                )
        folder = Path(str(self.args.output_dir))
        if not self._is_ours:
            super().create_model_card(language, license, tags, model_name, finetuned_from, dataset_tags=dataset_tags)
            return
        if not (folder / "config.json").is_file():
            self.save_model(_internal_call=True)
        readme = folder / "README.md"
        if readme.exists() and not written_by_us(readme):
            logger.warning(
                f"{readme} was written by hand and is kept: `transformers-xl card --write --overwrite` replaces it."
            )
            return
        origin = cast(PreTrainedModel, self.model).config._name_or_path
        if finetuned_from is None and origin and not Path(origin).is_dir():
            finetuned_from = origin
        known = choices_of_loaded(cast(PreTrainedModel, self.model).config)
        choices = replace(
            known if license is None else replace(known, license=license, license_name=None, license_link=None),
            language=language or known.language,
            base_model=finetuned_from or known.base_model,
            datasets=_tuple(dataset_tags),
            tags=_tuple(tags),
        )
        write_card(folder, model_name, choices)


def _tuple(value: str | list[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


__all__ = ["RunCards"]
