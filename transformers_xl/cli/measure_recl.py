"""`transformers-xl recl`: how far back the models of a group make use of their context."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsMarkdown, Texts
from transformers_xl.cli.measuring import check_picture, model_names, tell, write_picture
from transformers_xl.runs.recl_options import RECLOptions

DEFAULT = RECLOptions()


def recl(
    models: Annotated[
        list[Path],
        Argument(exists=True, file_okay=False, help="Folders of models that read the same tokens: a group."),
    ],
    text: Texts,
    r: Annotated[
        float, Option("--r", help="Share of the tokens, the hardest, that gains are averaged over.")
    ] = DEFAULT.r,
    c0: Annotated[int, Option("--c0", min=1, help="Shortest context, in tokens.")] = DEFAULT.c0,
    delta: Annotated[int, Option(min=1, help="Tokens by which the context grows.")] = DEFAULT.delta,
    threshold: Annotated[
        float, Option(help="Relative gain in perplexity below which context counts as useless.")
    ] = DEFAULT.threshold,
    max_context: Annotated[int, Option(min=1, help="Longest context to measure, in tokens.")] = DEFAULT.max_context,
    blocks: Annotated[int, Option(min=2, help="Blocks of the text, for the confidence intervals.")] = DEFAULT.blocks,
    positions: Annotated[int, Option(min=1, help="Tokens to measure in each block.")] = DEFAULT.positions,
    resamples: Annotated[int, Option(min=1, help="Bootstrap samples of the blocks.")] = DEFAULT.resamples,
    confidence: Annotated[float, Option(help="Confidence level of the intervals.")] = DEFAULT.confidence,
    seed: Annotated[int, Option(min=0, help="Seed of the bootstrap.")] = DEFAULT.seed,
    batch_size: Annotated[int, Option(min=1, help="Batch rows: windows of the text.")] = DEFAULT.batch_size,
    as_json: Annotated[bool, Option("--json", help="Print JSON, with gains and losses by context.")] = False,
    as_markdown: AsMarkdown = False,
    picture: Annotated[
        Path | None, Option(help="Write a picture: .png, .svg, or both if the name has no ending.")
    ] = None,
) -> None:
    """Measure the relative effective context length of a group of models, in tokens.

    Each is given exactly so many tokens of the text before the one to predict. A model's context ends where more of it no
    longer lowers its loss, on the tokens that are hardest for the group (Dai et al., 2019, appendix C). Takes models of
    transformers too.
    """
    options = RECLOptions(
        r=r, c0=c0, delta=delta, threshold=threshold, max_context=max_context, blocks=blocks, positions=positions,
        resamples=resamples, confidence=confidence, seed=seed, batch_size=batch_size,
    )  # fmt: skip
    names = model_names(models)
    check_picture(picture)
    typer.echo("starting ...", err=True)  # the imports take seconds
    from transformers_xl.evaluation.recl import check_parameters
    from transformers_xl.runs.context_runs import measure_recl

    check_parameters(r, threshold, resamples, confidence)
    result = measure_recl(names, text, options, progress=not as_json)
    if picture is not None:
        from transformers_xl.evaluation.context_plots import draw_recl

        write_picture(draw_recl(result), picture)
    rows = []
    for name, row in result["models"].items():
        low, high = row["interval"]
        at_least = "at least " if row["is_bound"] else ""
        rows.append([name, f"{at_least}{row['recl']}", f"{low} to {high}", *map(_bits, _ends(row["nats"]))])
    shortest, longest = _ends(next(iter(result["models"].values()))["nats"].keys())
    header = ["", "RECL (tokens)", f"{100 * confidence:g} % interval", f"bits/token, {shortest}", f"{longest} before"]
    tell(result, f"the hardest {100 * r:g} % of {result['tokens']:,} tokens", header, rows, as_json, as_markdown)


def _ends(values) -> tuple:
    values = list(values.values()) if isinstance(values, dict) else list(values)
    return values[0], values[-1]


def _bits(nats: float) -> str:
    import math

    return f"{nats / math.log(2):.3f}"


__all__ = ["recl"]
