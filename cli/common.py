"""What the commands share: how a text is generated, what is shown, and what refuses a folder."""

import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
AsMarkdown = Annotated[bool, Option("--markdown", help="Print the table as Markdown.")]


def is_main_process() -> bool:
    """Whether this is the process that speaks for all that a launcher started; known before torch is imported."""
    return int(os.environ.get("RANK", 0)) == 0


def sampling(temperature: float, top_k: int) -> dict:
    """Arguments of `generate()`: at a temperature of 0 the likeliest token is taken."""
    return {"do_sample": True, "temperature": temperature, "top_k": top_k} if temperature else {"do_sample": False}


def streamer_of(tokenizer, continues: bool = False):
    """What shows new tokens on standard output while they are written: bytes as they come, or text word by word, joined to
    the prompt where it `continues` it."""
    import transformers

    from transformers_xl.streams.streamers import ByteStreamer, TextContinuation

    if hasattr(tokenizer, "decode_bytes"):
        return ByteStreamer(tokenizer, lambda data: typer.echo(data, nl=False))
    streamer_class = TextContinuation if continues else transformers.TextStreamer
    return streamer_class(tokenizer, skip_prompt=True, skip_special_tokens=True)


def show(renderable) -> None:
    """Print what rich renders, as every other output: a closed pipe is an error for the boundary, not for rich."""
    from rich.console import Console

    console = Console()
    with console.capture() as text:
        console.print(renderable)
    typer.echo(text.get(), nl=False)


def show_table(title: str, header: list[str], rows: list[list[str]], as_markdown: bool = False) -> None:
    """Print a table whose columns but the first are numbers: aligned, or as Markdown without its title."""
    if as_markdown:
        rule = ["---", *["---:"] * (len(header) - 1)]
        typer.echo("\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows)))
        return
    from rich.table import Table

    table = Table(*header, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    show(table)


def check_output(folder: Path, overwrite: bool) -> None:
    """Raise a `ValueError` where `folder` cannot be written."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`output`={str(folder)!r} is a file: give the name of a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise ValueError(f"`output`={str(folder)!r} is not empty: choose another folder, or add --overwrite.")


__all__ = [
    "AsJson",
    "AsMarkdown",
    "check_output",
    "is_main_process",
    "sampling",
    "show",
    "show_table",
    "streamer_of",
]
