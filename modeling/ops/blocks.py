"""Blocks of `size` columns, counted from the beginning of a text, so that their ends do not depend on how a text is cut.

A memory that moves by blocks keeps the columns after the last complete block: `[kept; segment]` begins with a block.

    | block 0 | block 1 | block ..        a text
                        [ kept ][ segment ]
                        | block 2 | bl    block 2 ends in this call; the columns after it are kept

Shapes: B batch, T segment, K = kept + T columns, N blocks that end in a call.
"""

from typing import NamedTuple

import torch
from torch.nn import functional as F

from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.window import SegmentPacking, gather_columns, keep_last, right_align


class TextColumns(NamedTuple):
    """Of each packed column, `(B or 1, K)`: the number of its text (-1: padding; None: each row is one), its place there,
    and how many columns the text has."""

    text: torch.Tensor | None
    place: torch.Tensor
    length: torch.Tensor

    @classmethod
    def of(cls, packing: SegmentPacking, before: int) -> "TextColumns":
        """The texts of `before` kept columns and the segment."""
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


class BlockPlaces(NamedTuple):
    """Of each token of a call, `(B, T)`: whether it is real, the first real one of the call or of a text, and the first one
    of a document that begins in the call; its place in its block; and `position` `(B,)` after the call."""

    valid: torch.Tensor
    is_first: torch.Tensor
    begins: torch.Tensor
    place: torch.Tensor
    position: torch.Tensor

    @classmethod
    def of(cls, packing: SegmentPacking, position: torch.Tensor, size: int) -> "BlockPlaces":
        """The places in blocks of `size`, where each row has read `position` `(B,)` tokens of its open block."""
        text, in_text, _ = TextColumns.of(packing, 0)
        text = torch.zeros_like(in_text) if text is None else text
        place = torch.where(text == 0, in_text + position[:, None], in_text) % size
        text, is_first = text.expand_as(place), (in_text == 0).expand_as(place)
        after = torch.where(text[:, -1] >= 0, (place[:, -1] + 1) % size, position)
        return cls(text >= 0, is_first, is_first & (text > 0), place, after)


