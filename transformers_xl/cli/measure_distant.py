"""`transformers-xl distant-context`: what models make of the text further away, and of the order of its words."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsMarkdown, Texts
from transformers_xl.cli.measuring import check_picture, model_names, tell, write_picture
from transformers_xl.runs.distant_options import DistantOptions

DEFAULT = DistantOptions()


def distant_context(
    models: Annotated[list[Path], Argument(exists=True, file_okay=False, help="Folders of models.")],
    text: Texts,
    distance: Annotated[
        list[int] | None,
        Option(
            min=1,
            help="Number of nearest tokens that do not change; may be given more than once.",
            show_default="1, 2, 4, ... up to half of the context",
        ),
    ] = None,
    context: Annotated[int, Option(min=2, help="Tokens before each predicted token.")] = DEFAULT.context,
    positions: Annotated[int, Option(min=2, help="Tokens to predict, spread over the text.")] = DEFAULT.positions,
    seed: Annotated[int, Option(min=0, help="Seed of the perturbations.")] = DEFAULT.seed,
    batch_size: Annotated[int, Option(min=1, help="Windows per batch.")] = DEFAULT.batch_size,
    as_json: Annotated[bool, Option("--json", help="Print JSON, with 95 % intervals.")] = False,
    as_markdown: AsMarkdown = False,
    picture: Annotated[Path | None, Option(help="Write a picture: a .png, a .svg, or without an ending both.")] = None,
) -> None:
    """Measure the loss of a token when the words of distant text are dropped, shuffled, or replaced by other text.

    Shuffling shows what the order of distant words is worth, replacing what the words are worth (Khandelwal et al., 2018).
    Models of transformers work too.
    """
    options = DistantOptions(context=context, positions=positions, seed=seed, batch_size=batch_size)
    names = model_names(models)
    check_picture(picture)
    typer.echo("starting ...", err=True)  # the imports take seconds
    import math

    from transformers_xl.runs.context_runs import measure_distant_context

    distances = sorted(set(distance or options.distances))
    result = measure_distant_context(names, text, distances, options, progress=not as_json)
    if picture is not None:
        from transformers_xl.evaluation.context_plots import draw_distant_context

        write_picture(draw_distant_context(result), picture)
    rows = []
    for name, row in result["models"].items():
        for kind, added in row["added"].items():
            bits = [f"{nats / math.log(2):+.3f}" for nats in added.values()]
            rows.append([name, kind, f"{row['nats'] / math.log(2):.3f}", *bits])
    header = ["", "further text", "bits/token", *map(str, distances)]
    title = f"bits added by distance, {positions} tokens, {context} before each"
    tell(result, title, header, rows, as_json, as_markdown)


__all__ = ["distant_context"]
