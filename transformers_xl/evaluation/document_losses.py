"""What each token of each document costs: scores of single documents, and of single tokens of them."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from transformers_xl.data.document_stream import DocumentStream
from transformers_xl.data.text_beginning import without_beginning
from transformers_xl.evaluation.bits_per_byte import stream_losses


def document_losses(
    model: PreTrainedModel,
    documents: Iterable[np.ndarray | torch.Tensor | list[int]],
    segment_length: int | None = None,
    lanes: int = 1,
    memory: bool = True,
    progress: bool = False,
    beginning: Sequence[int] = (),
) -> list[np.ndarray]:
    """Predict whole documents, each of which begins without a memory, in segments.

    Args:
        model: a causal language model of this package, left in the mode (training or not) it comes in.
        documents: token ids of each document `(tokens,)`; none is empty.
        segment_length: tokens per segment; `config.segment_length` when not given.
        lanes: documents that are read side by side.
        memory: `True`: a segment is read with the memory of those before. `False`: each segment alone.
        progress: show a bar on stderr.
        beginning: ids that a text begins with, as [`~transformers_xl.data.text_beginning.beginning_of`] gives them.

    Returns:
        Of each document nats `(tokens,)` in float64: those of its tokens in their order, without a `beginning` that it
        begins with already. Nothing precedes the first token where there is no `beginning`, and its nats are nan.

    Raises:
        ValueError: a document is empty or not one row of integers, there are fewer documents than lanes, or a number is
            below 1; or a result is NaN or infinite.
    """
    segment_length = model.config.segment_length if segment_length is None else segment_length
    remembers = memory and bool(getattr(model.config, "mem_len", True))
    rows = [without_beginning(np.asarray(document), beginning) for document in documents]
    empty = [index for index, row in enumerate(rows) if len(row) == 0]
    if empty:
        raise ValueError(f"`documents[{empty[0]}]` is empty: leave it out.")
    stream = DocumentStream(rows, segment_length, lanes, keep_tail=True, beginning=beginning, memory=remembers)
    parts = [
        [losses[lane][targets[lane] != -100].double().cpu() for lane in range(lanes)]
        for losses, targets in stream_losses(model, stream, memory, progress)
    ]
    first = 0 if len(stream.beginning) else 1  # that of a document which something precedes
    found: list[np.ndarray] = [np.empty(0)] * len(rows)
    for lane, lane_parts in zip(stream.lane_documents, zip(*parts, strict=True), strict=True):
        nats = torch.cat(lane_parts).numpy()
        if not np.isfinite(nats).all():
            raise ValueError("The model predicts the documents with NaN or infinite nats: its weights are unusable.")
        ends = np.cumsum([len(rows[index]) - first for index in lane])
        for index, own in zip(lane, np.split(nats, ends[:-1]), strict=True):
            found[index] = np.concatenate([np.full(first, np.nan), own])
    return found


__all__ = ["document_losses"]
