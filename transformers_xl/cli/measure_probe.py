"""`transformers-xl probe` and `train-probe`: what models remember of what they were told some tokens ago."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsJson, AsMarkdown, check_output
from transformers_xl.cli.measuring import check_picture, model_names, tell, write_picture
from transformers_xl.evaluation.probe_options import ProbeOptions
from transformers_xl.runs.probe_terms import ProbeTerms

OPTIONS, TERMS = ProbeOptions(), ProbeTerms("registers", "transformer_xl")


def probe(
    models: Annotated[
        list[Path], Argument(exists=True, file_okay=False, help="Folders of models, as `train-probe` writes them.")
    ],
    task: Annotated[
        str | None, Option(help="registers, needle, copy or counter.", show_default="that of their training")
    ] = None,
    length: Annotated[
        list[int] | None,
        Option(
            min=0,
            help="Measure again with a memory, or without one a context, of this many tokens; may be given more than once.",
        ),
    ] = None,
    segment_length: Annotated[
        int, Option(min=1, help="Tokens per call, of a model that `train-probe` did not train.")
    ] = OPTIONS.segment_length,
    max_distance: Annotated[
        int, Option(min=1, max=1 << 24, help="Largest distance of an answer.")
    ] = OPTIONS.max_distance,
    lanes: Annotated[int, Option(min=1, max=1 << 16, help="Streams per batch.")] = OPTIONS.lanes,
    tokens: Annotated[int, Option(min=1, help="Tokens of each stream whose questions count.")] = OPTIONS.tokens,
    seed: Annotated[int, Option(min=0, help="Seed of the streams.")] = OPTIONS.seed,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
    picture: Annotated[Path | None, Option(help="Write a picture: a .png, a .svg, or without an ending both.")] = None,
) -> None:
    """Measure how often models answer correctly, by the distance of the answer in tokens.

    The streams are generated. `half` is the largest distance up to which accuracy stays above the middle of chance and the
    best. Models of transformers work too; they read each segment again after a context.
    """
    options = ProbeOptions(
        segment_length=segment_length, max_distance=max_distance, lanes=lanes, tokens=tokens, seed=seed
    )
    names = model_names(models)
    check_picture(picture)
    typer.echo("starting ...", err=True)  # the imports take seconds
    from transformers_xl.runs.probe_runs import measure_probe

    result = measure_probe(names, task, length or [], options, progress=not as_json)
    rows = result["models"]
    if picture is not None:
        from transformers_xl.evaluation.probe_plots import draw_probe

        panels = {name: [row] for name, row in rows.items()}
        write_picture(draw_probe(panels, result["task"], result["chance"]), picture)
    bins = next(iter(rows.values()))["bins"]
    header = ["", "half", *(f"{first}-{last}" for first, last in bins)]
    table = [[name, _half(row["half"], max_distance), *map(_share, row["accuracy"])] for name, row in rows.items()]
    tell(result, f"{result['task']}, chance {result['chance']:.3f}", header, table, as_json, as_markdown)


def _half(tokens: int | None, longest: int) -> str:
    if tokens is None:
        return "chance"
    return f"at least {longest}" if tokens == longest else str(tokens)


def _share(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{accuracy:.2f}"


def train_probe(
    task: Annotated[str, Argument(help="registers, needle, copy or counter.")],
    model_type: Annotated[str, Argument(help="Any causal language model: transformer_xl, sha_rnn, gpt2, mamba ...")],
    output: Annotated[Path, Option("--output", "-o", file_okay=False, help="Folder to write.")],
    steps: Annotated[int, Option(min=1, help="Training steps.")] = TERMS.steps,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, help="Seed of the weights and of the streams.")] = TERMS.seed,
    mem_len: Annotated[
        int, Option(min=0, help="Tokens of memory, or read again before each segment; 0: each segment alone.")
    ] = TERMS.mem_len,
    segment_length: Annotated[int, Option(min=1, max=1 << 20, help="Tokens per call.")] = TERMS.segment_length,
    max_distance: Annotated[
        int, Option(min=1, max=1 << 24, help="Largest distance of an answer.")
    ] = TERMS.max_distance,
    learning_rate: Annotated[float, Option(help="Peak learning rate of AdamW.")] = TERMS.learning_rate,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace what is in the folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a small model for the memory probe, with the same fixed settings for every type.

    Two layers of width 64, 16 streams, AdamW; docs/probe.md says all. The loss is that of the answers.
    """
    terms = ProbeTerms(task, model_type, steps, seed, mem_len, segment_length, max_distance, learning_rate)
    check_output(output, overwrite)
    typer.echo("starting ...", err=True)  # the imports take seconds
    import json

    from transformers_xl.runs.probe_training import train_probe as train

    record = train(terms, output)
    if as_json:
        typer.echo(json.dumps(record, indent=1))
        return
    typer.echo(
        f"{record['parameters']:,} parameters, {record['processor_seconds']:.0f} s of processor time; last loss: "
        f"{record['losses'][-1]:.3f} nats per answer"
    )
    typer.echo(f"wrote {output}")


__all__ = ["probe", "train_probe"]
