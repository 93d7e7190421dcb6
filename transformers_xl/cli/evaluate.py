"""`transformers-xl evaluate`: bits per byte of a text, with memory, with the memory taken away, and by a moving window."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from transformers_xl.cli.common import TEXT, AsMarkdown, refuse_others
from transformers_xl.cli.measuring import (
    check_picture,
    tell,
    tell_scores,
    tell_translations,
    tell_unknown,
    write_picture,
)
from transformers_xl.runs.loading import is_translator, load_model

OF_COMPARISON = {"model_dir", "text", "segment_length", "mem_len", "compare_base", "picture", "as_json", "as_markdown"}


def evaluate(
    ctx: typer.Context,
    model_dir: Annotated[Path, Argument(exists=True, file_okay=False, help="Folder of a model.")],
    text: Annotated[list[Path] | None, TEXT] = None,
    source: Annotated[
        Path | None,
        Option(exists=True, dir_okay=False, help="Of an encoder-decoder, instead of --text: sentences, one a line."),
    ] = None,
    target: Annotated[
        Path | None, Option(exists=True, dir_okay=False, help="Their translations: prints BLEU and chrF.")
    ] = None,
    segment_length: Annotated[int | None, Option(help="Tokens per segment.", show_default="as in training")] = None,
    batch_size: Annotated[
        int, Option(help="Batch rows: lanes of the text that are read side by side, each from an empty memory.")
    ] = 1,
    moving_window: Annotated[
        bool,
        Option(
            "--moving-window",
            help="Also score with a window of one segment that moves token by token: segment_length times as slow.",
        ),
    ] = False,
    record: Annotated[
        bool,
        Option(
            "--record",
            help="Write the figures into the folder, for its card: training_metrics.json and README.md.",
        ),
    ] = False,
    dataset: Annotated[
        str | None, Option(help="With --record: the data set on the Hub that the text is from.")
    ] = None,
    dataset_revision: Annotated[str | None, Option(help="With --record: the commit of the data set.")] = None,
    task_id: Annotated[str | None, Option(help="With --record: the task in the eval.yaml of a benchmark.")] = None,
    mem_len: Annotated[
        int | None, Option(min=0, help="Length of the memory, in tokens.", show_default="as in training")
    ] = None,
    clamp_len: Annotated[
        int | None, Option(help="Treat longer distances as this one; -1: off.", show_default="as in training")
    ] = None,
    same_length: Annotated[
        bool | None,
        Option(
            "--same-length/--no-same-length",
            help="Every token sees exactly mem_len positions.",
            show_default="as in training",
        ),
    ] = None,
    overlap: Annotated[
        int,
        Option(
            min=0, help="Tokens that a segment repeats from the one before, as context; for models without memory."
        ),
    ] = 0,
    compare_base: Annotated[
        bool,
        Option(
            "--compare-base",
            help="Of a language model of transformers, with memory around it or without: compare the base alone, in "
            "segments, in windows that are read again and with its own cache, with a window without and with sinks.",
        ),
    ] = False,
    picture: Annotated[
        Path | None,
        Option(help="With --compare-base: write a picture, .png, .svg, or both if the name has no ending."),
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print JSON, with bits per byte by position in the segment.")
    ] = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Measure how well a model predicts a text, with its memory and with it taken away.

    In nats, perplexity per token and per word between white space, and bits per byte and per character.

    The text is read in segments. A model without memory is measured once. How much a score drops when the memory is taken
    away is not what memory is worth: a model that was trained without one has learned to do without.
    """
    if source is not None or target is not None:
        return _evaluate_pairs(ctx, model_dir, source, target)
    if compare_base and text:
        return _compare_base(ctx, model_dir, text, segment_length, mem_len, picture)
    text = _checked(model_dir, text, picture, dataset, record)
    fields = {"mem_len": mem_len, "clamp_len": clamp_len, "same_length": same_length}
    changed = {name: value for name, value in fields.items() if value is not None}
    model, tokenizer = load_model(model_dir)
    from transformers_xl.data.files import read_predicted
    from transformers_xl.data.text_beginning import beginning_of
    from transformers_xl.evaluation.bits_per_byte import score_moving_window
    from transformers_xl.evaluation.score_ways import counted, score_ways
    from transformers_xl.runs.loading import change_config
    from transformers_xl.runs.recording import check_claims, evaluation_of, record_evaluations, text_of_files

    claims = check_claims(dataset, dataset_revision, task_id)
    change_config(model.config, changed)
    ids, counts = read_predicted(text, tokenizer, not as_json)
    options: dict[str, Any] = {"progress": not as_json, "beginning": beginning_of(tokenizer)}
    scores = score_ways(model, ids, segment_length, batch_size, counts, overlap=overlap, **options)
    if moving_window:
        score = score_moving_window(model, ids, segment_length, num_bytes=counts.bytes, **options)
        scores["moving window"] = counted(score, counts)
    if record:
        data = text_of_files(text, len(ids), claims)
        given = {"batch_size": batch_size, "segment_length": segment_length, "overlap": overlap or None}
        command = _command(text, given | changed, claims, moving_window)
        # a window that moves by one token shares all others with the one before
        shared = (segment_length or model.config.segment_length) - 1
        read = dict.fromkeys(scores, (batch_size, overlap)) | {"moving window": (1, shared)}
        evaluations = [
            evaluation_of(
                model, score, data, read[name][0], name == "with memory", command, segment_length, read[name][1]
            )
            for name, score in scores.items()
        ]
        record_evaluations(model, model_dir, evaluations)
    tell_scores(scores, model_dir.name, as_json, as_markdown)
    tell_unknown([ids], tokenizer)


