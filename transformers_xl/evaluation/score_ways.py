"""The ways to read a text that a model is scored by, and how such scores are shown."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from transformers_xl.data.document_stream import DocumentStream
from transformers_xl.data.text_files import TextCounts
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.bits_per_byte import TextScore, score_stream


def score_ways(
    model: PreTrainedModel,
    ids: np.ndarray,
    segment_length: int | None = None,
    lanes: int = 1,
    counts: TextCounts | None = None,
    progress: bool = False,
    overlap: int = 0,
    beginning: Sequence[int] = (),
) -> dict[str, TextScore]:
    """The score of a text with memory, and with the memory taken away; a model that has none reads it once, in segments.
    Arguments as in [`~transformers_xl.evaluation.bits_per_byte.score_text`], with the `counts` of all predicted tokens,
    and the tokens of a segment that are context from the one before, not predicted again.

    Raises:
        ValueError: `overlap` for a model that remembers, or it leaves nothing of a segment to predict.
    """
    if overlap and model.config.mem_len:
        raise ValueError(
            f"`overlap`={overlap} would be read twice by a model with memory: leave it out, or take the memory away "
            "with `mem_len=0` and `same_length=False` (--mem-len 0 --no-same-length)."
        )
    segment_length = model.config.segment_length if segment_length is None else segment_length
    # a segment is filled up, and no text fills a longer one than this
    segment_length = min(segment_length, max(1, len(ids) + len(beginning) + overlap))
    remembers = bool(model.config.mem_len)
    stream = TextStream(
        ids, segment_length, lanes, keep_tail=True, overlap=overlap, beginning=beginning, memory=remembers
    )
    return score_stream_ways(model, stream, counts, progress)


def score_stream_ways(
    model: PreTrainedModel,
    stream: TextStream | DocumentStream,
    counts: TextCounts | None = None,
    progress: bool = False,
) -> dict[str, TextScore]:
    """As [`score_ways`], of a stream that was made with `keep_tail`."""
    ways = {"with memory": True, "memory taken away": False} if model.config.mem_len else {"in segments": False}
    num_bytes = counts.bytes if counts else None
    scores = {name: score_stream(model, stream, memory, num_bytes, progress) for name, memory in ways.items()}
    return {name: counted(score, counts) for name, score in scores.items()}


def counted(score: TextScore, counts: TextCounts | None) -> TextScore:
    """The score with the characters and words of its text."""
    return score if counts is None else replace(score, characters=counts.characters, words=counts.words)


def score_table(scores: dict[str, TextScore]) -> list[list[str]]:
    """A heading and rows: the measures of every way to read the text; a dash where something was not counted."""
    measures = {
        "bits per byte": [f"{score.bits_per_byte:.4f}" for score in scores.values()],
        "bits per character": [_shown(score.bits_per_character, ".4f") for score in scores.values()],
        "perplexity, per token": [_shown(score.perplexity, ",.3f") for score in scores.values()],
        "perplexity, per whitespace word": [_shown(score.word_perplexity, ",.2f") for score in scores.values()],
        "nats per token": [f"{score.nats_per_token:.4f}" for score in scores.values()],
        "nats": [f"{score.nats:,.1f}" for score in scores.values()],
        "tokens": [f"{score.tokens:,}" for score in scores.values()],
        "bytes": [f"{score.bytes:,}" for score in scores.values()],
    }
    return [["", *scores], *([name, *values] for name, values in measures.items())]


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}" if value < 1e9 else f"{value:.3g}"


def score_values(score: TextScore) -> dict[str, Any]:
    """A score for JSON, which knows no nan."""
    return {
        "bits_per_byte": score.bits_per_byte,
        "bits_per_character": score.bits_per_character,
        "perplexity": _finite(score.perplexity),
        "word_perplexity": _finite(score.word_perplexity),
        "nats_per_token": score.nats_per_token,
        "nats": score.nats,
        "tokens": score.tokens,
        "bytes": score.bytes,
        "characters": score.characters,
        "words": score.words,
        "bits_per_byte_by_position": [
            None if np.isnan(value) else value for value in score.bits_per_byte_by_position.tolist()
        ],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


__all__ = ["counted", "score_stream_ways", "score_table", "score_values", "score_ways"]
