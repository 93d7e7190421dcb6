"""The ways to read a text that a model is scored by, and how such scores are shown."""

from typing import Any

import numpy as np
from transformers import PreTrainedModel

from transformers_xl.evaluation.bits_per_byte import TextScore, score_text

COLUMNS = ["", "bits per byte", "nats", "tokens", "bytes"]


def score_ways(
    model: PreTrainedModel,
    ids: np.ndarray,
    segment_length: int | None = None,
    lanes: int = 1,
    num_bytes: int | None = None,
    progress: bool = False,
) -> dict[str, TextScore]:
    """The score of a text with memory and without; a model that has none reads it once, in segments. Arguments as in
    [`~transformers_xl.evaluation.bits_per_byte.score_text`]."""
    ways = {"with memory": True, "without memory": False} if model.config.mem_len else {"in segments": False}
    return {
        name: score_text(model, ids, segment_length, lanes, memory, num_bytes, progress)
        for name, memory in ways.items()
    }


def score_rows(scores: dict[str, TextScore]) -> list[list[str]]:
    """The rows of a table with `COLUMNS`."""
    return [
        [name, f"{score.bits_per_byte:.4f}", f"{score.nats:,.1f}", f"{score.tokens:,}", f"{score.bytes:,}"]
        for name, score in scores.items()
    ]


def score_values(score: TextScore) -> dict[str, Any]:
    """A score for JSON, which knows no nan."""
    return {
        "bits_per_byte": score.bits_per_byte,
        "nats": score.nats,
        "tokens": score.tokens,
        "bytes": score.bytes,
        "bits_per_byte_by_position": [
            None if np.isnan(value) else value for value in score.bits_per_byte_by_position.tolist()
        ],
    }


__all__ = ["COLUMNS", "score_rows", "score_values", "score_ways"]
