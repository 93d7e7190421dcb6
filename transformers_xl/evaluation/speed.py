"""Time per predicted token: a window that is read again for every token, compared with segments with memory.

Dai et al., 2019, https://arxiv.org/abs/1901.02860, section 4.5: with as long a context, a model without memory reads the
whole window again to predict the next token.
"""

import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from transformers import PreTrainedModel

from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.context_curve import memory_length, remembers
from transformers_xl.modeling.evaluating import evaluating

ATTENTION_LENGTHS = (800, 1800, 2800, 3800)  # those of the paper's table


def evaluation_speed(
    model: PreTrainedModel,
    ids: np.ndarray | torch.Tensor,
    attention_lengths: tuple[int, ...] | list[int] = ATTENTION_LENGTHS,
    segment_length: int | None = None,
    repeats: int = 3,
) -> list[dict[str, float]]:
    """Time a model's evaluation of a text both ways, for contexts of growing length.

    Args:
        model: a causal language model of this package, with memory; its training mode does not change.
        ids: token ids of a text `(tokens,)`, of at least the longest attention and a segment.
        attention_lengths: tokens of the window, and of the memory.
        segment_length: tokens per segment; `config.segment_length` when not given.
        repeats: timed turns, after one that is not timed; the median counts.

    Returns:
        For each length `attention` (tokens), `moving_window` and `segments` (seconds per predicted token) and `ratio`.

    Raises:
        ValueError: the model has no memory, the text is too short, a number is below 1, or the model cannot run
            with a memory of one of the lengths.
    """
    if not remembers(model):
        raise ValueError(f"`model` is a {model.config.model_type!r} without memory: there is nothing to compare.")
    segment_length = model.config.segment_length if segment_length is None else segment_length
    numbers = [("segment_length", segment_length), ("repeats", repeats)]
    for name, value in numbers + [("attention_lengths", length) for length in attention_lengths]:
        if value < 1:
            raise ValueError(f"`{name}`: {value} must be at least 1.")
    for length in attention_lengths:
        model.config.with_mem_len(length)
    text = torch.as_tensor(TextStream(ids, 1, keep_tail=True).ids.astype(np.int64))[None].to(model.device)
    needed = max(attention_lengths, default=0) + segment_length
    if text.shape[1] < needed:
        raise ValueError(
            f"`ids` has {text.shape[1]} tokens and needs {needed}: use a longer text, or shorter lengths."
        )
    rows = []
    with evaluating(model):
        for length in attention_lengths:
            with memory_length(model, length):
                runs = {
                    "moving_window": window_reader(model, text[:, :length]),
                    "segments": segment_reader(model, text[:, :length], text[:, length : length + segment_length]),
                }
                row = {name: statistics.median(times) for name, times in take_turns(runs, repeats).items()}
            row["segments"] /= segment_length
            rows.append({"attention": length, **row, "ratio": row["moving_window"] / row["segments"]})
    return rows


def window_reader(model: PreTrainedModel, window: torch.Tensor) -> Callable[[], object]:
    """Predicts the token after `window` `(1, length)`, read again."""
    return lambda: model(window, use_cache=False, logits_to_keep=1)


@torch.inference_mode()
def segment_reader(model: PreTrainedModel, before: torch.Tensor, segment: torch.Tensor) -> Callable[[], object]:
    """Predicts what follows each token of `segment` `(1, length)`, with a memory that `before` `(1, mem_len)` has filled
    and that every call continues."""
    cache = model(before, use_cache=True, logits_to_keep=1).past_key_values
    return lambda: model(segment, past_key_values=cache)


@torch.inference_mode()
def take_turns(runs: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of `repeats` calls each, one after the other in turn, so that what disturbs the machine disturbs all; a first
    call of each is not counted."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            _finish()
            start = time.perf_counter()
            run()
            _finish()
            times[name].append(time.perf_counter() - start)
    return {name: taken[1:] for name, taken in times.items()}


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # a call returns before the GPU is done


__all__ = ["ATTENTION_LENGTHS", "evaluation_speed", "segment_reader", "take_turns", "window_reader"]
