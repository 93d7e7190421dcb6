"""What memory tokens remember: Bulatov et al., 2022, https://arxiv.org/abs/2207.06881, section 3.

memory tokens, written at the end of the last whole segment | tokens of the segment that is open
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import nn
from transformers import Cache
from transformers import initialization as init
from transformers.utils import logging

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.modeling.memory.counter_memory import CounterMemory
from transformers_xl.modeling.memory.layer_memory import Memory, Shape
from transformers_xl.modeling.memory.recurrent_memory import RecurrentMemory
from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.window import SegmentPacking, keep_last

logger = logging.get_logger(__name__)


class WrittenMemory(RecurrentMemory):
    """What the write positions held at the end of a row's last whole segment, `(batch, tokens, hidden_size)`.

    `begun` says which rows have written; the others read what the model learned that they start with.
    """

    def __init__(self, num_tokens: int, width: int):
        super().__init__((num_tokens, width), has_learned_start=True)
        self.new_begun: torch.Tensor | None = None

    def read_rows(self) -> Tensors:
        """What rows have written before the call, and which have."""
        assert self.state is not None, "start() or load() comes first"
        assert self.begun is not None, "start() or load() comes first"
        return self.state, self.begun

    def note(self, state: torch.Tensor, begun: torch.Tensor) -> None:
        """Note the state after the call, and the rows `(batch,)` bool that have written."""
        self.new, self.new_begun = state, begun

    def value(self, packing: SegmentPacking | None) -> Tensors:
        if self.new is None:
            return self.read_rows()
        state, begun = super().value(packing)
        return state, begun if self.new_begun is None else self.new_begun

    def close(self, packing: SegmentPacking) -> None:
        super().close(packing)
        self.new_begun = None

    def clear(self) -> None:
        super().clear()
        self.new_begun = None


class MemoryTokens(nn.Module):
    """What rows read that have not written: learned vectors `start` `(num_tokens, width)`."""

    def __init__(self, num_tokens: int, width: int):
        super().__init__()
        self.start = nn.Parameter(torch.empty(num_tokens, width))

    def init_weights(self, config: MemoryConfig | SegmentMemoryConfig) -> None:
        init.normal_(self.start, mean=0.0, std=config.memory_initializer_range)

    def forward(self, written: torch.Tensor, begun: torch.Tensor) -> torch.Tensor:
        """What rows read, `(B, num_tokens, width)`: what they have `written`, or `start` where they have not `begun` `(B,)`
        to write."""
        return torch.where(begun[:, None, None], written, self.start.to(written.dtype))


class OpenRows(NamedTuple):
    """Rows of a batch whose open segments are equally long, and the base model's cache of `[memory tokens; segment]`."""

    rows: list[int]
    cache: Cache


class OpenSegmentMemory(Memory):
    """The embeddings of the tokens that a row read since its last whole segment, `(batch, columns, hidden_size)`, newest
    last; `lengths` `(batch,)` says how many of the newest columns are the row's.

    A cache also keeps what the base model projected of them, so that a token costs a token. It follows the rows through
    beams; a copy reads the open segment once more.
    """

    def __init__(self, width: int):
        self.width = width
        self.embeds: torch.Tensor | None = None
        self.lengths: torch.Tensor | None = None
        self.new: Tensors | None = None
        self.projected: list[OpenRows] = []

    @property
    def shapes(self) -> dict[str, Shape]:
        return {"": (None, self.width), "_length": ()}

    @property
    def num_rows(self) -> int:
        return -1 if self.embeds is None else len(self.embeds)

    @property
    def changed_rows(self) -> torch.Tensor | None:
        return None if self.lengths is None else self.lengths > 0

    def start(self, batch: int, like: torch.Tensor) -> None:
        lengths = torch.zeros(batch, dtype=torch.long, device=like.device)
        self.load((like.new_zeros(batch, 0, self.width), lengths), like)

    def load(self, tensors: Tensors, like: torch.Tensor) -> None:
        self.embeds, self.lengths = tensors[0].to(like.dtype), tensors[1]
        self.new, self.projected = None, []

    def read(self) -> Tensors:
        """The embeddings and the lengths before the call."""
        assert self.embeds is not None, "start() or load() comes first"
        assert self.lengths is not None, "start() or load() comes first"
        return self.embeds, self.lengths

    def note(self, embeds: torch.Tensor, lengths: torch.Tensor, longest: int) -> None:
        """Note what is open after the call, of which no row has more than `longest` tokens."""
        self.new = keep_last(embeds, longest).detach(), lengths

    def value(self, packing: SegmentPacking | None) -> Tensors:
        return self.read() if self.new is None else self.new

    def close(self, packing: SegmentPacking) -> None:
        (self.embeds, self.lengths), self.new = self.value(packing), None

    def reset_rows(self, reset: torch.Tensor) -> None:
        if self.lengths is None:
            return
        self.lengths = self.lengths.masked_fill(reset.to(self.lengths.device), 0)
        new_rows = {row for row, is_reset in enumerate(reset.tolist()) if is_reset}
        self.projected = [group for group in self.projected if new_rows.isdisjoint(group.rows)]

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        if self.embeds is None or self.lengths is None:
            return
        sources = function(torch.arange(len(self.embeds), device=self.embeds.device)).tolist()
        self.embeds, self.lengths = function(self.embeds), function(self.lengths)
        self.projected = [group for old in self.projected if (group := moved(old, sources)) is not None]

    def clear(self) -> None:
        self.embeds = self.lengths = self.new = None
        self.projected = []

    def copy(self) -> Self:
        other = super().copy()
        other.projected = []  # transformers' caches change in place
        return other


def warn_of_writing(num_segments: int, segment_length: int, bptt_segments: int) -> None:
    """Warn if a training call gives no gradient to the writing of memory tokens, with this number of segments."""
    if not torch.is_grad_enabled() or min(num_segments, bptt_segments) > 1:
        return
    logger.warning_once(
        f"A call of {num_segments} segment(s) of `segment_length`={segment_length} with `bptt_segments`={bptt_segments} "
        "trains what reads memory tokens, and nothing that writes them. Pass at least two segments per call (the stream's "
        "`segment_length`), and set `bptt_segments` to at least 2."
    )


def moved(group: OpenRows, sources: list[int]) -> OpenRows | None:
    """The rows of a group in a batch whose row `i` was row `sources[i]` before; None where none is left."""
    places = {row: place for place, row in enumerate(group.rows)}
    rows = [row for row, source in enumerate(sources) if source in places]
    if not rows:
        return None
    kept = [places[sources[row]] for row in rows]
    return OpenRows(rows, select_rows(group.cache, kept, len(group.rows)))


def select_rows(cache: Cache, places: list[int], batch: int) -> Cache:
    """A cache of transformers that has `batch` rows, and keeps these, in this order; one may come several times."""
    if places != list(range(batch)):
        cache.reorder_cache(torch.LongTensor(places))  # the one method by which all its layers select
    return cache


class RecurrentTokens(NamedTuple):
    """What a model of our own with memory tokens remembers beside its windows: what each row has written, and how many
    tokens it has read of its open segment (`place`)."""

    memory_tokens: WrittenMemory
    place: CounterMemory


class TokensMemory(NamedTuple):
    """What memory tokens around a base remember."""

    memory_tokens: WrittenMemory
    open_segment: OpenSegmentMemory


__all__ = [
    "MemoryTokens",
    "OpenRows",
    "OpenSegmentMemory",
    "RecurrentTokens",
    "TokensMemory",
    "WrittenMemory",
    "select_rows",
    "warn_of_writing",
]
