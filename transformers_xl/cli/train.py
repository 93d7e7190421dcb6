"""`transformers-xl train`: texts in, a folder for the Hub out."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from transformers_xl.cli.common import (
    AsMarkdown,
    TrustRemoteCode,
    check_inputs,
    check_output,
    check_spelling,
    is_main_process,
)
from transformers_xl.cli.measuring import tell_scores, tell_translations, tell_unknown
from transformers_xl.files.output_folder import check_new_run, run_to_resume
from transformers_xl.runs.loading import import_models

SECTIONS = """
Every field of a run can be given as an option, and in a YAML file under its section:

--model.FIELD: variant, base (a model to fine-tune), and the fields of the variant's config, as --model.mem_len 512

--memory.FIELD: of the memory around a base from transformers: kind (window or tokens), mem_len, num_memory_tokens, ...

--tokenizer.FIELD: path, clusters

--data.FIELD: path, eval_path, dataset, documents, batch_size, ...; source and target of a translation

--training.FIELD: those of transformers' TrainingArguments and of MemoryTrainingArguments, as --training.learning_rate 1e-4

--lora.FIELD: r, alpha, dropout, target_modules, merge

`transformers-xl config --fields SECTION` lists the fields of a section, `transformers-xl config` shows the whole run.
"""


def train(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None, Argument(metavar="[TEXTS]... [--SECTION.FIELD VALUE]...", help="Text files or folders.")
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Folder to write: config, weights, tokenizer, metrics, card.")
    ] = None,
    config: Annotated[
        list[Path] | None,
        Option(exists=True, dir_okay=False, help="YAML file; a later one overrides an earlier one."),
    ] = None,
    recipe: Annotated[
        str | None,
        Option(
            help="Name of a run that ships with this package.",
            show_default="small-bytes; add-memory-KIND for a base from transformers",
        ),
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Resume from the last checkpoint in the output folder.")] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output folder if it exists.")] = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Annotated[
        bool, Option("--json", help="Print the scores as JSON, and everything else to stderr.")
    ] = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Train a language model on texts, from scratch or from a base, and write a folder that is ready for the Hub.

    A part of the text is held out, and scored with the model's memory and with it taken away. On several devices:
    torchrun --nproc_per_node N -m transformers_xl.cli train ..., or accelerate launch -m transformers_xl.cli train ...
    """
    check_spelling(ctx, words or [])
    if output is None:
        raise ValueError("`output`=None: name the folder to write, with -o.")
    if is_main_process():
        _check_output(output, overwrite, resume)
        typer.echo("starting ...", err=True)  # the imports take seconds
    import_models()
    from transformers_xl.runs.run_data import input_files
    from transformers_xl.runs.run_options import read_run
    from transformers_xl.runs.training_run import TrainingRun

    resumed = run_to_resume(output) if resume else None
    run_config = read_run(words or [], config or [], recipe, resumed, trust_remote_code)
    if not resume:
        check_inputs("output", output, input_files(run_config))
    _check_devices(run_config.training.n_gpu)
    if run_config.data.source is not None:
        _train_on_pairs(run_config, output, resume, as_json, as_markdown)
        return
    if run_config.data.target is not None:
        raise ValueError(f"`data.target`={run_config.data.target!r} is of a translation: name `data.source` too.")
    command = _command(words or [], output, config or [], recipe, resume)
    run = TrainingRun(run_config, output, command, resume, not as_json, trust_remote_code)
    if is_main_process():
        _tell_run(run, as_json)
    scores = run.train()
    _exit_if_stopped(run, output)
    if is_main_process():
        _tell_early_stopping(run)
        tell_scores(scores, "held-out text", as_json, as_markdown)
        typer.echo(f"wrote {output}", err=as_json)


