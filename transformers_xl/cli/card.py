"""`transformers-xl card`: what is known of a saved model, in the terminal or as its README.md."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsJson, show
from transformers_xl.runs.loading import config_of


def card(
    model_dir: Annotated[Path, Argument(exists=True, file_okay=False, help="Folder of a saved model.")],
    write: Annotated[bool, Option("--write", help="Write README.md, and results on benchmarks of the Hub.")] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace a README.md that was written by hand.")] = False,
    name: Annotated[
        str | None, Option(help="Name of the model, or its repository: you/name.", show_default="the folder's")
    ] = None,
    license: Annotated[str | None, Option(help="Licence of the weights, such as apache-2.0.")] = None,
    language: Annotated[str | None, Option(help="Language of the text, such as en.")] = None,
    base_model: Annotated[str | None, Option(help="Repository of the model that was fine-tuned.")] = None,
    tag: Annotated[list[str] | None, Option(help="Additional tag; may be given more than once.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the card of a model: its variant, and what was measured, each number with its file and key.

    Numbers come from training_metrics.json, which `train` and `evaluate --record` write. What you give for the licence and
    so on stays in README.md when it is written again.
    """
    from transformers_xl.hub.adapter_folders import read_adapter

    adapter = read_adapter(model_dir)
    config_of(str(model_dir) if adapter is None else adapter.base, any_kind=True)
    from transformers_xl.hub.cards import Choices, model_card, write_card
    from transformers_xl.hub.quoting import as_block

    choices = Choices(license, language, base_model, tags=tuple(tag or ()))
    written = write_card(model_dir, name, choices, overwrite) if write else []
    shown = model_card(model_dir, name, choices)
    if as_json:
        result = {"metadata": shown.data.to_dict(), "text": shown.text, "written": list(map(str, written))}
        typer.echo(json.dumps(result, indent=1))
        return
    if written:
        typer.echo("\n".join(f"wrote {path}" for path in written))
        return
    from rich.markdown import Markdown

    show(Markdown(f"{as_block(shown.data.to_yaml(), 'yaml')}\n{shown.text}"))


__all__ = ["card"]
