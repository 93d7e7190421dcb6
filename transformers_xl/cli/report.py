"""`transformers-xl report`: one HTML page about a model and a text, with its pictures in it."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsJson, Texts, check_inputs


def report(
    model_dir: Annotated[Path, Argument(exists=True, file_okay=False, help="Folder of a model.")],
    text: Texts,
    out: Annotated[Path, Option("--out", "-o", help="HTML file to write.")] = Path("report.html"),
    pictures: Annotated[
        Path | None, Option(help="Folder to write every picture to as well, as PNG and SVG.", show_default="none")
    ] = None,
    tokens: Annotated[int, Option(min=2, help="Tokens of the text to read, from its beginning.")] = 16384,
    segment_length: Annotated[
        int | None, Option(min=1, help="Tokens per segment.", show_default="as in training")
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the file, and pictures, if they exist.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report on a model: bits per byte with its memory and with it taken away, what its heads attend to, and what its
    variant has learned.

    The page holds its pictures and needs no network. A GPU is used where there is one.
    """
    if out.is_dir():
        raise ValueError(f"`out`={str(out)!r} is a folder: give the name of a file, for example report.html.")
    if out.exists() and not overwrite:
        raise ValueError(f"`out`={str(out)!r} exists: choose another name, or add --overwrite.")
    check_inputs("out", out, [*text, *(file for file in model_dir.rglob("*") if file.is_file())])
    if pictures is not None and pictures.exists() and not pictures.is_dir():
        raise ValueError(f"`pictures`={str(pictures)!r} is a file: give the name of a folder.")
    if pictures is not None and pictures.is_dir() and any(pictures.iterdir()) and not overwrite:
        raise ValueError(f"`pictures`={str(pictures)!r} is not empty: choose another folder, or add --overwrite.")
    from transformers_xl.runs.model_report import write_report

    sections = write_report(model_dir, text, out, pictures, tokens, segment_length)
    if as_json:
        result = {"out": str(out), "pictures": str(pictures) if pictures else None, "sections": sections}
        typer.echo(json.dumps(result, indent=1))
        return
    typer.echo(f"wrote {out}" + (f" and {pictures}" if pictures else ""))


__all__ = ["report"]
