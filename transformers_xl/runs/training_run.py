"""The run of `transformers-xl train`: a model is trained on texts, with checkpoints on the way, scored and described."""

import copy
import math
import shutil
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from transformers import PrinterCallback, TrainerCallback
from transformers.integrations import get_reporting_integration_callbacks
from transformers.utils import logging

from transformers_xl.data.text_files import name_of
from transformers_xl.evaluation.bits_per_byte import TextScore
from transformers_xl.evaluation.score_ways import score_stream_ways
from transformers_xl.files.atomic_write import write_text
from transformers_xl.files.blaming import sentence
from transformers_xl.files.json_files import read_json
from transformers_xl.files.output_folder import run_folder
from transformers_xl.files.written import extend_record
from transformers_xl.hub.card_choices import Choices, choices_of_base
from transformers_xl.hub.cards import write_card, written_by_us
from transformers_xl.hub.measurements import known_measurements, measurements_of, write_measurements
from transformers_xl.runs.fitting import prepare_for_inference, processes
from transformers_xl.runs.loading import load_model, shapes_of
from transformers_xl.runs.onednn_linear import accelerate_linear_layers
from transformers_xl.runs.recording import check_claims, evaluation_of, text_of_rows
from transformers_xl.runs.run_config import CONFIG_FILE, LoraSection, RunConfig
from transformers_xl.runs.run_data import check_fraction, check_paths, read_data
from transformers_xl.runs.run_model import run_model, run_tokenizer
from transformers_xl.training.arguments import MemoryTrainingArguments, check_length
from transformers_xl.training.callbacks import SavingOnSignal
from transformers_xl.training.changed_arguments import ARGUMENTS, changed_adapters
from transformers_xl.training.checkpoints import checkpoints_of
from transformers_xl.training.step_memory import free_memory, measure_step
from transformers_xl.training.trainer import MemoryTrainer

logger = logging.get_logger(__name__)
MOST_TIMES = 4  # that a text is read where nobody gives a number of steps: docs/training_command.md
LEAST_STEPS = 40  # then
FINAL = "_final"  # where the trained model is written before its files take their places


class ConfigWriter(TrainerCallback):
    """Writes the config of a run into its folder at the first step, or at the end where there is none: a run that cannot be
    resumed so is refused before, and keeps the config that it had."""

    def __init__(self, config: RunConfig, folder: Path):
        self.config, self.folder, self.is_written = config, folder, False

    def on_step_begin(self, args, state, control, **kwargs: Any) -> None:
        if state.is_world_process_zero and not self.is_written:
            extend_record(self.folder, [self.folder / CONFIG_FILE])
            write_text(self.folder / CONFIG_FILE, self.config.to_yaml())
            self.is_written = True

    on_train_end = on_step_begin


