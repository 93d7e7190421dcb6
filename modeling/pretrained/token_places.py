"""Where the tokens of a call stand in the segments of their rows, which are counted from the first token of a row's text.

Shapes: B batch, T tokens of a call, S segment length, K segments that a call touches.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch.nn import functional as F
from transformers import Cache

from transformers_xl.modeling.memory.memory_value import LayerMemory
from transformers_xl.modeling.memory.segment import Segment


class TokenPlaces(NamedTuple):
    """Where the tokens of `[open segment; call]` stand when every segment of a row begins at a multiple of S.

    Args:
        widths: the length of each segment, that of the longest row: K numbers.
        sources: `(B, K S)`, the token that stands at each place, any where none does; None: all rows are alike.
        targets: `(B, T)`, the place of each token of the call; any where it is padding.
        lengths: `(B, K)`, tokens of each segment.
        is_new: `(B, K)` bool, segments that begin a document inside the call.
    """

    widths: list[int]
    sources: torch.Tensor | None
    targets: torch.Tensor
    lengths: torch.Tensor
    is_new: torch.Tensor


def place_alike(segment: Segment, segment_length: int) -> TokenPlaces:
    """The places of a call whose rows are alike."""
    batch, total = len(segment.lengths), segment.num_keys
    widths = [min(segment_length, total - start) for start in range(0, total, segment_length)]
    lengths = torch.tensor([widths], device=segment.lengths.device).expand(batch, -1)
    return TokenPlaces(
        widths, None, segment.columns.expand(batch, -1), lengths, torch.zeros_like(lengths, dtype=torch.bool)
    )


def place_tokens(segment: Segment, segment_length: int) -> TokenPlaces:
    """The places of a call after the open segments of its rows."""
    num_open, ids = segment.num_before, segment.document_ids
    columns = torch.arange(segment.num_keys, device=segment.lengths.device)
    number = columns - (num_open - segment.lengths)[:, None]  # of the token in its row
    valid = (number >= 0) & (columns < segment.end[:, None])
    document = torch.zeros_like(number) if ids is None else F.pad(ids, (num_open, 0))
    begins = document > F.pad(document, (1, 0))[:, :-1]
    place = number - number.where(begins, 0).cummax(1).values  # of the token in its document
    index = ((valid & (place % segment_length == 0)).long().cumsum(1) - 1).clamp(min=0)
    target = index * segment_length + place % segment_length

    num_segments = int(index[:, -1].max()) + 1
    num_places = num_segments * segment_length
    spare = target.where(valid, num_places)  # padding goes after all places
    sources = number.new_zeros(len(number), num_places + 1).scatter(1, spare, columns.expand_as(spare))[:, :num_places]
    counts = number.new_zeros(len(number), num_segments)
    lengths = counts.scatter_add(1, index, valid.long())
    is_new = counts.scatter_add(1, index, (begins & valid).long()) > 0
    return TokenPlaces(lengths.amax(0).tolist(), sources, target[:, num_open:], lengths, is_new)


class OpenRows(NamedTuple):
    """Rows of a batch whose open segments are equally long, and the base model's cache of `[memory tokens; segment]`."""

    rows: list[int]
    cache: Cache


class OpenSegments(NamedTuple):
    """What a cache keeps beside the embeddings of open segments: what the base has projected of them, so that a token costs
    a token. It follows the rows through beams; a cache of the same memory reads the open segment once more.

    Args:
        embeds: `(B, C, E)`, the columns that it belongs to.
        tokens_read: of each row, then.
        groups: what is projected.
    """

    embeds: torch.Tensor
    tokens_read: list[int]
    groups: list[OpenRows]

    def of(self, embeds: torch.Tensor, tokens_read: list[int]) -> list[OpenRows]:
        """What is there of a memory: nothing of rows that have begun again."""
        if embeds is not self.embeds:
            return []
        return [group for group in self.groups if all(tokens_read[row] == self.tokens_read[row] for row in group.rows)]

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor], memory: LayerMemory) -> "OpenSegments":
        """That of the same rows in another order, whose `memory` is this."""
        sources = function(torch.arange(len(self.tokens_read), device=self.embeds.device)).tolist()
        groups = [group for old in self.groups if (group := moved(old, sources)) is not None]
        return OpenSegments(memory.columns[0], [self.tokens_read[source] for source in sources], groups)

    def join(self, other: "OpenSegments", memory: LayerMemory) -> "OpenSegments":
        """That of these rows and those of `other` after them, whose `memory` is this."""
        count = len(self.tokens_read)
        added = [OpenRows([count + row for row in group.rows], group.cache) for group in other.groups]
        return OpenSegments(memory.columns[0], self.tokens_read + other.tokens_read, self.groups + added)


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


class RowsToRead(NamedTuple):
    """Rows whose open segments are equally long and which read equally many tokens.

    `cache` is the base model's of `[memory tokens; open segment]`, None where nothing is projected yet.
    """

    rows: list[int]
    num_open: int
    num_new: int
    cache: Cache | None


def rows_to_read(lengths: list[int], added: list[int], projected: list[OpenRows]) -> Iterator[RowsToRead]:
    """Group the rows that read something: `lengths` of their open segments, tokens `added` to each, what is `projected`."""
    group_of = {row: number for number, group in enumerate(projected) for row in group.rows}
    together: dict[tuple[int, int, int], list[int]] = {}
    for row, (num_open, num_new) in enumerate(zip(lengths, added, strict=True)):
        if num_new > 0:
            together.setdefault((group_of.get(row, -1), num_open, num_new), []).append(row)
    taken = {-1}
    for (number, num_open, num_new), rows in together.items():
        cache = None
        if number not in taken:  # one cache serves one group: rows that go another way are read again
            taken.add(number)
            old = projected[number]
            cache = select_rows(old.cache, [old.rows.index(row) for row in rows], len(old.rows))
        yield RowsToRead(rows, num_open, num_new, cache)


__all__ = ["OpenRows", "OpenSegments", "RowsToRead", "TokenPlaces", "place_alike", "place_tokens", "rows_to_read"]
