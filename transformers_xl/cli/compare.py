"""`transformers-xl compare`: all language models on equal terms - parameters, text, tokens and steps."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsJson, AsMarkdown, show_table
from transformers_xl.files.blaming import blamed
from transformers_xl.files.written import is_untouched
from transformers_xl.runs.comparison_terms import ComparisonTerms

DEFAULT = ComparisonTerms()


def compare(
    texts: Annotated[
        list[Path] | None, Argument(exists=True, dir_okay=False, readable=True, help="Text files, read as one text.")
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", file_okay=False, help="Folder to write, or to resume.")
    ] = None,
    from_dir: Annotated[
        Path | None,
        Option(
            "--from",
            exists=True,
            file_okay=False,
            help="Write table and picture of this folder's runs, or of those of each --variant, nothing else.",
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        Option(
            help="Model type, or gpt2, lstm, mamba2, mistral; may be given more than once.",
            show_default="all language models",
        ),
    ] = None,
    seeds: Annotated[int, Option(min=1, help="Runs of each model, with seeds 0, 1, ...")] = 3,
    speeds: Annotated[bool, Option(help="Measure speeds at the end, again in every call.")] = True,
    turns: Annotated[int, Option(min=1, help="Rounds of speed measurements; their median counts.")] = 9,
    hidden_size: Annotated[int, Option(help="Width of the models.")] = DEFAULT.hidden_size,
    layers: Annotated[int, Option(help="Number of layers.")] = DEFAULT.layers,
    heads: Annotated[int, Option(help="Attention heads per layer.")] = DEFAULT.heads,
    mem_len: Annotated[int, Option(min=1, help="Length of the memory, in tokens.")] = DEFAULT.mem_len,
    dropout: Annotated[float, Option(help="Probability of dropout.")] = DEFAULT.dropout,
    eval_fraction: Annotated[float, Option(help="Share of the text to hold out at its end.")] = DEFAULT.eval_fraction,
    segment_length: Annotated[int, Option(min=4, help="Tokens per segment.")] = DEFAULT.segment_length,
    batch_size: Annotated[
        int, Option(help="Batch rows: lanes of the text that are read side by side.")
    ] = DEFAULT.batch_size,
    steps: Annotated[int, Option(min=1, help="Training steps.")] = DEFAULT.steps,
    learning_rate: Annotated[
        list[float] | None,
        Option(
            help="Learning rate of AdamW. Of several (give the option again), each model gets its best one in a run of a "
            "quarter of the steps.",
            show_default=str(DEFAULT.learning_rate),
        ),
    ] = None,
    warmup_steps: Annotated[int, Option(help="Steps of linear warm-up.")] = DEFAULT.warmup_steps,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Train models on equal terms, and write a table and a picture.

    All have the same width, depth, text, order of batches and steps; the inner width of the feed-forward is chosen so that
    they have the same number of parameters, within 3 %. Every run is a file, runs/MODEL-SEED.json: a command that was
    killed is resumed by the same command; more seeds or models are added.
    """
    if from_dir is not None:
        if texts or output is not None:
            raise ValueError("`from` reads runs that exist: leave out texts and --output.")
        _write_report(from_dir, as_json, as_markdown, variant)
        return
    if not texts or output is None:
        raise ValueError("`texts` and `output` are needed: give text files, and a folder with --output.")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError(
            f"`WORLD_SIZE`={os.environ['WORLD_SIZE']}: the comparison measures time and memory in one process: start the "
            "command without a launcher."
        )
    _check_folder(output)
    rates = list(dict.fromkeys(learning_rate or [DEFAULT.learning_rate]))
    terms = ComparisonTerms(
        hidden_size=hidden_size, layers=layers, heads=heads, mem_len=mem_len, dropout=dropout,
        eval_fraction=eval_fraction, segment_length=segment_length, batch_size=batch_size, steps=steps,
        learning_rate=min(rates), warmup_steps=warmup_steps,
    )  # fmt: skip
    _compare(texts, output, variant, seeds, turns if speeds else 0, terms, rates)
    _write_report(output, as_json, as_markdown)


def _check_folder(output: Path) -> None:
    """Raise a `ValueError` where a folder holds other things than a comparison."""
    if not is_untouched(output) and not any((output / name).is_dir() for name in ("runs", "rates")):
        raise ValueError(
            f"`output`={str(output)!r} is not empty and holds no comparison: choose another folder, or that of one."
        )


def _compare(
    texts: list[Path],
    output: Path,
    variant: list[str] | None,
    seeds: int,
    turns: int,
    terms: ComparisonTerms,
    learning_rates: list[float],
) -> None:
    typer.echo("starting ...", err=True)  # the imports take seconds
    from transformers_xl.runs.comparison_folder import Comparison

    comparison = Comparison(texts, output, variant, seeds, terms, learning_rates)
    found, missing = len(comparison.found), len(comparison.missing)
    typer.echo(f"{comparison.parameters:,} parameters; {found} runs exist, {missing} to run", err=True)
    for number, (name, seed) in enumerate(comparison.missing, start=1):
        run = comparison.train(name, seed)
        seconds, rate = run["curve"][-1]["seconds"], run["learning_rate"]
        told = f"{run['bits_per_byte']['with_context']:.3f} bits per byte, {seconds:.0f} s of training at {rate:g}"
        typer.echo(f"{number}/{missing} {name}, seed {seed}: {told}", err=True)
    if turns:
        comparison.measure_speeds(turns)


def _write_report(folder: Path, as_json: bool, as_markdown: bool, models: list[str] | None = None) -> None:
    from transformers_xl.evaluation.plots import save
    from transformers_xl.files.atomic_write import write_text
    from transformers_xl.runs.comparison import read_runs, read_speeds, summary, table, table_cells
    from transformers_xl.runs.comparison_plots import draw_comparison

    with blamed(folder):
        runs = read_runs(folder, models=models)
        rows = summary(runs, read_speeds(folder, runs[0]["settings"]))
    write_text(folder / "compare.md", table(rows))
    save(draw_comparison(rows), folder / "compare.png")
    if as_json or as_markdown:
        typer.echo(json.dumps(rows, indent=1) if as_json else table(rows))
    else:
        header, *cells = table_cells(rows)
        show_table("models on equal terms", header, cells)
    typer.echo(f"wrote {folder / 'compare.md'}, {folder / 'compare.png'}", err=as_json)


__all__ = ["compare"]
