"""`transformers-xl evaluate`: bits per byte of a text, with and without memory, and by a moving window."""

import shlex
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from transformers_xl.cli.loading import load_model
from transformers_xl.cli.measuring import tell


def evaluate(
    model_dir: Annotated[Path, Argument(exists=True, file_okay=False, help="Folder of a model.")],
    text: Annotated[list[Path], Option(exists=True, dir_okay=False, help="Text file; may be given more than once.")],
    segment_length: Annotated[int | None, Option(help="Tokens per segment.", show_default="as in training")] = None,
    batch_size: Annotated[
        int, Option(help="Lanes of text that are read side by side; each begins without memory.")
    ] = 1,
    moving_window: Annotated[
        bool,
        Option(
            "--moving-window",
            help="Also predict each token from the segment's length of tokens before it, read anew: as many times slower.",
        ),
    ] = False,
    record: Annotated[
        bool,
        Option(
            "--record",
            help="Keep the figures in the folder, for its card: training_metrics.json and README.md.",
        ),
    ] = False,
    dataset: Annotated[str | None, Option(help="With --record: the data set on the Hub that the text is.")] = None,
    dataset_revision: Annotated[str | None, Option(help="With --record: its commit.")] = None,
    task_id: Annotated[str | None, Option(help="With --record: the task in its eval.yaml, of a benchmark.")] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print JSON, with bits per byte by position in the segment.")
    ] = False,
) -> None:
    """Measure how well a model predicts a text, in bits per byte, with its memory and without.

    The text is read in segments. A model without memory is measured once.
    """
    if dataset is not None and not record:
        raise ValueError(f"`dataset`={dataset!r} is for the card: add --record.")
    model, tokenizer = load_model(model_dir)
    from transformers_xl.cli.recording import check_claims, evaluation_of, text_of_files
    from transformers_xl.evaluation.bits_per_byte import score_moving_window, score_text
    from transformers_xl.streams.files import read_ids

    claims = check_claims(dataset, dataset_revision, task_id)
    ids, size = read_ids(text, tokenizer, progress=not as_json)
    size -= len(tokenizer.decode_bytes(ids[:1].tolist())) if hasattr(tokenizer, "decode_bytes") else 0
    ways = (("with memory", True), ("without memory", False)) if model.config.mem_len else (("in segments", False),)
    scores = {
        name: score_text(model, ids, segment_length, batch_size, memory, num_bytes=size, progress=not as_json)
        for name, memory in ways
    }
    if moving_window:
        scores["moving window"] = score_moving_window(model, ids, segment_length, num_bytes=size, progress=not as_json)
    if record:
        data = text_of_files(text, len(ids), claims)
        command = _command(text, segment_length, batch_size, claims)
        evaluations = [
            evaluation_of(model, scores[name], data, batch_size, memory, command, segment_length)
            for name, memory in ways
        ]
        _record(model, model_dir, evaluations)
    result = {name.replace(" ", "_"): _summary(score) for name, score in scores.items()}
    rows = [
        [name, f"{score.bits_per_byte:.4f}", f"{score.nats:,.1f}", f"{score.tokens:,}", f"{score.bytes:,}"]
        for name, score in scores.items()
    ]
    tell(result, as_json, model_dir.name, ["", "bits per byte", "nats", "tokens", "bytes"], rows)


def _command(text: list[Path], segment_length: int | None, lanes: int, claims: tuple) -> str:
    options = dict(zip(("dataset", "dataset-revision", "task-id"), claims, strict=True))
    options = {"batch-size": lanes, "segment-length": segment_length} | options
    words = [word for path in text for word in ("--text", path.name)]
    words += [str(word) for name, value in options.items() if value is not None for word in (f"--{name}", value)]
    return shlex.join(["transformers-xl", "evaluate", "MODEL", *words, "--record"])


def _record(model, folder: Path, evaluations: list) -> None:
    """Beside what is known of the same weights; the card follows, unless somebody has written one."""
    from transformers_xl.hub.cards import write_card, written_by_us
    from transformers_xl.hub.measurements import known_measurements, measurements_of, write_measurements

    known = known_measurements(folder)
    write_measurements(folder, (known or measurements_of(model, folder)).with_evaluations(evaluations))
    readme = folder / "README.md"
    if not readme.exists() or written_by_us(readme):
        write_card(folder)


def _summary(score) -> dict:
    by_position = [None if value != value else value for value in score.bits_per_byte_by_position.tolist()]
    return {
        "bits_per_byte": score.bits_per_byte,
        "nats": score.nats,
        "tokens": score.tokens,
        "bytes": score.bytes,
        "bits_per_byte_by_position": by_position,
    }


__all__ = ["evaluate"]
