"""`transformers-xl prepare`: a corpus of the papers, from its official file."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsMarkdown, check_output, show_table
from transformers_xl.corpora.paper_corpora import CORPORA, PARTS, LineFeeds


def prepare(
    corpus: Annotated[str, Argument(help=f"One of {', '.join(CORPORA)}.")],
    source: Annotated[
        Path,
        Argument(exists=True, readable=True, help="Its official file, compressed or not, or the folder of its files."),
    ],
    output: Annotated[Path, Option("--output", "-o", help="Folder to write: texts, tokenizer and their counts.")],
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output folder if it exists.")] = False,
    line_feeds: Annotated[
        LineFeeds | None,
        Option(help="Of enwik8, text8 and ptb-char: whether a line feed is a symbol.", show_default="drop"),
    ] = None,
    check: Annotated[bool, Option(help="Compare checksums and counts with the published ones.")] = True,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Make a paper's texts and vocabulary from the official files of a corpus.

    Transformer-XL drops the line feeds of enwik8 (204 symbols); adaptive span and SHA-RNN keep them (205).
    """
    if corpus not in CORPORA:
        raise ValueError(f"`corpus`={corpus!r} is not one of {', '.join(CORPORA)}.")
    check_output(output, overwrite)
    typer.echo("starting ...", err=True)  # the imports take seconds
    from transformers_xl.corpora import preparing

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


__all__ = ["prepare"]
