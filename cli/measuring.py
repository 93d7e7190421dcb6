"""What the commands that measure models share: names, a text in tokens, and tables."""

import json
from collections.abc import Iterable
from pathlib import Path

import typer

from transformers_xl.cli.common import show


def model_names(folders: Iterable[Path]) -> dict[str, Path]:
    """The folders by name: the last part of the path, or all of it where two have the same.

    Raises:
        ValueError: a folder is given twice.
    """
    folders = list(folders)
    last = [folder.resolve().name for folder in folders]
    names = [name if last.count(name) == 1 else str(folder) for name, folder in zip(last, folders, strict=True)]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"`model`={name!r} is given twice: give each model once.")
    return dict(zip(names, folders, strict=True))


def read_text(text: list[Path], tokenizer, progress: bool) -> tuple:
    """The token ids of files, and the bytes that all tokens but the first, which nothing predicts, stand for."""
    from transformers_xl.streams.files import read_ids

    ids, size = read_ids(text, tokenizer, progress=progress)
    first = len(tokenizer.decode_bytes(ids[:1].tolist())) if hasattr(tokenizer, "decode_bytes") else 0
    return ids, size - first


def check_picture(path: Path | None) -> None:
    """Raise a `ValueError` where a picture cannot be written."""
    if path is not None:
        from transformers_xl.evaluation.plots import picture_files

        picture_files(path)


def tell(result: dict, as_json: bool, title: str, header: list[str], rows: list[list[str]]) -> None:
    """Print a result as JSON, or as a table whose columns but the first are numbers."""
    if as_json:
        typer.echo(json.dumps(result, indent=1))
        return
    from rich.table import Table

    table = Table(*header, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    show(table)


__all__ = ["check_picture", "model_names", "read_text", "tell"]
