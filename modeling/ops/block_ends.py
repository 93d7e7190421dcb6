"""Where blocks of a text end in a call, in order: a state that is updated at these ends is a loop over them.

    | open block | block | block | op      the columns of a row, counted from the beginning of its document
          s_0    |  s_1  |  s_2  | s_3     the state that its tokens read: the one after the previous block

Shapes: B batch, T segment, K packed columns of [memory; segment], C columns that a state reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional as F

from transformers_xl.modeling.ops.key_mask import DeviceMovable
from transformers_xl.modeling.ops.window import (
    PackedRows,
    SegmentPacking,
    drop_full_mask,
    gather_columns,
    keep_last,
    right_align,
)


class BlockEnd(NamedTuple):
    """The next end of a block, or of a document, in every row that has one. If all rows are alike, tensors have one row.

    Args:
        columns: `(B or 1, C)`, the packed columns of the block and of the window before it.
        visible: `(B or 1, 1, 1, C)` bool, which of these columns exist; None: all.
        ended: `(B or 1,)` bool, rows in which a block ends.
        begun: `(B or 1,)` bool, rows in which a document begins, after a complete block or not; None: none.
    """

    columns: torch.Tensor
    visible: torch.Tensor | None
    ended: torch.Tensor
    begun: torch.Tensor | None


@dataclass(frozen=True)
class BlockEnds(DeviceMovable):
    """All ends of blocks in a call.

    Args:
        ends: the ends in order.
        number: `(B or 1, T)`, how many ends stand before each token; None: no token has one before it.
        num_read: number of states that the tokens of the call read.
    """

    ends: tuple[BlockEnd, ...] = ()
    number: torch.Tensor | None = None
    num_read: int = 1


def block_ends(
    packing: SegmentPacking, before: int, position: torch.Tensor, block_length: int, window: int
) -> tuple[BlockEnds, torch.Tensor]:
    """The ends of blocks in a call, and `position` after it.

    Args:
        packing: that of the call.
        before: number of columns before its tokens.
        position: `(B,)`, how many tokens of its open block each row has read.
        block_length: tokens in a block.
        window: columns before a block that the update of the state also reads.
    """
    length, can_look = packing.length, packing.is_plain and not torch.compiler.is_compiling()
    if can_look and int(position.max()) + length < block_length:  # most generated tokens
        return BlockEnds(), position + length
    is_one = can_look and bool((position == position[0]).all())
    ends, begins, position = token_places(packing, position[:1] if is_one else position, block_length)
    changes = F.pad(begins, (0, 1)) | F.pad(ends, (1, 0))  # before token t; the last one: after all tokens
    number = changes.cumsum(1)
    if not torch.compiler.is_compiling():
        count, num_read = int(number[:, -1].max()), int(number[:, -2].max()) + 1
    elif packing.document_ids is None:  # a compiled graph serves any position in a block
        count, num_read = length // block_length + 1, (length + block_length - 2) // block_length + 1
    else:
        count = num_read = length + 1
    reach = torch.arange(1 - window - block_length, 1, device=position.device)
    found = []
    for index in range(1, count + 1):
        behind = (number < index).sum(1, keepdim=True)  # the token after the end; length + 1: there is none
        ended = F.pad(ends, (1, 1)).gather(1, behind)[:, 0]
        begun = None if packing.document_ids is None else F.pad(begins, (0, 2)).gather(1, behind)[:, 0]
        columns = before + behind - 1 + reach
        visible = columns_of_block(packing.rows(before), columns) | ~ended[:, None]
        of_queries = None if drop_full_mask(visible) is None else visible[:, None, None]
        found.append(BlockEnd(columns.clamp(0, before + length - 1), of_queries, ended, begun))
    blocks = BlockEnds(tuple(found), number[:, :-1] if num_read > 1 else None, num_read)
    return blocks, position.expand(packing.batch)


def token_places(
    packing: SegmentPacking, position: torch.Tensor, block_length: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens that end a block, and that begin a document, each `(rows, T)` bool, and `position` `(rows,)` after them."""
    shape = (len(position), packing.length)
    real = position.new_ones(shape, dtype=torch.bool) if packing.segment_mask is None else packing.segment_mask
    documents = position.new_zeros(shape) if packing.document_ids is None else packing.document_ids
    documents = documents.masked_fill(~real, 0)  # padding stands on the left, where the memory's document goes on
    begins = documents != F.pad(documents, (1, 0))[:, :-1]
    read = real.cumsum(1)
    start = torch.where(begins, read - 1, -position[:, None]).cummax(1).values
    place = read - 1 - start
    return real & (place % block_length == block_length - 1), begins, (place[:, -1] + 1) % block_length


def columns_of_block(rows: PackedRows, columns: torch.Tensor) -> torch.Tensor:
    """Which of these packed `columns` `(B or 1, C)` exist and hold tokens of the same document as the last one."""
    visible = columns >= 0
    columns = columns.clamp(min=0)
    for of_column in (rows.valid, rows.document_ids):
        if of_column is not None:
            here = gather_columns(of_column, columns.clamp(max=of_column.shape[1] - 1))
            visible = visible & (here == here[:, -1:])
    return visible


class TextPiece(NamedTuple):
    """The tokens of a call that belong to one block of each row, padded on the left.

    Args:
        hidden_states: `(B, P, E)`.
        mask: `(B, P)` bool, which columns are tokens; None: all.
        columns: `(B, P)`, index of each token in the call; T for padding.
        begun: `(B,)` bool, rows in which a document begins with this piece.
    """

    hidden_states: torch.Tensor
    mask: torch.Tensor | None
    columns: torch.Tensor
    begun: torch.Tensor


def pieces_of_blocks(
    hidden_states: torch.Tensor,
    segment_mask: torch.Tensor | None,
    document_ids: torch.Tensor | None,
    position: torch.Tensor,
    block_length: int,
) -> list[TextPiece]:
    """Cut a call at the ends of blocks and documents, so that each piece holds tokens of one block per row; an empty list
    when the whole call is one piece. `position` as in `block_ends`."""
    batch, length = hidden_states.shape[:2]
    packing = SegmentPacking(batch, length, hidden_states.device, None, segment_mask, document_ids)
    ends, begins, _ = token_places(packing, position, block_length)
    number = (begins | F.pad(ends, (1, 0))[:, :-1]).cumsum(1)
    real = torch.ones_like(begins) if segment_mask is None else segment_mask
    pieces = []
    for index in range(int(number.max()) + 1):
        mask = real & (number == index)
        order = keep_last(right_align(mask), int(mask.sum(1).max()))
        if order.shape[1] > 0:
            here = gather_columns(mask, order)
            begun = (begins & mask).any(1)
            columns = order.masked_fill(~here, length)
            pieces.append(TextPiece(gather_columns(hidden_states, order), drop_full_mask(here), columns, begun))
    return pieces if len(pieces) > 1 or bool(begins.any()) else []


def join_pieces(pieces: Sequence[TextPiece], states: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """Join `states` `(B, P, E)` of all pieces to those of the call, `(B, length, E)`; those of padding are arbitrary."""
    columns = torch.cat([piece.columns for piece in pieces], dim=1)
    places = torch.arange(columns.shape[1], device=columns.device).expand_as(columns)
    order = columns.new_zeros(len(columns), length + 1).scatter(1, columns, places)
    return gather_columns(torch.cat(list(states), dim=1), order[:, :length])


__all__ = ["BlockEnd", "BlockEnds", "TextPiece", "block_ends", "join_pieces", "pieces_of_blocks"]
