"""The run of `transformers-xl train --data.source ...`: an encoder-decoder is trained on pairs, scored and saved."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq, PrinterCallback, Seq2SeqTrainingArguments

from transformers_xl.configuration.configuration_memory_encoder_decoder import MemoryEncoderDecoderConfig
from transformers_xl.data.pairs import Pairs, hold_out_pairs, pairs_of_rows, read_pairs, text_ids
from transformers_xl.evaluation.translations import score_translations, translate
from transformers_xl.files.atomic_write import write_text
from transformers_xl.files.blaming import blamed
from transformers_xl.files.output_folder import run_folder
from transformers_xl.files.plain_files import check_folder
from transformers_xl.hub.card_choices import Choices, choices_of_base
from transformers_xl.hub.cards import write_card, written_by_us
from transformers_xl.hub.installing import check_installed
from transformers_xl.hub.measurements import weights_digest
from transformers_xl.hub.translator_card import TRANSLATION_SCORES
from transformers_xl.modeling.auto import encoder_of
from transformers_xl.modeling.modeling_memory_encoder_decoder import MemoryForConditionalGeneration
from transformers_xl.runs.loading import (
    TRANSLATOR,
    base_config,
    change_config,
    check_loaded,
    check_weights,
    import_models,
    is_translator,
    load_tokenizer,
)
from transformers_xl.runs.run_config import DataSection, RunConfig, config_fields
from transformers_xl.runs.run_data import files_to_read
from transformers_xl.runs.run_model import run_tokenizer
from transformers_xl.runs.training_run import FINAL, ConfigWriter
from transformers_xl.training.arguments import MemoryTrainingArguments, check_length
from transformers_xl.training.callbacks import SavingOnSignal
from transformers_xl.training.resuming import CheckingSteps
from transformers_xl.training.translation_trainer import TranslationTrainer

# fields of `data` that say what a stream of text does
OF_TEXTS = (
    "streaming",
    "documents",
    "separator",
    "overlap",
    "vary_lengths",
    "roll",
    "append_eos",
    "task_id",
)
# and what says which rows of a dataset, or of JSON lines
OF_DATASETS = ("dataset_config", "revision", "split", "eval_split", "text_field")


class TranslationRun:
    """The pairs and the model of a training that has not begun.

    Args:
        config: the whole run; `model` says what both the encoder and the decoder are.
        output: the folder that it writes.
        resume: resume from the last checkpoint in `output`.
        print_log: print losses to standard output where there is no progress bar.

    Raises:
        ValueError: pairs are missing, or the fields do not go together.

    Attributes:
        step: the step at which the training ended.
        was_stopped: whether that was because the process was asked to.
    """

    def __init__(self, config: RunConfig, output: Path, resume: bool = False, print_log: bool = True):
        check_installed("translation", ["sacrebleu"])
        _check(config)
        self.config, self.output, self.resume, self.print_log = config, output.absolute(), resume, print_log
        self.tokenizer = run_tokenizer(config)
        self.pairs, self.held_out = _pairs(config.data)
        transformers.set_seed(config.training.seed)
        new = MemoryForConditionalGeneration
        self.model = _base_model(config) if config.model.base else new(model_config(config, self.tokenizer))
        _check_words(self.model.config, self.tokenizer)
        self._check_lengths()
        self.step, self.was_stopped = 0, False

    def _check_lengths(self) -> None:
        """Raise a `ValueError` where the encoder cannot read the longest source."""
        ids = max((text_ids(self.tokenizer, source) for source, _ in (*self.pairs, *self.held_out)), key=len)
        try:
            with torch.no_grad():
                self.model.encoder.eval()(torch.tensor([ids]))
        except ValueError as error:
            raise ValueError(
                f"The longest source has {len(ids)} tokens, which the encoder cannot read at once: take a tokenizer of "
                f"sub-words, or a model for more (`model.segment_length`). {error}"
            ) from error

    def train(self) -> dict[str, Any]:
        """Train, score by translating the held-out sources, and save.

        Returns:
            `bleu`, `chrf`, `signature`, `perplexity` per token, and `pairs`, the number that was scored; none where the
            training was asked to stop.
        """
        stopping = SavingOnSignal()
        with run_folder(self.output, self.resume) as run:
            trainer = self._trainer(run.path, stopping)
            trainer.train(resume_from_checkpoint=self.resume or None)
            self.step, self.was_stopped = trainer.state.global_step, stopping.stopped
            if self.was_stopped:
                return {}
            perplexity = round(trainer.evaluate()["eval_perplexity"], 3)
            scores = score_pairs(self.model.eval(), self.tokenizer, self.held_out) | {"perplexity": perplexity}
            trainer.save_model(str(run.path / FINAL))
            (run.path / FINAL / "training_args.bin").unlink(missing_ok=True)  # a pickle
            written = scores | {"weights": weights_digest(run.path / FINAL)}
            write_text(run.path / FINAL / TRANSLATION_SCORES, json.dumps(written, indent=1) + "\n")
            self._write_card(run.path / FINAL, run.path / "README.md")
            run.put_in_place(run.path / FINAL)
        return scores

    def _write_card(self, final: Path, known: Path) -> None:
        """A card beside the model; `known` is that of a run that was resumed: one that somebody has changed is kept."""
        base = self.config.model.base
        if known.is_file() and not written_by_us(known):
            return
        if known.is_file():
            shutil.copyfile(known, final / "README.md")
        write_card(final, self.output.name, choices_of_base(base) if base else Choices())

    def _trainer(self, folder: Path, stopping: SavingOnSignal) -> TranslationTrainer:
        trainer = TranslationTrainer(
            self.model,
            _arguments(self.config, folder),
            train_dataset=cast(Any, _rows(self.pairs, self.tokenizer)),
            eval_dataset=cast(Any, _rows(self.held_out, self.tokenizer)),
            data_collator=DataCollatorForSeq2Seq(self.tokenizer, self.model),
            processing_class=self.tokenizer,
            callbacks=[stopping, ConfigWriter(self.config, folder)],
        )
        if self.resume:
            trainer.add_callback(CheckingSteps(folder))
        if not self.print_log:
            trainer.remove_callback(PrinterCallback)
        return trainer


def score_pairs(model: Any, tokenizer: Any, pairs: Pairs, num_beams: int = 4) -> dict[str, Any]:
    """What a model's translations of the sources are worth."""
    made = translate(model, tokenizer, [source for source, _ in pairs], num_beams)
    return score_translations(made, [target for _, target in pairs]) | {"pairs": len(pairs), "num_beams": num_beams}


