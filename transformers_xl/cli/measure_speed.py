"""`transformers-xl speed`: what a predicted token costs by a moving window, and in segments with memory."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsJson, AsMarkdown, Texts
from transformers_xl.cli.measuring import tell
from transformers_xl.runs.loading import load_model


def speed(
    model_dir: Annotated[Path, Argument(exists=True, file_okay=False, help="Folder of a model with memory.")],
    text: Texts,
    length: Annotated[
        list[int] | None,
        Option(
            min=1,
            help="Length of the window and of the memory, in tokens; may be given more than once.",
            show_default="800, 1800, 2800, 3800",
        ),
    ] = None,
    segment_length: Annotated[
        int | None, Option(min=1, help="Tokens per segment.", show_default="as in training")
    ] = None,
    repeats: Annotated[int, Option(min=1, help="Rounds to time; the median counts.")] = 3,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Time the evaluation of a text, per predicted token.

    A window that is read again for every token, against segments with a memory as long as that window (Dai et al., 2019,
    section 4.5).
    """
    typer.echo("starting ...", err=True)  # the imports take seconds
    model, tokenizer = load_model(model_dir)
    import torch

    from transformers_xl.data.files import read_ids
    from transformers_xl.evaluation.speed import ATTENTION_LENGTHS, evaluation_speed
    from transformers_xl.hub.measurements import device_name

    ids, _ = read_ids(text, tokenizer, progress=not as_json)
    rows = evaluation_speed(model, ids, length or ATTENTION_LENGTHS, segment_length, repeats)
    device = device_name(model.device)
    result = {
        "model_type": model.config.model_type,
        "parameters": model.num_parameters(),
        "segment_length": segment_length or model.config.segment_length,
        "device": device,
        "torch": torch.__version__,
        "rows": rows,
    }
    table = [
        [
            f"{row['attention']:,}",
            f"{1000 * row['moving_window']:.3g}",
            f"{1000 * row['segments']:.3g}",
            f"{row['ratio']:,.0f}",
        ]
        for row in rows
    ]
    header = ["context (tokens)", "moving window, ms per token", "segments with memory", "times as fast"]
    tell(result, f"{model.config.model_type}, {device}", header, table, as_json, as_markdown)


__all__ = ["speed"]
