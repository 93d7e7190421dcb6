"""`transformers-xl compare`: language models on equal terms, as a plan says."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsJson, AsMarkdown, show_table
from transformers_xl.files.blaming import blamed
from transformers_xl.files.written import is_untouched


def compare(
    plan: Annotated[
        Path | None,
        Argument(exists=True, dir_okay=False, readable=True, help="YAML file: texts, models, what is tried for each."),
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", file_okay=False, help="Folder to write, or to resume.")
    ] = None,
    from_dir: Annotated[
        Path | None,
        Option(
            "--from", exists=True, file_okay=False, help="Write table and picture of this folder's runs, nothing else."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        Option(
            help="Run this model alone, as one of several commands side by side; may be given more than once. The command "
            "without it does the rest, and times the steps.",
            show_default="all models of the plan",
        ),
    ] = None,
    keep_models: Annotated[
        bool, Option(help="Also write each model that is trained to models/MODEL-SEED in the folder.")
    ] = False,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Train models on equal terms, and write a table and a picture.

    Each model gets its best start of weights, learning rate and schedule, within one budget of trials on the validation
    documents; then it is trained from each seed and scored on the test documents. Every trial and run is a file: a command
    that was killed is resumed by the same command; more seeds, models or trials are added. docs/comparison.md has the
    fields of a plan.
    """
    if from_dir is not None:
        if plan is not None or output is not None or only or keep_models:
            raise ValueError("`from` reads runs that exist: leave out the plan, --output, --only and --keep-models.")
        _write_report(from_dir, as_json, as_markdown)
        return
    if plan is None or output is None:
        raise ValueError("`plan` and `output` are needed: give a YAML file, and a folder with --output.")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError(
            f"`WORLD_SIZE`={os.environ['WORLD_SIZE']}: the comparison measures time and memory in one process: start the "
            "command without a launcher."
        )
    if not is_untouched(output) and not (output / "plan.json").is_file():
        raise ValueError(
            f"`output`={str(output)!r} is not empty and holds no comparison: choose another folder, or that of one."
        )
    _compare(plan, output, only or [], keep_models)
    if not only:
        _write_report(output, as_json, as_markdown)


def _compare(plan_file: Path, output: Path, only: list[str], keep_models: bool) -> None:
    from transformers_xl.runs.comparison_plan import read_plan

    plan = read_plan(plan_file)
    for name in only:
        if name not in plan.models:
            raise ValueError(f"`only`={name!r} is none of the models of the plan: {', '.join(plan.models)}.")
    typer.echo("starting ...", err=True)  # the imports take seconds
    from transformers_xl.runs.comparison_folder import Comparison

    comparison = Comparison(plan, output, keep_models)
    runs = [(name, seed) for name, seed in comparison.missing if name in (only or plan.models)]
    for name, model in comparison.models.items():
        typer.echo(f"{name}: {model.parameters:,} parameters", err=True)
    exist = plan.seeds * len(plan.models) - len(comparison.missing)
    typer.echo(f"{exist} runs exist, {len(runs)} to run", err=True)
    for number, (name, seed) in enumerate(runs, start=1):
        setting = comparison.choose(name)
        run = comparison.train(name, seed)
        bits = sum(run["bits"][str(plan.steps)]) / sum(run["bytes"])
        told = f"{bits:.3f} bits per byte with start {setting.start:.3g}, rate {setting.rate:g}, {setting.schedule}"
        typer.echo(f"{number}/{len(runs)} {name}, seed {seed}: {told}", err=True)
    if not only:
        comparison.time_steps()


def _write_report(folder: Path, as_json: bool, as_markdown: bool) -> None:
    from transformers_xl.evaluation.plots import save
    from transformers_xl.files.atomic_write import write_text
    from transformers_xl.runs.comparison import read_comparison, table, table_cells, values
    from transformers_xl.runs.comparison_plots import draw_comparison

    with blamed(folder):
        found = read_comparison(folder)
    write_text(folder / "compare.md", table(found))
    save(draw_comparison(found), folder / "compare.png")
    if as_json or as_markdown:
        typer.echo(json.dumps(values(found), indent=1) if as_json else table(found))
    else:
        header, *cells = table_cells(found)
        show_table("models on equal terms", header, cells)
    typer.echo(f"wrote {folder / 'compare.md'}, {folder / 'compare.png'}", err=as_json)


__all__ = ["compare"]
