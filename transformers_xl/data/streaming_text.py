"""A stream of a text that is too long to hold, or has no end: read as it is needed, with a position to come back to."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from transformers_xl.data.identity import check_identity
from transformers_xl.data.segments import (
    NOTHING,
    beginning_identity,
    beginning_row,
    check_sizes,
    segment_item,
    token_row,
)
from transformers_xl.data.text_beginning import without_beginning

KEPT_STATES = 16


class StreamingText(IterableDataset):
    """Documents that come one after the other, read side by side in `lanes` lanes.

    A lane that needs text takes the next document of `source`. Lanes take turns in a fixed order at every step, so the
    same source gives the same lanes for any number of processes. Items have the columns of
    [`~transformers_xl.data.document_stream.DocumentStream`]; a step is `lanes` items, one batch over all processes.

    Example:

    ```python
    dataset = datasets.load_dataset("text", data_files="big.txt", split="train", streaming=True)
    stream = StreamingText(tokenize_dataset(dataset, tokenizer), segment_length=128, lanes=16)
    ```

    Args:
        source: token ids of each document, as rows `(tokens,)` or as dictionaries with a `column` of them: a list, a
            `datasets.IterableDataset`, whose `state_dict` is used, or anything that can be read repeatedly with the
            same result, which is then read again up to the position.
        segment_length: tokens per segment.
        lanes: batch rows of all processes: batch size per process x processes.
        documents: `True`: a document begins at the start of a segment, with `reset`, and its last segment is padded.
            `False`: a lane is one endless text, its documents put end to end; only its first segment has `reset`.
        keep_tail: what happens when `source` ends. `False`, for training: the stream ends with the first lane that cannot
            fill its row. `True`, for evaluation: every token is read once, and a lane that has ended gives padding.
        pad_token_id: what the padding is filled with; it is masked everywhere.
        column: the column of token ids where `source` gives dictionaries.
        beginning: ids that a text begins with, as [`~transformers_xl.data.text_beginning.beginning_of`] gives them,
            read at every reset. They take a place in the segment, and are no targets; a text that begins with them already
            gets no second.
        memory: `False`, for a model that remembers nothing: every segment is read alone, and begins with `beginning`.

    Raises:
        ValueError: `source` is an iterator, which can be read only once; a document is not one row of integers; `source`
            has too little text for a first step, without `keep_tail`; a number is below 1; or a `DataLoader` reads it with
            workers, each of which would read all of it.
    """

    def __init__(
        self,
        source: Iterable[Any],
        segment_length: int,
        lanes: int = 1,
        documents: bool = True,
        keep_tail: bool = False,
        pad_token_id: int = 0,
        column: str = "input_ids",
        beginning: Sequence[int] | np.ndarray = (),
        memory: bool = True,
    ):
        check_sizes(segment_length, lanes)
        self.beginning = beginning_row(beginning, segment_length)
        self.memory = memory
        if iter(source) is source:
            raise ValueError(
                f"`source` is a {type(source).__name__} that can be read only once: give a list, a "
                "`datasets.IterableDataset`, or an object whose `__iter__` begins again."
            )
        self.source = source
        self.segment_length = segment_length
        self.lanes = lanes
        self.documents = documents
        self.keep_tail = keep_tail
        self.pad_token_id = pad_token_id
        self.column = column
        self.epoch = 0
        self._resume: dict[str, Any] | None = None
        self._states: deque[dict[str, Any]] = deque(maxlen=KEPT_STATES)

    @property
    def identity(self) -> dict[str, int | str]:
        """What must be the same for a run to resume. The `text` of a stream is not known before it has been read."""
        return beginning_identity(self.beginning, self.memory) | {
            "text": "streamed",
            "lanes": self.lanes,
            "segment_length": self.segment_length,
            "documents": "streamed, each from its start" if self.documents else "streamed, end to end",
            "keep_tail": self.keep_tail,
        }

    def set_epoch(self, epoch: int) -> None:
        """Hand the number of the epoch to `source`, which may shuffle by it. Accelerate calls this."""
        self.epoch = epoch
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if get_worker_info() is not None:
            raise ValueError(
                "`num_workers` of the DataLoader must be 0: each worker would read all of the stream, at a position of its "
                "own. Tokenise in the source, where `datasets` has workers."
            )
        state, self._resume = self._resume, None
        step, taken, position, tokens, begins = self._beginning()
        if state is not None:
            tokens = [np.array(row, dtype=np.int64) for row in state["tokens"]]
            begins, step, taken, position = list(state["begins"]), state["step"], state["taken"], state["source"]
            self.set_epoch(state["epoch"])
        if hasattr(self.source, "load_state_dict"):
            # None too: a position that was loaded once would otherwise begin every later epoch of that number
            self.source.load_state_dict(position)
        rows = iter(self.source)
        if position is None:
            next(islice(rows, taken, taken), None)  # a source that knows no position is read up to it
        self._states.clear()
        self._remember(step, taken, position, tokens, begins)

        # in an endless text the target of a segment's last token must be there too
        needed = 1 if self.documents else self.segment_length + 1
        while True:
            for lane in range(self.lanes):
                while len(tokens[lane]) < needed and (row := next(rows, None)) is not None:
                    taken += 1
                    document = token_row("source", row[self.column] if isinstance(row, Mapping) else row)
                    if begins[lane] and len(tokens[lane]) == 0:
                        document = without_beginning(document, self.beginning)
                    tokens[lane] = np.concatenate([tokens[lane], document.astype(np.int64)])
            lengths = [len(row) for row in tokens]
            if max(lengths) == 0 or (not self.keep_tail and min(lengths) < needed):
                if step == 0 and not self.keep_tail:
                    self._refuse(taken)
                return
            items = self._next_segments(tokens, begins)
            step += 1
            position = self.source.state_dict() if hasattr(self.source, "state_dict") else None
            self._remember(step, taken, position, tokens, begins)
            yield from items

    def _refuse(self, taken: int) -> None:
        """`source` ended before the first step."""
        needs = "a document" if self.documents else f"{self.segment_length + 1} tokens"
        raise ValueError(
            f"`source` has {taken} documents, too little text for `lanes`={self.lanes}, each of which needs {needs}: give "
            "more text, or fewer lanes."
        )

    def _beginning(self) -> tuple[int, int, Any, list[np.ndarray], list[bool]]:
        """What `_remember` notes before anything is read."""
        return 0, 0, None, [NOTHING] * self.lanes, [True] * self.lanes

    def _next_segments(self, tokens: list[np.ndarray], begins: list[bool]) -> list[dict[str, torch.Tensor]]:
        """The next segment of every lane, which leaves its `tokens`; `begins`: whether what is left begins a text."""
        items = []
        for lane, row in enumerate(tokens):
            reset = begins[lane] and len(row) > 0
            beginning = self.beginning if reset or (len(row) > 0 and not self.memory) else NOTHING
            stop = self.segment_length - len(beginning)
            here, targets = row[:stop], row[1 : stop + 1]
            cut = (self.segment_length, reset, self.pad_token_id)
            items.append(segment_item(here, targets, *cut, beginning=beginning, begins_text=reset))
            tokens[lane] = row[stop:]
            begins[lane] = self.documents and len(tokens[lane]) == 0
        return items

    def _remember(self, step: int, taken: int, position: Any, tokens: list[np.ndarray], begins: list[bool]) -> None:
        # rows of tokens are replaced, never changed
        state = {"tokens": list(tokens), "begins": list(begins), "epoch": self.epoch}
        self._states.append({"step": step, "taken": taken, "source": position, **state})

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The position after `step` steps of this epoch, as plain numbers and lists that JSON can hold.

        Args:
            step: how many steps the loop has used. Loaders read ahead: Accelerate's are one batch further than the loop.
                `None`: all steps that were read.

        Raises:
            ValueError: the position is not among the last 16.
        """
        if self._resume is not None:
            return self._resume
        if not self._states:
            self._remember(*self._beginning())
        known = {state["step"]: state for state in self._states}
        step = max(known, default=0) if step is None else step
        if step not in known:
            raise ValueError(
                f"`step`={step} is not among the last positions of the stream, {sorted(known)}: ask while it is read, and "
                "for a step near the last."
            )
        state = known[step]
        return {**state, "tokens": [row.tolist() for row in state["tokens"]], "identity": self.identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration start at a position that `state_dict` gave; the one after it starts again.

        Raises:
            ValueError: the stream has other lanes, lengths or documents; the message names the field.
        """
        check_identity(state["identity"], self.identity)
        self._resume = state


__all__ = ["StreamingText"]
