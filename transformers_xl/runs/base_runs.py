"""The measurement of `transformers-xl evaluate --compare-base`: a base alone, with its own cache, and with memory."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from transformers_xl.data.files import read_predicted
from transformers_xl.data.text_beginning import beginning_of
from transformers_xl.evaluation.base_ways import WayScore, score_base_ways
from transformers_xl.files.processor import processor
from transformers_xl.modeling.modeling_segment_memory import SegmentMemoryForCausalLM
from transformers_xl.runs.loading import import_models, load_model


def measure_base_ways(
    folder: Path, text: list[Path], segment_length: int | None, mem_len: int | None, progress: bool
) -> dict[str, Any]:
    """How a base predicts a text in each way, as plain values.

    Raises:
        ValueError: the folder holds no base, with memory around it or without, or its base cannot have a window.
    """
    model, tokenizer = load_model(folder, any_kind=True)
    check_is_base(folder, model)
    ids, counts = read_predicted(text, tokenizer, progress)
    beginning = beginning_of(tokenizer)
    scores = score_base_ways(model, ids, beginning, segment_length, mem_len, counts.bytes, progress)
    base: Any = model.backbone if isinstance(model, SegmentMemoryForCausalLM) else model
    return {
        "text": [path.name for path in text],
        "base": type(base).__name__,
        "dtype": str(base.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else str(processor()),
        "threads": torch.get_num_threads(),
        "begins_with": tokenizer.convert_ids_to_tokens(beginning),
        "tokens": next(iter(scores.values())).tokens,
        "ways": {name: way_values(score) for name, score in scores.items()},
    }


def check_is_base(folder: Path, model: PreTrainedModel) -> None:
    """Raise a `ValueError` where a model of this package has no base in it."""
    if model.config.model_type in import_models() and not isinstance(model, SegmentMemoryForCausalLM):
        raise ValueError(
            f"`model`={str(folder)!r} holds a {model.config.model_type!r}, whose memory is its own: --compare-base is for "
            "a language model of transformers, with memory around it or without."
        )


def way_values(score: WayScore) -> dict[str, Any]:
    return {
        "perplexity": score.perplexity,
        "late_perplexity": score.late_perplexity,
        "bits_per_byte": score.bits_per_byte,
        "milliseconds_per_token": score.milliseconds,
        "kept_bytes": score.kept_bytes,
    }


def base_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A heading and rows: the measures of every way."""
    rows = [
        [
            name,
            f"{way['perplexity']:,.2f}",
            "-" if way["late_perplexity"] is None else f"{way['late_perplexity']:,.2f}",
            f"{way['bits_per_byte']:.4f}",
            f"{way['milliseconds_per_token']:.2f}",
            f"{way['kept_bytes'] / 1e6:,.1f}",
        ]
        for name, way in result["ways"].items()
    ]
    return ["", "perplexity", "late", "bits per byte", "ms a token", "MB kept"], rows


__all__ = ["base_table", "measure_base_ways"]
