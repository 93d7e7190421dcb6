"""`transformers-xl context-curve`: bits per byte against the length of the memory, and the position in a segment."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.measuring import check_picture, model_names, tell
from transformers_xl.experiments.loading import load_model


def context_curve(
    models: Annotated[
        list[Path], Argument(exists=True, file_okay=False, help="Folders of models; the first is shown by position.")
    ],
    text: Annotated[list[Path], Option(exists=True, dir_okay=False, help="Text file; may be given more than once.")],
    length: Annotated[
        list[int] | None,
        Option(
            min=0,
            help="Tokens of memory at evaluation; may be given more than once.",
            show_default="0, 1/4, 1/2, 1, 2, 4 x that of training",
        ),
    ] = None,
    segment_length: Annotated[
        int | None, Option(min=1, help="Tokens per segment.", show_default="as in training")
    ] = None,
    batch_size: Annotated[
        int, Option(min=1, help="Lanes (each begins without memory) or windows that are read side by side.")
    ] = 1,
    as_json: Annotated[bool, Option("--json", help="Print JSON, with bits per byte by position.")] = False,
    picture: Annotated[Path | None, Option(help="Write a picture: a .png, a .svg, or without an ending both.")] = None,
) -> None:
    """Measure bits per byte with memories of growing length, from none to longer than in training.

    A model without memory, also one of transformers, reads each segment anew behind so many tokens of the text, as far as
    it can read them.
    """
    names = model_names(models)
    check_picture(picture)
    typer.echo("starting ...", err=True)  # the imports take seconds
    rows = {
        name: _measure(folder, text, length, segment_length, batch_size, progress=not as_json)
        for name, folder in names.items()
    }
    result = {"text": [path.name for path in text], "batch_size": batch_size, "models": rows}
    if picture is not None:
        from transformers_xl.evaluation.context_plots import draw_context_curve
        from transformers_xl.evaluation.plots import save

        files = save(draw_context_curve(result), picture)
        typer.echo(f"wrote {', '.join(map(str, files))}", err=True)
    table = []
    for name, row in rows.items():
        for tokens, bits in row["bits_per_byte"].items():
            mark = " (training)" if row["remembers"] and int(tokens) == row["trained_length"] else ""
            table.append([name, "memory" if row["remembers"] else "read anew", f"{tokens}{mark}", f"{bits:.4f}"])
    tell(result, as_json, "before each segment", ["", "context", "tokens", "bits per byte"], table)


def _measure(
    folder: Path,
    text: list[Path],
    lengths: list[int] | None,
    segment_length: int | None,
    batch_size: int,
    progress: bool,
) -> dict:
    from transformers_xl.evaluation import context_curve as curve
    from transformers_xl.evaluation.context_losses import longest_window
    from transformers_xl.evaluation.score_ways import score_values
    from transformers_xl.streams.files import read_predicted

    model, tokenizer = load_model(folder, any_kind=True)
    segment_length = curve.curve_segment(model) if segment_length is None else segment_length
    limit = longest_window(model)
    if lengths:
        lengths = sorted(set(lengths))
        readable = [length for length in lengths if limit is None or length + segment_length <= limit]
        if readable and readable != lengths:
            typer.echo(f"{folder}: reads {limit} tokens at most, lengths above {readable[-1]} are left out", err=True)
            lengths = readable
    ids, num_bytes = read_predicted(text, tokenizer, progress)
    scores = curve.context_curve(model, ids, lengths or None, segment_length, batch_size, num_bytes, progress)
    return {
        "model_type": model.config.model_type,
        "remembers": curve.remembers(model),
        "trained_length": curve.trained_length(model, segment_length),
        "segment_length": segment_length,
        "bytes": num_bytes,
        "bits_per_byte": {str(length): score.bits_per_byte for length, score in scores.items()},
        "bits_per_byte_by_position": {
            str(length): score_values(score)["bits_per_byte_by_position"] for length, score in scores.items()
        },
    }


__all__ = ["context_curve"]