def _train_on_pairs(config: Any, output: Path, resume: bool, as_json: bool, as_markdown: bool) -> None:
    """Train an encoder-decoder by `config`, a [`~transformers_xl.runs.run_config.RunConfig`]."""
    from transformers_xl.runs.translation_run import TranslationRun

    run = TranslationRun(config, output, resume, not as_json)
    parts: Any = run.model.config
    typer.echo(
        f"{parts.encoder.model_type} and {parts.decoder.model_type}: "
        f"{run.model.num_parameters():,} parameters, {len(run.pairs):,} pairs, {len(run.held_out):,} held out",
        err=as_json,
    )
    scores = run.train()
    _exit_if_stopped(run, output)
    tell_translations(scores, "held-out pairs", as_json, as_markdown)
    typer.echo(f"wrote {output}", err=as_json)


def _tell_run(run: Any, as_json: bool) -> None:
    """Say what `run`, a [`~transformers_xl.runs.training_run.TrainingRun`], is about to do."""
    tokens = "streamed" if run.data.tokens is None else f"{run.data.tokens:,}"
    typer.echo(
        f"{run.model.config.model_type}: {run.model.num_parameters():,} parameters, {tokens} training tokens, "
        f"{run.data.held_out.tokens:,} held out",
        err=as_json,
    )
    for said in (run.note, run.need):
        if said is not None:
            typer.echo(said, err=True)
    tell_unknown(run.data.held_out.rows, run.tokenizer)


def _check_output(output: Path, overwrite: bool, resume: bool) -> None:
    if resume and overwrite:
        raise ValueError("`overwrite`=True has no effect with --resume: leave one of them out.")
    if resume:
        return
    if not overwrite and any(output.glob("checkpoint-*")):
        raise ValueError(
            f"`output`={str(output)!r} is not empty: add --resume to continue its training, or --overwrite to replace it."
        )
    check_output(output, overwrite)
    check_new_run(output)


def _exit_if_stopped(run: Any, output: Path) -> None:
    """End the command where `run`, which has trained, was asked to stop; say how to resume it."""
    if not run.was_stopped:
        return
    if is_main_process():
        line = shlex.join(["transformers-xl", "train", "--resume", "-o", str(output)])
        typer.echo(f"stopped after step {run.step:,}, which is saved; to resume: {line}", err=True)
    sys.exit(130)


def _tell_early_stopping(run: Any) -> None:
    """`run` is a [`~transformers_xl.runs.training_run.TrainingRun`] that has ended."""
    patience = run.config.training.early_stopping_patience
    if patience is not None and run.step < run.max_steps:
        reason = f"`training.early_stopping_patience`={patience} was reached"
        typer.echo(f"ended after step {run.step:,} of {run.max_steps:,}: {reason}", err=True)


def _check_devices(count: int) -> None:
    """Raise a `ValueError` with the line to type where one process would have several GPUs."""
    if count > 1:
        line = shlex.join(["torchrun", "--nproc_per_node", str(count), "-m", "transformers_xl.cli", *sys.argv[1:]])
        raise ValueError(
            f"`n_gpu`={count}: a process trains on one GPU. To use all of them, type: {line}   To use one, set "
            "CUDA_VISIBLE_DEVICES=0."
        )


def _command(words: list[str], output: Path, config: list[Path], recipe: str | None, resume: bool) -> str:
    """The command with files by their names, without tokens of the Hub: where files lie is nobody's business. Texts come
    first."""
    from transformers_xl.data.text_files import name_of
    from transformers_xl.files.yaml_files import load_value
    from transformers_xl.runs.run_options import split_options

    def named(value: str) -> str:
        found = load_value(value)
        is_list = isinstance(found, list) and all(isinstance(each, str) for each in found)
        return f"[{', '.join(map(name_of, found))}]" if is_list else name_of(value)

    options, texts = split_options(words)
    files = [word for path in config for word in ("--config", path.name)]
    chosen = ["--resume"] * resume + (["--recipe", recipe] if recipe else [])
    pairs = [option.split("=", 1) for option in options]
    spelled = [word for name, value in pairs if not name.endswith("_token") for word in (name, named(value))]
    names = [*map(name_of, texts), "-o", output.resolve().name]
    return shlex.join(["transformers-xl", "train", *names, *files, *chosen, *spelled])


__all__ = ["SECTIONS", "train"]
