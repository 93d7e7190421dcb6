"""Blocks of `size` columns, counted from the beginning of a text: what moves at their ends does so for every cut alike.

A memory that moves by blocks keeps the columns behind the last one that has ended: `[kept; segment]` begins with a block.

    | block 0 | block 1 | block ..        a text
                        [ kept ][ segment ]
                        | block 2 | bl    ends in this call; what follows it is kept

Shapes: B batch, T segment, K = kept + T columns, N blocks that end in a call.
"""

from typing import NamedTuple

import torch
from torch.nn import functional as F

from transformers_xl.modeling.ops.window import SegmentPacking, gather_columns, keep_last, right_align


class TextColumns(NamedTuple):
    """Of each packed column, `(B or 1, K)`: the number of its text (-1: padding; None: each row is one), its place there,
    and how many columns the text has."""

    text: torch.Tensor | None
    place: torch.Tensor
    length: torch.Tensor

    @classmethod
    def of(cls, packing: SegmentPacking, before: int) -> "TextColumns":
        """Those of `before` kept columns and the segment."""
        columns = torch.arange(before + packing.length, device=packing.device)[None]
        if packing.is_plain:
            return cls(None, columns, torch.full_like(columns, columns.shape[1]))
        rows = packing.rows(before)
        text = columns.new_zeros(packing.batch, columns.shape[1]) if rows.document_ids is None else rows.document_ids
        text = text if rows.valid is None else text.masked_fill(~rows.valid, -1)
        changes = text[:, 1:] != text[:, :-1]
        begins, ends = F.pad(changes, (1, 0), value=True), F.pad(changes, (0, 1), value=True)
        place = columns - (columns * begins).cummax(dim=1).values
        end = columns.where(ends, columns.shape[1]).flip(1).cummin(dim=1).values.flip(1)
        return cls(text, place, place + end - columns + 1)


class Blocks(NamedTuple):
    """The blocks that end in a call.

    Args:
        columns: `(B or 1, N size)`, their packed columns, block after block.
        number: `(B or 1, N)`, 0 for the first block of `[kept; segment]` in its text.
        is_block: `(B, N)` bool, whether a row has such a block; None: all have.
        text: `(B, N)`, the number of its text; None: each row is one.
        places: where each packed column stands.
    """

    columns: torch.Tensor
    number: torch.Tensor
    is_block: torch.Tensor | None
    text: torch.Tensor | None
    places: TextColumns

    @property
    def count(self) -> int:
        """N."""
        return self.number.shape[1]

    def gather(self, states: torch.Tensor) -> torch.Tensor:
        """Their columns `(B, N size, E)` of packed `states` `(B, K, E)`."""
        return gather_columns(states, self.columns.expand(len(states), -1))


def ended_blocks(packing: SegmentPacking, before: int, size: int, delay: int = 0) -> Blocks:
    """The blocks that have ended `delay` columns before the last one of their text, in this call.

    From then on, `packing` wants the columns behind them alone.

    Args:
        packing: that of `[kept; segment]`.
        before: how many columns are kept.
    """
    places, num_columns = TextColumns.of(packing, before), before + packing.length
    text, place = places.text, places.place
    count = max(num_columns - delay, 0) // size
    if text is None:
        number = torch.arange(count, device=packing.device)[None]
        packing.limit = num_columns - count * size
        return Blocks(torch.arange(count * size, device=packing.device)[None], number, None, None, places)
    is_end = (place % size == size - 1) & (place < places.length - delay) & (text >= 0)
    ends = keep_last(right_align(is_end), count)
    is_block, of_text, now = gather_columns(is_end, ends), gather_columns(text, ends), text[:, -1:]
    left = places.length[:, -1:] - size * (is_block & (of_text == now)).sum(1, keepdim=True)
    packing.wanted = torch.arange(num_columns, device=packing.device) >= num_columns - left.where(now >= 0, 0)
    columns = (ends[..., None] + torch.arange(1 - size, 1, device=packing.device)).flatten(1).clamp(min=0)
    return Blocks(columns, gather_columns(place, ends) // size, is_block, of_text, places)


__all__ = ["Blocks", "TextColumns", "ended_blocks"]