class TrainingRun:
    """The texts and the model of a training that has not begun.

    Args:
        config: the whole run.
        output: the folder that it writes: checkpoints, and in the end config, weights, tokenizer, figures and card.
        command: how it was started, for the card.
        resume: resume from the last checkpoint in `output`.
        print_log: print losses to standard output where there is no progress bar.
        trust_remote_code: let `model.base` run custom code.

    Raises:
        ValueError: a text is too short, or the fields do not go together.

    Attributes:
        step: the step at which the training ended.
        max_steps: the step at which it was to end; early stopping ends it before.
        was_stopped: whether that was because the process was asked to.
        note: why there are fewer steps than the recipe's, or no dropout, in a sentence; None where that is not so.
        need: what a step needs of memory, in a sentence; None where that is not known before it (FSDP, DeepSpeed,
            activation checkpointing).
    """

    def __init__(
        self,
        config: RunConfig,
        output: Path,
        command: str,
        resume: bool = False,
        print_log: bool = True,
        trust_remote_code: bool = False,
    ):
        self.config, self.output, self.command, self.resume = config, output.absolute(), command, resume
        self.state = processes()
        _check(config)
        section = config.data
        self.claims = check_claims(section.dataset, section.revision, section.task_id)
        self.tokenizer = run_tokenizer(config, trust_remote_code)
        self.args = self._arguments()
        self.data = read_data(section, self.tokenizer, self.state.is_main_process)
        self.note = self._choose_steps() or self._choose_dropout()  # a text is not both small and large
        self.model = run_model(config, self.tokenizer, trust_remote_code)
        length = self.model.config.segment_length
        tokens = length * _segments_of_call(self.model.config)
        remembers = bool(self.model.config.mem_len)
        if not (section.streaming or section.documents):  # one that is too short is refused before a step is measured
            self.data.stream(tokens, self.state.num_processes, remembers)
        self.need = self._fit_rows(tokens)
        lanes = self.args.per_device_train_batch_size * self.state.num_processes
        self.stream = self.data.stream(tokens, lanes, remembers)
        if section.overlap and self.model.config.mem_len:
            raise ValueError(
                f"`data.overlap`={section.overlap} would be read twice by a model with memory: leave it out, or set "
                "`model.mem_len=0` and `model.same_length=False`."
            )
        self.held_out = self.data.held_out.stream(
            length, self.args.per_device_eval_batch_size, self.state.num_processes, section.overlap, remembers
        )
        self.args.per_device_eval_batch_size = self.held_out.lanes // self.state.num_processes
        self.step, self.max_steps, self.was_stopped, self.print_log = 0, 0, False, print_log

    def train(self) -> dict[str, TextScore]:
        """Train, save and describe. Of several processes, the main one alone scores and describes.

        Returns:
            The scores of the held-out text, by the way it was read; none where the training was asked to stop.

        Raises:
            ValueError: another command writes the folder, or there is no checkpoint to resume from.
        """
        if not self.state.is_main_process:
            self._fit_and_save(broadcast_object_list([None])[0])
            return {}
        with run_folder(self.output, self.resume) as run:
            trainer = self._fit_and_save(broadcast_object_list([run.path])[0])
            if self.was_stopped:
                return {}
            scores = self._describe(run.path, trainer)
            run.put_in_place(run.path / FINAL)
            return scores

    def _arguments(self) -> MemoryTrainingArguments:
        """Those of the config, with what follows from the run."""
        args = copy.copy(self.config.training)
        args.output_dir = str(self.output)
        if (lanes := self.config.data.batch_size) is not None:
            args.per_device_train_batch_size = _share("batch_size", lanes, self.state)
        if (lanes := self.config.data.eval_batch_size) is not None:
            args.per_device_eval_batch_size = _share("eval_batch_size", lanes, self.state)
        if args.push_to_hub and args.hub_model_id is None:
            args.hub_model_id = self.output.name  # the run may lie in another folder until it has ended
        args.disable_tqdm = args.disable_tqdm or not sys.stderr.isatty()
        args.dataloader_pin_memory = args.dataloader_pin_memory and torch.cuda.is_available()
        return args

    def _times_read(self) -> float | None:
        """How often the training reads its text; None: nobody knows how long that is."""
        args, tokens = self.args, self.data.tokens
        if tokens is None:
            return None
        if args.max_steps <= 0:
            return float(args.num_train_epochs)
        rows = args.per_device_train_batch_size * args.gradient_accumulation_steps * self.state.num_processes
        return args.max_steps * rows * cast(Any, self.config.model).segment_length / tokens

    def _choose_steps(self) -> str | None:
        """Train for fewer steps where nobody gave their number and they would read a small text many times; say so."""
        if not self.config.steps_are_default:
            return None
        times, steps = self._times_read(), self.args.max_steps
        fewer = max(LEAST_STEPS, math.ceil(steps * MOST_TIMES / times)) if times else steps
        if fewer >= steps:
            return None
        self.args.max_steps = self.config.training.max_steps = fewer
        return (
            f"{fewer} steps read this small text {self._times_read():.2g} times, and more do not help: "
            "`--training.max_steps` gives another number"
        )

    def _choose_dropout(self) -> str | None:
        """Train without dropout where nobody chose one and the text is read at most once; say so."""
        section: Any = self.config.model
        if not (self.config.dropout_is_default and section.dropout):
            return None
        times = self._times_read()
        if times is None or times > 1:
            return None
        section.dropout = 0.0
        return f"the text is read {times:.2g} times, without dropout: `--model.dropout` gives one"

    def _fit_rows(self, length: int) -> str | None:
        """Measure a step of rows with `length` tokens. Where nobody gave a number of rows, take as many as fit."""
        args = self.args
        if args.fsdp or args.deepspeed or args.activation_checkpointing:
            return None
        self.model.to(args.device)
        step, free = measure_step(self.model, args, length), free_memory(args.device)
        asked = rows = args.per_device_train_batch_size
        if self.config.batch_is_default:
            rows = min(gather_object([step.fitting(asked, free)]))
            args.per_device_train_batch_size = rows
            self.config.data.batch_size = rows * self.state.num_processes
        return step.sentence(rows, length, asked, free)

    def _fit_and_save(self, folder: Path) -> MemoryTrainer:
        """What all processes do; the run is in `folder`."""
        stopping = SavingOnSignal()
        self.args.output_dir = str(folder)
        if self.resume:
            self._check_resumed(folder)
        trainer = MemoryTrainer(
            accelerate_linear_layers(self.model),
            self.args,
            train_dataset=self.stream,
            eval_dataset=self.held_out,
            processing_class=self.tokenizer,
            callbacks=[stopping, ConfigWriter(self.config, folder)],
        )
        if not (self.print_log and self.state.is_main_process):
            trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=self.resume or None)
        self.step, self.max_steps = trainer.state.global_step, trainer.state.max_steps
        self.was_stopped = stopping.stopped
        if not self.was_stopped:
            prepare_for_inference(self.model)
            self._save(trainer, folder / FINAL)
        return trainer

    def _check_resumed(self, folder: Path) -> None:
        """Refuse a model, or adapters, of other shapes than those of the newest checkpoint."""
        for checkpoint in map(Path, checkpoints_of(folder)[:1]):
            adapters, asked = checkpoint / "adapter_config.json", self.config.lora.r
            try:
                found = {name: shape for name, (_, shape, _) in shapes_of(checkpoint).items()}
                rank = read_json(adapters).get("r") if adapters.is_file() else 0
            except ValueError:  # damaged: the trainer takes the one before it, or says so
                return
            if found and rank != asked:
                raise ValueError(f"`lora.r`={asked}, but the run that is resumed has {rank}: it cannot be changed.")
            for name, before, now in changed_adapters(checkpoint, self.model):
                option = f"lora.{name.removeprefix('lora_')}"
                raise ValueError(
                    f"`{option}`={now!r}, but the run that is resumed has {before!r}: it cannot be changed."
                )
            if not found or rank:  # sharded by FSDP or DeepSpeed, or adapters
                return
            weights = {name: list(each.shape) for name, each in self.model.state_dict().items()}
            shared = getattr(self.model, "all_tied_weights_keys", {})
            wrong = [name for name, shape in found.items() if weights.get(name) != shape]
            wrong += [name for name in weights if name not in found and name not in shared]
            if wrong:
                raise ValueError(
                    f"`model`: the run that is resumed has other weights than is asked for, such as {wrong[0]!r}: change "
                    "only fields that do not affect weights, such as `mem_len` and `dropout`."
                )

    def _save(self, trainer: MemoryTrainer, folder: Path) -> None:
        if not self.config.lora.merge:
            trainer.save_model(str(folder))
            if self.state.is_main_process:
                (folder / ARGUMENTS).unlink(missing_ok=True)  # it names folders, and all else is in run.yaml
        elif self.state.is_main_process:
            self.model.merge_and_unload().save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def _describe(self, folder: Path, trainer: MemoryTrainer) -> dict[str, TextScore]:
        final = folder / FINAL
        model, _ = load_model(final)
        scores = score_stream_ways(model, self.held_out, self.held_out.counts, progress=True)
        self._record(final, trainer, model, scores)
        self._write_card(final, folder / "README.md")
        return scores

    def _write_card(self, final: Path, known: Path) -> None:
        """A card beside the trained model; `known` is that of the run, where it was resumed: one that somebody has changed
        is kept, and so is what was chosen for it."""
        readme, base = final / "README.md", self.config.model.base
        readme.unlink(missing_ok=True)  # PEFT's, which names the folder of the base
        if known.is_file() and not written_by_us(known):
            logger.warning(
                f"{known} was changed by hand and is kept: `transformers-xl card --write --overwrite` replaces it."
            )
            return
        if known.is_file():
            shutil.copyfile(known, readme)
        write_card(final, self.output.name, Choices() if base is None else choices_of_base(base))

    def _record(self, folder: Path, trainer: MemoryTrainer, model: Any, scores: dict[str, TextScore]) -> None:
        data, section, tokenizer = self.data, self.config.data, self.tokenizer
        parts = ("first", "last") if data.shared and not section.documents else ("part", "part")
        parts = parts if data.shared else ("", "")
        read = None
        if not section.streaming:
            read = text_of_rows(data.names, parts[0], data.rows, tokenizer, (*self.claims[:2], None))
        unseen = text_of_rows(data.eval_names, parts[1], data.held_out.rows, tokenizer, self.claims)
        training = trainer.training_record(data=read, command=self.command, arguments=_without_folders(self.config))
        evaluations = tuple(
            evaluation_of(
                model, score, unseen, self.held_out.lanes, name == "with memory", self.command, overlap=section.overlap
            )
            for name, score in scores.items()
        )
        log = tuple(trainer.state.log_history)
        found = measurements_of(model, folder, training=training, evaluations=evaluations, log=log)
        write_measurements(folder, found.with_known(known_measurements(folder.parent)))


