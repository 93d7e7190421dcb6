"""Bits per byte against the length of the memory at evaluation, and against the position in a segment.

Dai et al., 2019, https://arxiv.org/abs/1901.02860, section 4.1: a memory may be longer at evaluation than in training.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional as F
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.bits_per_byte import ScoreSums, TextScore, score_text
from transformers_xl.evaluation.context_losses import longest_window
from transformers_xl.evaluation.token_losses import losses_of_targets
from transformers_xl.modeling.evaluating import evaluating
from transformers_xl.modeling.modeling_memory import MemoryPreTrainedModel

SHARES = (0, 1 / 4, 1 / 2, 1, 2, 4)  # of the trained length


def remembers(model: PreTrainedModel) -> bool:
    """Whether a model carries a memory from segment to segment: one of this package, trained with one."""
    return isinstance(model.config, (MemoryConfig, SegmentMemoryConfig)) and (model.config.mem_len or 0) > 0


@contextmanager
def memory_length(model: PreTrainedModel, mem_len: int) -> Iterator[None]:
    """Let `model` remember `mem_len` positions, as long as the body runs.

    Raises:
        ValueError: the model has no memory, `mem_len` is below 1, or the model cannot run with it.
    """
    if not remembers(model):
        raise ValueError(f"`model` is a {model.config.model_type!r} without memory: there is no length to change.")
    if mem_len < 1:
        raise ValueError(f"`mem_len`={mem_len} must be at least 1; without memory, read each segment alone.")
    remembering, trained = cast(MemoryPreTrainedModel, model), model.config.mem_len
    remembering.resize_memory(mem_len)
    try:
        yield
    finally:
        remembering.resize_memory(trained)


def context_curve(
    model: PreTrainedModel,
    ids: np.ndarray | torch.Tensor,
    lengths: list[int] | None = None,
    segment_length: int | None = None,
    batch_size: int = 1,
    num_bytes: int | None = None,
    progress: bool = False,
    beginning: Sequence[int] = (),
) -> dict[int, TextScore]:
    """How well a model predicts a text with memories, or contexts, of growing length.

    A model with memory reads segments with a memory of each length, 0 being none. Any other, also one of transformers,
    reads each segment again after as many tokens of the text before it, and only the segment is scored.

    Args:
        model: a causal language model, left in the mode it comes in.
        ids: token ids of the text `(tokens,)`.
        lengths: tokens of memory or context before a segment; 0, 1/4, 1/2, 1, 2 and 4 x the trained length when not given,
            as far as the model can run with them.
        segment_length: tokens per segment; see [`curve_segment`] when not given.
        batch_size: lanes or windows that are read side by side; each lane begins without a memory.
        num_bytes: bytes that the predicted tokens stand for; one per token when not given.
        progress: show a bar on stderr.
        beginning: ids that a text begins with, as [`~transformers_xl.data.text_beginning.beginning_of`] gives them:
            every window does, and every lane, in whose segment they take a place.

    Returns:
        The score of each length: `score.bits_per_byte` and `score.bits_per_byte_by_position`.

    Raises:
        ValueError: `ids` is too short or not one row of integers, a number is out of range, a window is longer than the
            model can read, or the model cannot run with a memory of one of the lengths.
    """
    segment_length = curve_segment(model) if segment_length is None else segment_length
    lengths = curve_lengths(model, segment_length) if lengths is None else lengths
    limit = longest_window(model)
    for length in lengths:
        if length < 0:
            raise ValueError(f"`lengths` holds {length}: a memory has at least 0 tokens.")
        if limit is not None and length + segment_length > limit:
            raise ValueError(
                f"`lengths` holds {length}: with `segment_length`={segment_length} a window is longer than the {limit} "
                f"tokens that this model can read. Leave out lengths above {max(0, limit - segment_length)}."
            )
        if length > 0 and remembers(model):
            model.config.with_mem_len(length)
    options: dict[str, Any] = {"num_bytes": num_bytes, "progress": progress, "beginning": beginning}
    scores = {}
    for length in lengths:
        if not remembers(model):
            scores[length] = score_windows(model, ids, length, segment_length, batch_size, **options)
        elif length == 0:
            scores[length] = score_text(model, ids, segment_length, batch_size, memory=False, **options)
        else:
            with memory_length(model, length):
                scores[length] = score_text(model, ids, segment_length, batch_size, **options)
    return scores


def curve_segment(model: PreTrainedModel) -> int:
    """Tokens per segment of a curve: as in training. Where positions are bounded, half of them, at most 128: the other
    half is left for context."""
    limit = longest_window(model)
    if limit is not None:
        return max(1, min(128, limit // 2))
    return getattr(model.config, "segment_length", 128)


def curve_lengths(model: PreTrainedModel, segment_length: int) -> list[int]:
    """0, 1/4, 1/2, 1, 2 and 4 x [`trained_length`], as far as the model can run with them."""
    trained, limit = trained_length(model, segment_length), longest_window(model)
    lengths = sorted({round(share * trained) for share in SHARES})
    if remembers(model):
        return [length for length in lengths if length == 0 or _runs_with(model, length)]
    return [length for length in lengths if limit is None or length + segment_length <= limit]


def _runs_with(model: PreTrainedModel, mem_len: int) -> bool:
    """A window of its own (Longformer, Tensorized Transformer) may need a longer memory than `mem_len`."""
    try:
        model.config.with_mem_len(mem_len)
    except ValueError:
        return False
    return True


def trained_length(model: PreTrainedModel, segment_length: int) -> int:
    """Tokens of memory in training; without one, of what can be read before a segment, or of a segment where nothing bounds
    it."""
    limit = longest_window(model)
    if remembers(model):
        return model.config.mem_len
    return segment_length if limit is None else max(0, limit - segment_length)


def score_windows(
    model: PreTrainedModel,
    ids: np.ndarray | torch.Tensor,
    context: int,
    segment_length: int,
    batch_size: int = 1,
    num_bytes: int | None = None,
    progress: bool = False,
    beginning: Sequence[int] = (),
) -> TextScore:
    """Predict a text in segments, each read again after the `context` tokens before it: how a model without memory is
    given a context. Arguments are those of [`context_curve`].

    Raises:
        ValueError: `ids` is too short or not one row of integers, or a number is out of range.
    """
    for name, value, least in (("context", context, 0), ("batch_size", batch_size, 1), ("num_bytes", num_bytes, 1)):
        if value is not None and value < least:
            raise ValueError(f"`{name}`={value} must be at least {least}.")
    stream = TextStream(ids, segment_length, keep_tail=True, beginning=beginning, memory=False)
    begin = torch.from_numpy(stream.beginning)
    text = torch.as_tensor(stream.ids.astype(np.int64))
    sums = ScoreSums(segment_length, model.device)
    with evaluating(model), torch.inference_mode():
        batches = _windows_of_one_length(len(stream), context, segment_length - len(begin), batch_size)
        for batch in tqdm(batches, desc=f"evaluating, context {context}", disable=None if progress else True):
            windows = []
            for segment in batch:
                start = int(stream.offsets[segment])
                before = text[max(0, start - context) : start]
                windows.append(torch.cat([begin, before, stream[segment]["input_ids"][len(begin) :]]))
            targets = torch.stack([stream[segment]["shift_labels"] for segment in batch]).to(model.device)
            ids = torch.stack(windows).to(model.device)
            of_windows = F.pad(targets, (ids.shape[1] - segment_length, 0), value=-100)
            losses, _ = losses_of_targets(model, ids, of_windows, use_cache=False)
            sums.add(losses[:, -segment_length:], targets)
    return sums.score(num_bytes)


def _windows_of_one_length(segments: int, context: int, step: int, batch_size: int) -> list[list[int]]:
    """Segments to read side by side: the first have less text before them, each on its own."""
    first_full = min(segments, -(-context // step))
    batches = [[segment] for segment in range(first_full)]
    return batches + [
        list(range(first, min(first + batch_size, segments))) for first in range(first_full, segments, batch_size)
    ]


__all__ = [
    "context_curve",
    "curve_lengths",
    "curve_segment",
    "memory_length",
    "remembers",
    "score_windows",
    "trained_length",
]