def model_config(config: RunConfig, tokenizer: Any) -> MemoryEncoderDecoderConfig:
    """An encoder and a decoder with the fields of the section `model`."""
    row, fields = import_models()[config.model.variant], config_fields(config.model)
    fields["vocab_size"] = fields["vocab_size"] or len(tokenizer)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        fields[name] = getattr(tokenizer, name) if fields[name] is None else fields[name]
    try:
        encoder_class = encoder_of(config.model.variant).config_class
    except ValueError as error:
        raise ValueError(
            f"`model.variant`={config.model.variant!r} is that of both sides: {error} Take another one, or join two models "
            "in Python (docs/translation.md)."
        ) from error
    decoder = row.config_class(**fields)
    encoder = encoder_class(**_of_encoder(fields, encoder_class))
    return MemoryEncoderDecoderConfig(
        encoder=encoder, decoder=decoder, share_embeddings=not getattr(decoder, "is_adaptive", False)
    )


def _of_encoder(fields: dict[str, Any], encoder_class: type) -> dict[str, Any]:
    """The fields that an encoder has: none of a memory."""
    known = {each.name for each in dataclasses.fields(cast(Any, encoder_class)) if each.init}
    known -= {"mem_len", "same_length", "initial_memory"}
    return {name: value for name, value in fields.items() if name in known}


def _base_model(run: RunConfig) -> MemoryForConditionalGeneration:
    """The encoder-decoder in a folder or a repository; fields of the section `model` that differ from its decoder's are
    changed in both of its parts.

    Raises:
        ValueError: a field would change its weights, or a weight is missing.
    """
    base = str(run.model.base)
    config = base_config(base)
    fields = {name: value for name, value in config_fields(run.model).items() if value is not None}
    changed = {name: value for name, value in fields.items() if getattr(config.decoder, name) != value}
    change_config(config.decoder, changed)
    change_config(config.encoder, _of_encoder(changed, type(config.encoder)))
    if Path(base).is_dir():
        with blamed(Path(base)):
            check_weights(Path(base), config, AutoModelForSeq2SeqLM)
    loaded: Any = MemoryForConditionalGeneration.from_pretrained(
        base, config=config, dtype=torch.float32, output_loading_info=True
    )
    model, info = loaded
    check_loaded(base, info, changed)
    return model


def _check_words(config: MemoryEncoderDecoderConfig, tokenizer: Any) -> None:
    """Raise a `ValueError` where the tokenizer is another one than the model's."""
    parts: list[Any] = [config.encoder, config.decoder]
    for part in parts:
        if part.vocab_size < len(tokenizer):
            raise ValueError(
                f"`vocab_size`={part.vocab_size} of the {part.model_type!r} is less than the {len(tokenizer)} tokens of "
                "the tokenizer: leave out `model.vocab_size`, or name the model's own with `tokenizer.path`."
            )
    for name in ("pad_token_id", "eos_token_id"):  # of what is written
        ours, theirs = getattr(config.decoder, name), getattr(tokenizer, name)
        if ours != theirs:
            raise ValueError(
                f"`{name}`={ours} of the model is {theirs} of the tokenizer: name the model's own with `tokenizer.path`."
            )


