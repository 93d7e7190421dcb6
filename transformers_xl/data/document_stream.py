"""Documents as a stream: many texts, of any lengths, side by side, each from an empty memory."""

import heapq
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch.utils.data import Dataset

from transformers_xl.data.identity import digest_of
from transformers_xl.data.segments import (
    NOTHING,
    beginning_identity,
    beginning_row,
    check_sizes,
    segment_item,
    token_row,
)
from transformers_xl.data.text_beginning import without_beginning
from transformers_xl.data.text_files import TextCounts


class DocumentStream(Dataset):
    """Documents of token ids, distributed over `lanes` lanes, one for each batch row.

    A document begins at the start of a segment, with `reset`, and continues in its lane; its last segment is padded on the
    right. Nothing is predicted across documents: the last token of each has no target, and its first is the target of
    none, or of `beginning`. Let the tokenizer append an end of text if the model should learn to stop.

    Each document goes to the shortest lane, the longest documents first; within a lane they keep their order. Lanes are
    about equally long, and depend only on the documents, `lanes` and `segment_length`. The order of items is that of
    [`~transformers_xl.data.text_stream.TextStream`], and so are the columns, always with `attention_mask`.

    Args:
        documents: token ids of each document `(tokens,)`; empty ones are left out.
        segment_length: tokens per segment.
        lanes: batch rows of all processes: batch size per process x processes.
        keep_tail: what happens when the lanes end at different times. `False`, for training: the stream ends with the
            shortest lane, so that every row always has targets, and `left_out` tokens after that point are not read; a
            warning says when they are more than a tenth. `True`, for evaluation: every token is read once, and a lane
            that has ended gives segments of padding, without `reset`.
        pad_token_id: what the padding is filled with; it is masked everywhere.
        counts: length of the text of all predicted tokens; `MemoryTrainer.evaluate` computes bits per byte from it.
        beginning: ids that a text begins with, as [`~transformers_xl.data.text_beginning.beginning_of`] gives them:
            every document is read after them. They take a place in its segment, and are no targets; a document that begins
            with them already gets no second.
        memory: `False`, for a model that remembers nothing: every segment is read alone, and begins with `beginning`.

    Raises:
        ValueError: a document is not one row of integers, there are fewer documents than lanes, or a number is below 1.
    """

    def __init__(
        self,
        documents: Iterable[np.ndarray | torch.Tensor | list[int]],
        segment_length: int,
        lanes: int = 1,
        keep_tail: bool = False,
        pad_token_id: int = 0,
        counts: TextCounts | None = None,
        beginning: Sequence[int] | np.ndarray = (),
        memory: bool = True,
    ):
        check_sizes(segment_length, lanes)
        self.beginning = beginning_row(beginning, segment_length)
        self.memory = memory
        rows = (token_row(f"documents[{index}]", document) for index, document in enumerate(documents))
        self.documents = [row for row in (without_beginning(row, self.beginning) for row in rows) if len(row)]
        if len(self.documents) < lanes:
            raise ValueError(
                f"`lanes`={lanes} is more than the {len(self.documents)} documents that are not empty: use fewer lanes, or "
                "join the documents to one text, as a `TextStream`."
            )
        self.segment_length = segment_length
        self.lanes = lanes
        self.keep_tail = keep_tail
        self.pad_token_id = pad_token_id
        self.counts = counts
        # tokens of a document in its first segment, and in each that follows
        self.first = segment_length - len(self.beginning)
        self.step = segment_length if memory else self.first
        sizes = [self._segments(len(document)) for document in self.documents]
        self.lane_documents = _deal(sizes, lanes)
        # in each lane, the segment after the last one of each document
        self.lane_ends = [np.cumsum([sizes[index] for index in lane]) for lane in self.lane_documents]
        lane_lengths = [int(ends[-1]) for ends in self.lane_ends]
        self.segments = max(lane_lengths) if keep_tail else min(lane_lengths)
        total = sum(map(len, self.documents))
        if self.left_out > total / 10:
            warnings.warn(
                f"{self.left_out:,} of {total:,} tokens are left out, because the lanes end at different times: use fewer "
                f"`lanes` than {lanes}, or cut the longest documents.",
                stacklevel=2,
            )

    def _segments(self, tokens: int) -> int:
        """How many segments a document of so many tokens fills."""
        return 1 - (min(0, self.first - tokens) // self.step)

    def _begin(self, segment: int) -> int:
        """The first token of the segment of a document, counted from 0."""
        return self.first + (segment - 1) * self.step if segment else 0

    def without_memory(self) -> "DocumentStream":
        """The same documents for a model that remembers nothing: each segment begins with `beginning`."""
        if not self.memory or not len(self.beginning):
            return self
        options = (self.keep_tail, self.pad_token_id, self.counts, self.beginning)
        return DocumentStream(self.documents, self.segment_length, self.lanes, *options, memory=False)

    @cached_property
    def left_out(self) -> int:
        """Tokens after the end of the shortest lane, which a stream without `keep_tail` does not read."""
        unread = 0
        for documents, ends in zip(self.lane_documents, self.lane_ends, strict=True):
            for index, end in zip(documents, ends.tolist(), strict=True):
                size = len(self.documents[index])
                begin = end - self._segments(size)
                unread += max(0, size - self._begin(max(0, self.segments - begin)))
        return unread

    def __len__(self) -> int:
        return self.segments * self.lanes

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"item {index} of a stream of {len(self)}")
        segment, lane = divmod(index, self.lanes)
        ends = self.lane_ends[lane]
        place = int(np.searchsorted(ends, segment, side="right"))
        if place == len(ends):  # the lane has run out
            nothing = np.empty(0, dtype=np.int64)
            return segment_item(nothing, nothing, self.segment_length, False, self.pad_token_id)
        begin = int(ends[place - 1]) if place else 0
        document = self.documents[self.lane_documents[lane][place]]
        start, stop = self._begin(segment - begin), self._begin(segment - begin + 1)
        return segment_item(
            document[start:stop],
            document[start + 1 : stop + 1],
            self.segment_length,
            start == 0,
            self.pad_token_id,
            beginning=self.beginning if start == 0 or not self.memory else NOTHING,
            begins_text=start == 0,
        )

    @cached_property
    def identity(self) -> dict[str, int | str]:
        """What must be the same for a run to resume: `text` (a SHA-256 of all ids, read once), `lanes`, `segment_length`,
        `documents` (their number, and the beginning of a SHA-256 of their lengths) and `keep_tail`."""
        lengths = np.array([len(document) for document in self.documents])
        return beginning_identity(self.beginning, self.memory) | {
            "text": digest_of(self.documents),
            "lanes": self.lanes,
            "segment_length": self.segment_length,
            "documents": f"{len(lengths)}, of lengths {digest_of([lengths])[:16]}",
            "keep_tail": self.keep_tail,
        }


def _deal(sizes: list[int], lanes: int) -> list[list[int]]:
    """Indices of the documents of each lane: the longest first, to the shortest lane so far; then in their order."""
    heap = [(0, lane) for lane in range(lanes)]
    dealt: list[list[int]] = [[] for _ in range(lanes)]
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        length, lane = heap[0]
        dealt[lane].append(index)
        heapq.heapreplace(heap, (length + sizes[index], lane))
    return [sorted(lane) for lane in dealt]


__all__ = ["DocumentStream"]
