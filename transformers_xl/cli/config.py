"""`transformers-xl config`: a run as a whole file, and what can be said in it."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsJson, TrustRemoteCode, check_spelling
from transformers_xl.runs.loading import import_models


def config(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        Argument(metavar="[RECIPE|FILE.yaml]... [--SECTION.FIELD VALUE]...", help="A recipe, or YAML files."),
    ] = None,
    fields: Annotated[
        str | None, Option(help="List the fields of a section: model, memory, tokenizer, data, training or lora.")
    ] = None,
    recipes: Annotated[bool, Option("--recipes", help="List the recipes of this package.")] = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Print the whole run that a recipe, YAML files and options make: what `train --config` reads."""
    check_spelling(ctx, words or [])
    variants = import_models()
    from transformers_xl.runs.run_config import recipe_names
    from transformers_xl.runs.run_options import read_config, split_options
    from transformers_xl.runs.section_fields import section_help

    if recipes:
        typer.echo(json.dumps(recipe_names()) if as_json else "\n".join(recipe_names()))
        return
    options, names = split_options(words or [])
    files = [Path(name) for name in names if Path(name).suffix in (".yaml", ".yml")]
    chosen = [name for name in names if Path(name) not in files]
    if len(chosen) > 1:
        raise ValueError(f"`recipe`={', '.join(chosen)}: give one recipe, and files that end in .yaml.")
    run = read_config(options, files, chosen[0] if chosen else None, trust_remote_code)
    described = section_help(fields, variants[run.model.variant].config_class) if fields else None
    if as_json:
        values = run.to_dict()
        typer.echo(json.dumps(values[fields] if fields else values, indent=1))
        return
    typer.echo(described or run.to_yaml(), nl=False)


__all__ = ["config"]
