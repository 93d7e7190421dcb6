"""`transformers-xl train`: text files in, a folder for the Hub out."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import check_output, is_main_process, show_table
from transformers_xl.experiments.loading import import_models

MODEL, DATA, TRAINING = "Model", "Data", "Training"


def train(
    texts: Annotated[
        list[Path], Argument(exists=True, dir_okay=False, readable=True, help="Text files, read in this order.")
    ],
    output: Annotated[
        Path, Option("--output", "-o", help="Folder to write: config, weights, tokenizer, metrics, card.")
    ],
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output folder if it exists.")] = False,
    variant: Annotated[
        str, Option(help="Model type, a row of the table of variants.", rich_help_panel=MODEL)
    ] = "transformer_xl",
    hidden_size: Annotated[int, Option(help="Width of the model.", rich_help_panel=MODEL)] = 256,
    layers: Annotated[int, Option(help="Number of layers.", rich_help_panel=MODEL)] = 4,
    heads: Annotated[int, Option(help="Attention heads per layer.", rich_help_panel=MODEL)] = 4,
    intermediate_size: Annotated[
        int | None,
        Option(help="Inner width of the feed-forward.", show_default="4 x hidden size", rich_help_panel=MODEL),
    ] = None,
    mem_len: Annotated[int, Option(help="Length of the memory, in tokens.", rich_help_panel=MODEL)] = 256,
    dropout: Annotated[float, Option(help="Probability of dropout.", rich_help_panel=MODEL)] = 0.1,
    eval_text: Annotated[
        list[Path] | None,
        Option(exists=True, dir_okay=False, help="Held-out text; may be given more than once.", rich_help_panel=DATA),
    ] = None,
    eval_fraction: Annotated[
        float, Option(help="Share of the text to hold out at its end, without --eval-text.", rich_help_panel=DATA)
    ] = 0.1,
    dataset: Annotated[
        str | None, Option(help="Data set on the Hub that the text is; for the card.", rich_help_panel=DATA)
    ] = None,
    dataset_revision: Annotated[str | None, Option(help="Its commit.", rich_help_panel=DATA)] = None,
    task_id: Annotated[
        str | None, Option(help="The held-out text's task in its eval.yaml, of a benchmark.", rich_help_panel=DATA)
    ] = None,
    segment_length: Annotated[int, Option(help="Tokens per segment.", rich_help_panel=DATA)] = 128,
    batch_size: Annotated[int, Option(help="Lanes of text that are read side by side.", rich_help_panel=DATA)] = 16,
    steps: Annotated[int | None, Option(help="Training steps.", show_default="1000", rich_help_panel=TRAINING)] = None,
    epochs: Annotated[
        float | None, Option(help="Passes over the text, instead of --steps.", rich_help_panel=TRAINING)
    ] = None,
    learning_rate: Annotated[float, Option(help="Peak learning rate of AdamW.", rich_help_panel=TRAINING)] = 1e-3,
    warmup_steps: Annotated[
        int, Option(help="Steps of linear warm-up, before a cosine to 0.", rich_help_panel=TRAINING)
    ] = 100,
    seed: Annotated[int, Option(help="Seed of the weights and of dropout.", rich_help_panel=TRAINING)] = 0,
) -> None:
    """Train a byte-level model on text files and write a folder that is ready for the Hub.

    The end of the text is held out, and scored with and without the model's memory. On several devices:
    torchrun --nproc_per_node N -m transformers_xl.cli train ..., which shares the lanes.
    """
    arguments = {
        name: value for name, value in locals().items() if name not in ("texts", "output", "overwrite", "eval_text")
    }
    check_output(output, overwrite)
    if steps is not None and epochs is not None:
        raise ValueError(f"`steps`={steps} and `epochs`={epochs} exclude each other: give one of them.")
    for name in ("steps", "epochs", "learning_rate"):
        if arguments[name] is not None and arguments[name] <= 0:
            raise ValueError(f"`{name}`={arguments[name]} must be above 0.")
    if is_main_process():
        typer.echo("starting ...", err=True)  # the imports take seconds
    variants = import_models()
    if variant not in variants or not variants[variant].causal:
        known = ", ".join(name for name, row in variants.items() if row.causal)
        raise ValueError(f"`variant`={variant!r} is not a language model of this package: known are {known}.")
    _train(variants[variant], texts, output, eval_text, arguments)


def _train(row, texts: list[Path], output: Path, eval_text: list[Path] | None, arguments: dict) -> None:
    from transformers_xl.evaluation.score_ways import COLUMNS, score_rows
    from transformers_xl.experiments.training_run import TrainingRun

    run = TrainingRun(row, texts, eval_text, arguments)
    if is_main_process():
        typer.echo(
            f"{run.model.config.model_type}: {run.model.num_parameters():,} parameters, {len(run.stream.ids):,} bytes to "
            f"learn from, {len(run.held_out):,} held out"
        )
    scores = run.train(output, _command(texts, output, eval_text, arguments))
    if is_main_process():
        show_table("held-out text", COLUMNS, score_rows(scores))
        typer.echo(f"wrote {output}")


def _command(texts: list[Path], output: Path, eval_text: list[Path] | None, arguments: dict) -> str:
    """The command with all its options spelled out, and files by their names: where they lie is nobody's business."""
    words = ["transformers-xl", "train", *(path.name for path in texts), "-o", output.resolve().name]
    words += [word for path in eval_text or () for word in ("--eval-text", path.name)]
    for name, value in arguments.items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


__all__ = ["train"]
