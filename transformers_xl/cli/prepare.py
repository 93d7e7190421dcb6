"""`transformers-xl prepare`: a corpus of the papers, from its official file, or your own log."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsMarkdown, check_output, show_table
from transformers_xl.data.paper_corpora import CORPORA, PARTS, LineFeeds

LOG = "log"  # the name of what is no paper's corpus


def prepare(
    corpus: Annotated[str, Argument(help=f"One of {', '.join(CORPORA)}, or {LOG}.")],
    source: Annotated[
        Path,
        Argument(
            exists=True,
            readable=True,
            help="Its official file, compressed or not, or the folder of its files; or a log.",
        ),
    ],
    output: Annotated[Path, Option("--output", "-o", help="Folder to write: texts, tokenizer and their counts.")],
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output folder if it exists.")] = False,
    line_feeds: Annotated[
        LineFeeds | None,
        Option(help="Of enwik8, text8 and ptb-char: whether a line feed is a symbol.", show_default="drop"),
    ] = None,
    drop_columns: Annotated[
        int, Option(min=0, help="Of a log: bytes to leave out at the start of every line, such as a date.")
    ] = 0,
    held_out: Annotated[
        float | None, Option(help="Of a log: share at its end for validation and test.", show_default="0.2")
    ] = None,
    check: Annotated[bool, Option(help="Compare checksums and counts with the published ones.")] = True,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Write the texts and vocabulary of a paper's corpus from its official files, or those of a log.

    Transformer-XL drops the line feeds of enwik8 (204 symbols); adaptive span and SHA-RNN keep them (205). Of a log, or any
    text whose lines are in order of time, the later part is held out.
    """
    if corpus not in (*CORPORA, LOG):
        raise ValueError(f"`corpus`={corpus!r} is not one of {', '.join((*CORPORA, LOG))}.")
    _check_options(corpus, line_feeds, drop_columns, held_out)
    check_output(output, overwrite, [source])
    typer.echo("starting ...", err=True)  # the imports take seconds
    if corpus == LOG:
        _prepare_log(source, output, drop_columns, 0.2 if held_out is None else held_out, as_json, as_markdown)
        return
    from transformers_xl.data import preparing

    result = preparing.prepare(corpus, source, output, line_feeds, check, progress=sys.stderr.isatty())
    if as_json:
        typer.echo(json.dumps(asdict(result), indent=2))
        return
    columns = ("lines", "tokens", "bytes")
    rows = [[part, *(f"{result.counts[f'{part} {column}']:,}" for column in columns)] for part in PARTS]
    show_table(corpus, ["", *columns], rows, as_markdown)
    typer.echo(f"vocabulary: {result.counts['vocabulary']:,}")
    typer.echo(f"as published: {', '.join(result.checked) or 'not checked'}")
    typer.echo(f"wrote {output}")


def _check_options(corpus: str, line_feeds: LineFeeds | None, drop_columns: int, held_out: float | None) -> None:
    if corpus == LOG and line_feeds is not None:
        raise ValueError(
            f"`line_feeds`={line_feeds!r} is for corpora of symbols: a log keeps its line feeds, leave it out."
        )
    if corpus != LOG and drop_columns:
        raise ValueError(f"`drop_columns`={drop_columns} is for a log: {corpus} has no columns, leave it out.")
    if corpus != LOG and held_out is not None:
        raise ValueError(f"`held_out`={held_out} is for a log: {corpus} has its own parts, leave it out.")


def _prepare_log(
    source: Path, output: Path, drop_columns: int, held_out: float, as_json: bool, as_markdown: bool
) -> None:
    from transformers_xl.data.logs import prepare_log

    result = prepare_log(source, output, drop_columns, held_out)
    if as_json:
        typer.echo(json.dumps(asdict(result), indent=2))
        return
    columns = ("lines", "bytes", "words", "new words")
    rows = [[part, *(f"{result.counts.get(f'{part} {column}', 0):,}" for column in columns)] for part in PARTS]
    rows[0][-1] = ""  # the training part is what words are new to
    show_table(LOG, ["", *columns], rows, as_markdown)
    typer.echo(f"vocabulary: {result.counts['vocabulary']:,}")
    typer.echo(f"wrote {output}")


__all__ = ["prepare"]