class Blocks(NamedTuple):
    """The blocks that end in a call.

    Args:
        columns: `(B or 1, N size)`, their packed columns, block after block.
        number: `(B or 1, N)`, index of the block among those of its text in `[kept; segment]`.
        is_block: `(B, N)` bool, whether the row has this block; None: all rows have.
        text: `(B, N)`, the number of the text of the block; None: each row is one text.
        places: the text and the place of each packed column.
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
        """The columns of the blocks, `(B, N size, E)`, of packed `states` `(B, K, E)`."""
        return gather_columns(states, self.columns.expand(len(states), -1))


def ended_blocks(packing: SegmentPacking, before: int, size: int, delay: int = 0) -> Blocks:
    """The blocks of this call that end at least `delay` columns before the last column of their text.

    Sets `packing` to keep only the columns after these blocks.

    Args:
        packing: that of the segment.
        before: number of kept columns in front of it.
        size: columns of a block.
        delay: columns of a text that a block waits for after its end.
    """
    places, num_columns = TextColumns.of(packing, before), before + packing.length
    text, place = places.text, places.place
    count = max(num_columns - delay, 0) // size
    if text is None:
        packing.limit = num_columns - count * size
        return Blocks(place[:, : count * size], place[:, :count], None, None, places)  # places count from 0
    is_end = (place % size == size - 1) & (place < places.length - delay) & (text >= 0)
    ends = keep_last(right_align(is_end), count)
    is_block, of_text, now = gather_columns(is_end, ends), gather_columns(text, ends), text[:, -1:]
    left = places.length[:, -1:] - size * (is_block & (of_text == now)).sum(1, keepdim=True)
    packing.wanted = torch.arange(num_columns, device=packing.device) >= num_columns - left.where(now >= 0, 0)
    columns = (ends[..., None] + torch.arange(1 - size, 1, device=packing.device)).flatten(1).clamp(min=0)
    return Blocks(columns, gather_columns(place, ends) // size, is_block, of_text, places)


class BlockGrid(NamedTuple):
    """The blocks of `[kept; segment]` side by side: those that end in a call and those that stay open.

        packed columns      | padding | text 0, block 0 | text 0, block 1 .. | text 1, block 0 |
        grid                          | text 0, block 0 | text 0, block 1 ..    | text 1, block 0 ..    |

    All blocks have one shape, and the cost of a call is that of its blocks.

    Args:
        number: `(B or 1, K)`, index of the block of each packed column among the G of its row; -1 for padding.
        place: `(B or 1, K)`, place of each packed column in its block.
        columns: `(B or 1, G size)`, the packed column at each place of the grid, an arbitrary one at empty places; None: a
            row has at most one block, in its own order.
        is_first: `(B, G)` bool, blocks with which a text begins inside the call; None: there are none.
        is_whole: `(B or 1, G)` bool, blocks that end; None: there are none.
    """

    number: torch.Tensor
    place: torch.Tensor
    columns: torch.Tensor | None
    is_first: torch.Tensor | None
    is_whole: torch.Tensor | None

    def cut(self, states: torch.Tensor, size: int) -> Tensors:
        """Cut `states` `(B, H, n, D)` of the last n packed columns into blocks, each `(B, H, <= size, D)`. Places without a
        state get an arbitrary one."""
        order = self.columns
        if order is not None:
            order = (order - (self.number.shape[1] - states.shape[-2])).clamp(min=0)
        return gather_columns(states, order, dim=-2).split(size, dim=-2)

    def join(self, blocks: Tensors, length: int) -> torch.Tensor:
        """Undo `cut`: the states of the last `length` packed columns, `(B, H, length, D)`, of blocks `(B, H, <= size, D)`;
        zeros for padding."""
        size, states = blocks[0].shape[-2], torch.cat(blocks, dim=-2)
        if self.columns is None:
            return states
        number, place = keep_last(self.number, length), keep_last(self.place, length)
        order = (number * size + place).where(number >= 0, states.shape[-2])
        return gather_columns(F.pad(states, (0, 0, 0, 1)), order, dim=-2)


def block_grid(packing: SegmentPacking, before: int, size: int) -> BlockGrid:
    """The blocks of `before` kept columns and the segment. Sets `packing` to keep only the columns of open blocks."""
    num_columns = before + packing.length
    text, place, _ = ended_blocks(packing, before, size).places
    is_begin, place = place == 0, place % size
    valid = torch.ones_like(is_begin) if text is None else text >= 0
    number = ((place == 0) & valid).cumsum(1) - 1
    number, place = number.where(valid, -1), place.where(valid, 0)
    is_end = (place == size - 1) & valid
    if num_columns <= size and packing.document_ids is None:
        is_whole = is_end[:, -1:]
        has_whole = torch.compiler.is_compiling() or bool(is_whole.any())
        return BlockGrid(number, place, None, None, is_whole if has_whole else None)

    count = -(-num_columns // size)  # of one text; a compiled graph cannot depend on the number of documents
    if packing.document_ids is not None:
        count = num_columns if torch.compiler.is_compiling() else max(int(number.max()) + 1, 1)

    def have(which: torch.Tensor) -> torch.Tensor:
        """The blocks, `(B or 1, G)` bool, that hold one of the columns in `which` `(B or 1, K)`."""
        marked = which.new_zeros(len(which), count + 1)
        return marked.scatter_(1, number.where(which, count), True)[:, :-1]

    order = (number * size + place).where(valid, count * size)
    columns = torch.arange(num_columns, device=packing.device).expand(len(order), -1)
    columns = columns.new_zeros(len(order), count * size + 1).scatter_(1, order, columns)[:, :-1]
    is_first = None if text is None or packing.document_ids is None else have(is_begin & (text > 0))
    return BlockGrid(number, place, columns, is_first, have(is_end))


__all__ = ["BlockGrid", "BlockPlaces", "Blocks", "TextColumns", "block_grid", "ended_blocks"]
