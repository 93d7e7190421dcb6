"""Where blocks of a text end in a call, in order: a state that is updated at these ends is a loop over them.

    | open block | block | block | op      the columns of a row, counted from the beginning of its document
          s_0    |  s_1  |  s_2  | s_3     the state that its tokens read: the one after the previous block

Shapes: B batch, T segment, K packed columns of [memory; segment], C columns that a state reads.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional as F

from transformers_xl.modeling.ops.blocks import BlockPlaces
from transformers_xl.modeling.ops.key_mask import DeviceMovable
from transformers_xl.modeling.ops.window import PackedRows, SegmentPacking, drop_full_mask, gather_columns


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
    valid, _, begins, place, position = BlockPlaces.of(packing, position[:1] if is_one else position, block_length)
    ends = valid & (place == block_length - 1)
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


def columns_of_block(rows: PackedRows, columns: torch.Tensor) -> torch.Tensor:
    """Which of these packed `columns` `(B or 1, C)` exist and hold tokens of the same document as the last one."""
    visible = columns >= 0
    columns = columns.clamp(min=0)
    for of_column in (rows.valid, rows.document_ids):
        if of_column is not None:
            here = gather_columns(of_column, columns.clamp(max=of_column.shape[1] - 1))
            visible = visible & (here == here[:, -1:])
    return visible


__all__ = ["BlockEnd", "BlockEnds", "block_ends"]
