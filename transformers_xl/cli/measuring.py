"""What the commands that measure models share: names, pictures and tables."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from transformers_xl.cli.common import show_table


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


def check_picture(path: Path | None) -> None:
    """Raise a `ValueError` where a picture cannot be written."""
    if path is not None:
        from transformers_xl.evaluation.plots import picture_files

        picture_files(path)


def write_picture(picture, path: Path) -> None:
    """Write a figure, and say where."""
    from transformers_xl.evaluation.plots import save

    typer.echo(f"wrote {', '.join(map(str, save(picture, path)))}", err=True)


def tell(
    result: dict, title: str, header: list[str], rows: list[list[str]], as_json: bool, as_markdown: bool = False
) -> None:
    """Print a result as JSON, or as a table whose columns but the first are numbers."""
    if as_json:
        typer.echo(json.dumps(result, indent=1))
        return
    show_table(title, header, rows, as_markdown)


def tell_scores(scores: dict[str, Any], title: str, as_json: bool, as_markdown: bool) -> None:
    """Print the scores of a text, [`~transformers_xl.evaluation.bits_per_byte.TextScore`] by how it was read."""
    from transformers_xl.evaluation.score_ways import score_table, score_values

    header, *rows = score_table(scores)
    result = {name.replace(" ", "_"): score_values(score) for name, score in scores.items()}
    tell(result, title, header, rows, as_json, as_markdown)


def tell_unknown(rows: Iterable[Any], tokenizer: Any) -> None:
    """Say how many tokens of a scored text, arrays of ids `(tokens,)`, stand for words that the vocabulary lacks."""
    unknown = tokenizer.unk_token_id
    if unknown in (None, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id):
        return  # GPT-2's stands for the end of a text
    counts = [(int((row == unknown).sum()), len(row)) for row in rows]
    found, size = (sum(numbers) for numbers in zip(*counts, strict=True))
    if found:
        typer.echo(
            f"{found:,} of {size:,} tokens of the scored text are {tokenizer.unk_token}. Scores per byte, character and "
            "word count the letters of words that it stands for, which nothing predicts: compare scores of this vocabulary "
            "only.",
            err=True,
        )


def tell_translations(scores: dict, title: str, as_json: bool, as_markdown: bool = False) -> None:
    """Print what translations are worth."""
    names = [name for name in ("bleu", "chrf", "perplexity", "pairs") if name in scores]
    tell(scores, title, ["", *names], [["", *(f"{scores[name]:,}" for name in names)]], as_json, as_markdown)
    if not as_json:
        typer.echo(scores["signature"], err=True)


__all__ = ["check_picture", "model_names", "tell", "tell_scores", "tell_translations", "tell_unknown", "write_picture"]
