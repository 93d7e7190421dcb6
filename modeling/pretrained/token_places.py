"""Where the tokens of a call stand in the segments of their rows, which are counted from the first token of a row's text.

Shapes: B batch, T tokens of a call, S segment length, K segments that a call touches.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from transformers import Cache

from transformers_xl.modeling.memory.token_memory import OpenRows, select_rows
from transformers_xl.modeling.ops.window import SegmentPacking


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

    def open_lengths(self, segment_length: int) -> torch.Tensor:
        """How many tokens each row's last segment has, `(B,)`; 0 where it is whole."""
        used = (self.lengths > 0).sum(1, keepdim=True)
        return self.lengths.gather(1, (used - 1).clamp(min=0))[:, 0] % segment_length


def place_alike(packing: SegmentPacking, num_open: int, segment_length: int, device: torch.device) -> TokenPlaces:
    """The places of a call without padding behind `num_open` tokens of every row."""
    total = num_open + packing.length
    widths = [min(segment_length, total - start) for start in range(0, total, segment_length)]
    lengths = torch.tensor([widths], device=device).expand(packing.batch, -1)
    targets = torch.arange(num_open, total, device=device).expand(packing.batch, -1)
    return TokenPlaces(widths, None, targets, lengths, torch.zeros_like(lengths, dtype=torch.bool))


def place_tokens(
    packing: SegmentPacking, open_lengths: torch.Tensor, num_open: int, segment_length: int
) -> TokenPlaces:
    """The places of a call behind `num_open` columns, the newest `open_lengths` `(B,)` of which are a row's."""
    columns = torch.arange(num_open, device=open_lengths.device)
    valid = columns >= num_open - open_lengths[:, None]
    size = (packing.batch, packing.length)
    here = valid.new_ones(size) if packing.segment_mask is None else packing.segment_mask
    valid = torch.cat([valid, here], dim=1)
    document = valid.new_zeros(valid.shape, dtype=torch.long)
    if packing.document_ids is not None:
        document[:, num_open:] = packing.document_ids
    number = valid.long().cumsum(1) - 1  # of the token in its row
    before = nn.functional.pad(document.masked_fill(~valid, 0).cummax(1).values, (1, 0))[:, :-1]
    begins = valid & (document > before)
    place = number - number.where(begins, 0).cummax(1).values  # of the token in its document
    segment = ((valid & (place % segment_length == 0)).long().cumsum(1) - 1).clamp(min=0)
    target = segment * segment_length + place % segment_length

    num_segments = int(segment[:, -1].max()) + 1
    num_places = num_segments * segment_length
    spare = target.where(valid, num_places)  # padding goes behind all places
    tokens = torch.arange(valid.shape[1], device=valid.device).expand_as(spare)
    sources = tokens.new_zeros(packing.batch, num_places + 1).scatter(1, spare, tokens)[:, :num_places]
    counts = tokens.new_zeros(packing.batch, num_segments)
    lengths = counts.scatter_add(1, segment, valid.long())
    is_new = counts.scatter_add(1, segment, begins.long()) > 0
    return TokenPlaces(lengths.amax(0).tolist(), sources, target[:, num_open:], lengths, is_new)


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


__all__ = ["RowsToRead", "TokenPlaces", "place_alike", "place_tokens", "rows_to_read"]