def _check(config: RunConfig) -> None:
    check_paths(config.data)
    args = config.training
    check_fraction(config.data)
    check_length(args, "training.")
    if args.learning_rate <= 0:
        raise ValueError(f"`training.learning_rate`={args.learning_rate} must be above 0.")
    for callback in get_reporting_integration_callbacks(args.report_to):
        try:
            callback()
        except (ImportError, RuntimeError) as error:
            raise ValueError(f"`training.report_to`={args.report_to} cannot be used: {sentence(error)}") from error
    try:
        MemoryTrainer.get_optimizer_cls_and_kwargs(args)
    except ImportError as error:
        name = getattr(args.optim, "value", args.optim)
        raise ValueError(f"`training.optim`={name!r} cannot be used: {sentence(error)}") from error
    except Exception:  # some ask the model, which is not there yet
        logger.debug("the optimizer is made with the model")
    for field in fields(LoraSection):
        value = getattr(config.lora, field.name)
        if value != field.default and not config.lora.r:
            raise ValueError(
                f"`lora.{field.name}`={value!r}, but `lora.r`=0 makes no adapters: give `lora.r`, for example 16."
            )
    if config.tokenizer.clusters and config.model.base is not None:
        raise ValueError("`tokenizer.clusters` is for a new model: `model.base` has its own clusters, leave it out.")


def _segments_of_call(config: Any) -> int:
    """Segments that a step of training reads: as many as gradients go back through, or memory tokens learn less."""
    return getattr(config, "bptt_segments", None) or 1


def _share(name: str, lanes: int, state: PartialState) -> int:
    """The rows of each process."""
    if lanes < 1:
        raise ValueError(f"`data.{name}`={lanes} must be at least 1.")
    if lanes % state.num_processes:
        raise ValueError(
            f"`data.{name}`={lanes} rows cannot be divided among {state.num_processes} processes: make it a multiple of "
            f"{state.num_processes}."
        )
    return lanes // state.num_processes


def _without_folders(config: RunConfig) -> dict[str, Any]:
    """The config as plain values, files by their names: where they lie is nobody's business."""
    values = config.to_dict()
    for name in ("path", "eval_path"):
        values["data"][name] = [name_of(path) for path in values["data"][name]]
    for section, name in (("model", "base"), ("tokenizer", "path"), ("data", "cache_dir")):
        path = values[section][name]
        if path is not None and Path(path).is_dir():
            values[section][name] = Path(path).resolve().name
    return values


__all__ = ["TrainingRun"]
