"""`transformers-xl context-curve`: bits per byte against the length of the memory, and the position in a segment."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsMarkdown, Texts
from transformers_xl.cli.measuring import check_picture, model_names, tell, write_picture


def context_curve(
    models: Annotated[
        list[Path], Argument(exists=True, file_okay=False, help="Folders of models; the first is shown by position.")
    ],
    text: Texts,
    length: Annotated[
        list[int] | None,
        Option(
            min=0,
            help="Memory length in tokens; may be given more than once.",
            show_default="0, 1/4, 1/2, 1, 2, 4 x that of training",
        ),
    ] = None,
    segment_length: Annotated[
        int | None, Option(min=1, help="Tokens per segment.", show_default="as in training")
    ] = None,
    batch_size: Annotated[int, Option(min=1, help="Batch rows: lanes, each from an empty memory, or windows.")] = 1,
    as_json: Annotated[bool, Option("--json", help="Print JSON, with bits per byte by position.")] = False,
    as_markdown: AsMarkdown = False,
    picture: Annotated[
        Path | None, Option(help="Write a picture: .png, .svg, or both if the name has no ending.")
    ] = None,
) -> None:
    """Measure bits per byte with memories of growing length, from none to longer than in training.

    A model without memory, including one of transformers, reads each segment again after that many tokens, as far
    as it can read them.
    """
    names = model_names(models)
    check_picture(picture)
    typer.echo("starting ...", err=True)  # the imports take seconds
    from transformers_xl.runs.context_runs import measure_context_curve

    rows = {
        name: measure_context_curve(folder, text, length, segment_length, batch_size, progress=not as_json)
        for name, folder in names.items()
    }
    for name, row in rows.items():
        if row["left_out"]:
            longest = list(row["bits_per_byte"])[-1]
            typer.echo(f"{name}: lengths above {longest} are left out, longer than it can read", err=True)
    result = {"text": [path.name for path in text], "batch_size": batch_size, "models": rows}
    if picture is not None:
        from transformers_xl.evaluation.context_plots import draw_context_curve

        write_picture(draw_context_curve(result), picture)
    table = []
    for name, row in rows.items():
        for tokens, bits in row["bits_per_byte"].items():
            mark = " (training)" if row["remembers"] and int(tokens) == row["trained_length"] else ""
            table.append([name, "memory" if row["remembers"] else "read again", f"{tokens}{mark}", f"{bits:.4f}"])
    tell(result, "before each segment", ["", "context", "tokens", "bits per byte"], table, as_json, as_markdown)


__all__ = ["context_curve"]
