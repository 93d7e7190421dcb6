"""The measurements of `transformers-xl context-curve`, `recl` and `distant-context`: how saved models make use of a text
that lies further back."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from transformers_xl.data.files import read_ids, read_predicted
from transformers_xl.data.text_beginning import beginning_of, without_beginning
from transformers_xl.data.word_starts import word_starts
from transformers_xl.evaluation import context_curve as curve
from transformers_xl.evaluation.context_losses import longest_window, spread_positions, token_losses_with_context
from transformers_xl.evaluation.distant_context import KINDS, check_distances, distant_context
from transformers_xl.evaluation.recl import recl
from transformers_xl.evaluation.score_ways import score_values
from transformers_xl.runs.distant_options import DistantOptions
from transformers_xl.runs.loading import load_model
from transformers_xl.runs.recl_options import RECLOptions


def measure_context_curve(
    folder: Path,
    text: list[Path],
    lengths: list[int] | None,
    segment_length: int | None,
    batch_size: int,
    progress: bool,
) -> dict[str, Any]:
    """Bits per byte of a text by the length of memory or context; `left_out` are lengths that the model cannot read.

    Raises:
        ValueError: the folder holds no language model, or it can read none of the lengths.
    """
    model, tokenizer = load_model(folder, any_kind=True)
    segment_length = curve.curve_segment(model) if segment_length is None else segment_length
    limit = longest_window(model)
    asked = sorted(set(lengths or ()))
    readable = [length for length in asked if limit is None or length + segment_length <= limit] or asked
    ids, counts = read_predicted(text, tokenizer, progress)
    num_bytes, beginning = counts.bytes, beginning_of(tokenizer)
    scores = curve.context_curve(
        model, ids, readable or None, segment_length, batch_size, num_bytes, progress, beginning
    )
    return {
        "model_type": model.config.model_type,
        "remembers": curve.remembers(model),
        "trained_length": curve.trained_length(model, segment_length),
        "segment_length": segment_length,
        "left_out": asked[len(readable) :],
        "bytes": num_bytes,
        "bits_per_byte": {str(length): score.bits_per_byte for length, score in scores.items()},
        "bits_per_byte_by_position": {
            str(length): score_values(score)["bits_per_byte_by_position"] for length, score in scores.items()
        },
    }


def measure_recl(folders: dict[str, Path], text: list[Path], options: RECLOptions, progress: bool) -> dict[str, Any]:
    """The relative effective context length of a group of models.

    Raises:
        ValueError: a folder holds no language model, they read the text as different tokens, or it is too short.
    """
    contexts = options.contexts
    losses, windows = {}, {}
    first_ids = None
    for name, folder in folders.items():
        model, tokenizer = load_model(folder, any_kind=True)
        ids, beginning = _text(text, tokenizer, progress)
        first_ids = ids if first_ids is None else first_ids
        if not np.array_equal(ids, first_ids):
            raise ValueError(
                f"`models`: {name!r} splits the text into other tokens than the first model: all must use the same "
                "tokenizer."
            )
        positions, blocks = spread_positions(len(ids), contexts[-1], options.delta, options.blocks, options.positions)
        windows[name] = longest_window(model)
        token_losses = token_losses_with_context(
            model, ids, contexts, positions, options.batch_size, progress, beginning
        )
        losses[name] = dict(zip(contexts, token_losses, strict=True))
    results = recl(
        losses, options.r, options.c0, options.delta, options.threshold, blocks, options.resamples, options.confidence,
        options.seed,
    )  # fmt: skip
    return {
        "text": [path.name for path in text],
        "arguments": asdict(options),
        "tokens": len(positions),
        "models": {
            name: {
                "recl": row.length,
                "is_bound": row.is_bound,
                "interval": row.interval,
                "longest_window": windows[name],
                "gains": row.gains,
                "nats": {context: float(values.mean()) for context, values in losses[name].items()},
            }
            for name, row in results.items()
        },
    }


def measure_distant_context(
    folders: dict[str, Path], text: list[Path], distances: list[int], options: DistantOptions, progress: bool
) -> dict[str, Any]:
    """What each model loses where the text further away than each distance is perturbed, in nats per token.

    Raises:
        ValueError: a folder holds no language model, or it cannot read so long a context, or the text is too short.
    """
    check_distances(distances, options.context)
    rows = {}
    for name, folder in folders.items():
        model, tokenizer = load_model(folder, any_kind=True)
        ids, beginning = _text(text, tokenizer, progress)
        room = max(1, (len(ids) - options.context) // options.positions)
        positions, _ = spread_positions(len(ids), options.context, room, 1, options.positions)
        found = distant_context(
            model, ids, distances, options.context, positions, options.batch_size, options.seed, progress, beginning,
            word_starts(ids, tokenizer),
        )  # fmt: skip
        added = {kind: {distance: found.added(kind, distance) for distance in distances} for kind in KINDS}
        rows[name] = {
            "nats": float(found.whole.mean()),
            "added": {kind: {str(each): mean for each, (mean, _) in row.items()} for kind, row in added.items()},
            "margin": {kind: {str(each): margin for each, (_, margin) in row.items()} for kind, row in added.items()},
        }
    return {
        "text": [path.name for path in text],
        "options": asdict(options),
        "distances": distances,
        "models": rows,
    }


def _text(text: list[Path], tokenizer: Any, progress: bool) -> tuple[np.ndarray, list[int]]:
    """The ids of a text, and those that every window of it begins with."""
    ids, _ = read_ids(text, tokenizer, progress=progress)
    beginning = beginning_of(tokenizer)
    return without_beginning(ids, beginning), beginning


__all__ = ["measure_context_curve", "measure_distant_context", "measure_recl"]