def _evaluate_pairs(ctx: typer.Context, model_dir: Path, source: Path | None, target: Path | None) -> None:
    """Print what a model's translations of sentences are worth."""
    if source is None or target is None:
        raise ValueError(f"`source`={source} and `target`={target} belong together: give both.")
    refuse_others(ctx, {"model_dir", "source", "target", "as_json", "as_markdown"}, "--source")
    typer.echo("starting ...", err=True)  # the imports take seconds
    from transformers_xl.data.pairs import read_pairs
    from transformers_xl.runs.translation_run import load_translator, score_pairs

    pairs = read_pairs(str(source), str(target))
    scores = score_pairs(*load_translator(model_dir), pairs)
    tell_translations(scores, model_dir.name, ctx.params["as_json"], ctx.params["as_markdown"])


def _checked(
    model_dir: Path, text: list[Path] | None, picture: Path | None, dataset: str | None, record: bool
) -> list[Path]:
    """The texts to score, if there are any and the options go together."""
    if is_translator(model_dir):
        raise ValueError(
            f"{str(model_dir)!r} holds an encoder-decoder: name the pairs that it is scored on with --source and --target."
        )
    if not text:
        raise ValueError(
            "`text`=None: name the text with --text, or the pairs of a translation with --source and --target."
        )
    if picture is not None:
        raise ValueError(f"`picture`={str(picture)!r} is of a comparison: add --compare-base, or leave it out.")
    if dataset is not None and not record:
        raise ValueError(f"`dataset`={dataset!r} is for the card: add --record.")
    return text


def _compare_base(
    ctx: typer.Context,
    model_dir: Path,
    text: list[Path],
    segment_length: int | None,
    mem_len: int | None,
    picture: Path | None,
) -> None:
    """Print what each way of reading is worth."""
    refuse_others(ctx, OF_COMPARISON, "--compare-base")
    form = ctx.params["as_json"], ctx.params["as_markdown"]
    check_picture(picture)
    typer.echo("starting ...", err=True)  # the imports take seconds
    from transformers_xl.runs.base_runs import base_table, measure_base_ways

    result = measure_base_ways(model_dir, text, segment_length, mem_len, progress=not form[0])
    if picture is not None:
        from transformers_xl.evaluation.base_plots import draw_base_ways

        write_picture(draw_base_ways(result), picture)
    title = f"{result['base']}, {result['tokens']:,} tokens, {result['device']}, threads: {result['threads']}"
    tell(result, title, *base_table(result), *form)


def _command(text: list[Path], options: dict[str, Any], claims: tuple, moving_window: bool) -> str:
    from transformers_xl.data.text_files import name_of

    options |= dict(zip(("dataset", "dataset_revision", "task_id"), claims, strict=True))
    if (same_length := options.pop("same_length", None)) is not None:
        options["same_length" if same_length else "no_same_length"] = ""
    options |= {"moving_window": ""} if moving_window else {}
    words = [word for path in text for word in ("--text", name_of(str(path)))]
    for name, value in options.items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", *([str(value)] if value != "" else [])]
    return shlex.join(["transformers-xl", "evaluate", "MODEL", *words, "--record"])


__all__ = ["evaluate"]
