"""`transformers-xl evaluate`: bits per byte of a text, with and without memory, and by a moving window."""

import shlex
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from transformers_xl.cli.measuring import tell
from transformers_xl.experiments.loading import load_model


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
    from transformers_xl.evaluation.bits_per_byte import score_moving_window
    from transformers_xl.evaluation.score_ways import COLUMNS, score_rows, score_values, score_ways
    from transformers_xl.experiments.recording import check_claims, evaluation_of, record_evaluations, text_of_files
    from transformers_xl.streams.files import read_predicted

    claims = check_claims(dataset, dataset_revision, task_id)
    progress = not as_json
    ids, size = read_predicted(text, tokenizer, progress)
    scores = score_ways(model, ids, segment_length, batch_size, size, progress)
    if record:
        data = text_of_files(text, len(ids), claims)
        command = _command(text, segment_length, batch_size, claims)
        evaluations = [
            evaluation_of(model, score, data, batch_size, name == "with memory", command, segment_length)
            for name, score in scores.items()
        ]
        record_evaluations(model, model_dir, evaluations)
    if moving_window:
        scores["moving window"] = score_moving_window(model, ids, segment_length, num_bytes=size, progress=progress)
    result = {name.replace(" ", "_"): score_values(score) for name, score in scores.items()}
    tell(result, as_json, model_dir.name, COLUMNS, score_rows(scores))


def _command(text: list[Path], segment_length: int | None, lanes: int, claims: tuple) -> str:
    options = dict(zip(("dataset", "dataset-revision", "task-id"), claims, strict=True))
    options = {"batch-size": lanes, "segment-length": segment_length} | options
    words = [word for path in text for word in ("--text", path.name)]
    words += [str(word) for name, value in options.items() if value is not None for word in (f"--{name}", value)]
    return shlex.join(["transformers-xl", "evaluate", "MODEL", *words, "--record"])


__all__ = ["evaluate"]