def load_translator(folder: Path) -> tuple[Any, Any]:
    """The encoder-decoder in a folder, on the GPU where there is one, and its tokenizer.

    Raises:
        ValueError: the folder holds none, or a file in it is damaged.
    """
    check_folder(folder)
    if not is_translator(folder):
        raise ValueError(
            f"{str(folder)!r} holds no encoder-decoder: `transformers-xl train --data.source ...` makes one."
        )
    with blamed(folder):
        loaded: Any = MemoryForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    model, info = loaded
    if info["missing_keys"]:
        raise ValueError(f"{str(folder)!r} lacks the weight {min(info['missing_keys'])!r}, which its config asks for.")
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), load_tokenizer(folder)


def _rows(pairs: Pairs, tokenizer: Any) -> list[dict[str, list[int]]]:
    return [{"input_ids": text_ids(tokenizer, a), "labels": text_ids(tokenizer, b)} for a, b in pairs]


def _pairs(section: DataSection) -> tuple[Pairs, Pairs]:
    """Those to train on, and those to hold out."""
    source, target = cast(str, section.source), cast(str, section.target)
    if section.dataset is not None and not section.path:
        return _of_dataset(section, source, target)
    files, held_out = files_to_read(section)
    pairs = read_pairs(source, target, files)
    if section.eval_source is not None:
        return pairs, read_pairs(section.eval_source, cast(str, section.eval_target))
    if held_out:
        return pairs, read_pairs(source, target, held_out)
    return hold_out_pairs(pairs, section.eval_fraction)


def _of_dataset(section: DataSection, source: str, target: str) -> tuple[Pairs, Pairs]:
    check_installed("datasets", ["datasets"])
    from datasets import load_dataset

    def split(name: str) -> Pairs:
        rows = load_dataset(section.dataset, section.dataset_config, revision=section.revision, split=name)
        return pairs_of_rows(rows, source, target)

    pairs = split(section.split)
    return (pairs, split(section.eval_split)) if section.eval_split else hold_out_pairs(pairs, section.eval_fraction)


def _arguments(config: RunConfig, folder: Path) -> Seq2SeqTrainingArguments:
    given, data = config.training, config.data
    library = {each.name: each.default for each in dataclasses.fields(Seq2SeqTrainingArguments) if each.init}
    values = {name: getattr(given, name) for name in library if hasattr(given, name)}
    # what memory over batches needs has no meaning for pairs
    changed = {
        name: library[name] for name in ("train_sampling_strategy", "dataloader_drop_last", "remove_unused_columns")
    }
    rows = {"per_device_train_batch_size": data.batch_size, "per_device_eval_batch_size": data.eval_batch_size}
    changed |= {name: value for name, value in rows.items() if value is not None}
    changed |= {"output_dir": str(folder), "disable_tqdm": given.disable_tqdm or not sys.stderr.isatty()}
    return Seq2SeqTrainingArguments(**values | changed)


def _check(config: RunConfig) -> None:
    """Refuse what has no meaning for pairs."""
    section, default = config.data, DataSection()
    if section.target is None:
        raise ValueError(f"`data.target`=None, but `data.source`={section.source!r}: name the translations too.")
    if (section.eval_source is None) != (section.eval_target is None):
        raise ValueError("`data.eval_source` and `data.eval_target` belong together: give both, or none.")
    for name in OF_TEXTS:
        if (value := getattr(section, name)) != getattr(default, name):
            raise ValueError(f"`data.{name}`={value!r} has no meaning for pairs of sentences: leave it out.")
    _check_held_out(section)
    check_length(config.training, "training.")
    library = {each.name for each in dataclasses.fields(Seq2SeqTrainingArguments)}
    for each in dataclasses.fields(MemoryTrainingArguments):
        value = getattr(config.training, each.name)
        if each.name not in library and value != each.default:
            raise ValueError(
                f"`training.{each.name}`={value!r} is of `MemoryTrainer`, not of a training on pairs: leave it out."
            )
    if config.lora.r or config.tokenizer.clusters:
        raise ValueError("`lora` and `tokenizer.clusters` are for language models: leave them out with pairs.")
    if config.model.base is not None and base_config(config.model.base).model_type != TRANSLATOR:
        raise ValueError(f"`model.base`={config.model.base!r} is a language model: pairs need an encoder-decoder.")


def _check_held_out(section: DataSection) -> None:
    """Refuse fields of another source of pairs than the one that is read."""
    from_dataset, default = section.dataset is not None and not section.path, DataSection()
    if from_dataset:
        others = ["eval_source", "eval_path", "text_field"]
        where, remedy = f"`data.dataset`={section.dataset!r}", "name its held-out rows with `data.eval_split`"
    elif section.path:
        others = ["dataset", "eval_source", *OF_DATASETS]
        where, remedy = f"`data.path`={section.path!r}", "name held-out files with `data.eval_path`"
    else:
        others = ["eval_path", *OF_DATASETS]
        where, remedy = f"`data.source`={section.source!r}", "name held-out files with `data.eval_source`"
    for name in others:
        if (value := getattr(section, name)) != getattr(default, name):
            raise ValueError(
                f"`data.{name}`={value!r} has no meaning for pairs of {where}: leave it out, and {remedy}."
            )


__all__ = ["TranslationRun", "load_translator", "model_config", "score_pairs"]
