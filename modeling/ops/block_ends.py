"""Where blocks of a text end in a call, in order: a state that is updated at these ends is a loop over them.

    | open block | block | block | op      the columns of a row, counted from the beginning of its document
          s_0    |  s_1  |  s_2  | s_3     the state that its tokens read: the one after the previous block

Shapes: B batch, T segment, K columns of [memory; segment], C columns that a state reads.
"""

from typing import NamedTuple

import torch
from torch.nn import functional as F

from transformers_xl.modeling.memory.segment import Segment
from transformers_xl.modeling.ops.columns import drop_full_mask, is_symbolic


class BlockEnd(NamedTuple):
    """The next end of a block, or of a document, in every row that has one. If all rows are alike, tensors have one row.

    Args:
        columns: `(B or 1, C)`, the columns of the block and of the window before it.
        visible: `(B or 1, 1, 1, C)` bool, which of these columns exist; None: all.
        ended: `(B or 1,)` bool, rows in which a block ends.
        begun: `(B or 1,)` bool, rows in which a document begins, after a complete block or not; None: none.
    """

    columns: torch.Tensor
    visible: torch.Tensor | None
    ended: torch.Tensor
    begun: torch.Tensor | None


class BlockEnds(NamedTuple):
    """All ends of blocks in a call.

    Args:
        ends: the ends in order.
        number: `(B or 1, T)`, how many ends stand before each token; None: no token has one before it.
        num_read: number of states that the tokens of the call read.
    """

    ends: tuple[BlockEnd, ...] = ()
    number: torch.Tensor | None = None
    num_read: int = 1


def block_ends(segment: Segment, block_length: int, window: int) -> BlockEnds:
    """The ends of blocks of `block_length` tokens in a call; the update of a state also reads the `window` columns before
    its block."""
    length, position = segment.length, segment.tokens_read % block_length
    can_look = segment.num_tokens is None and segment.document_ids is None and not is_symbolic(position)
    if can_look and int(position.max()) + length < block_length:  # most generated tokens
        return BlockEnds()
    is_one = can_look and bool((position == position[0]).all())
    places = segment.places[:1] if is_one else segment.places
    mask = torch.ones_like(places, dtype=torch.bool) if segment.mask is None else segment.mask
    ends, begins = mask & (places % block_length == block_length - 1), torch.zeros_like(mask)
    if segment.document_ids is not None:
        begins = mask & (places == 0) & (segment.document_ids > 0)
    changes = F.pad(begins, (0, 1)) | F.pad(ends, (1, 0))  # before token t; the last one: after all tokens
    number = changes.cumsum(1)
    of_tokens = number[:, :-1].where(mask, 0)
    if not is_symbolic(number):
        count, num_read = int(number[:, -1].max()), int(of_tokens.max()) + 1
    elif segment.document_ids is None:  # a compiled graph serves any position in a block
        count, num_read = length // block_length + 1, (length + block_length - 2) // block_length + 1
    else:
        count = num_read = length + 1
    reach = torch.arange(1 - window - block_length, 1, device=position.device)
    found = []
    for index in range(1, count + 1):
        after = (number < index).sum(1, keepdim=True)  # the token after the end; length + 1: there is none
        ended = F.pad(ends, (1, 1)).gather(1, after)[:, 0]
        begun = None if segment.document_ids is None else F.pad(begins, (0, 2)).gather(1, after)[:, 0]
        columns = segment.num_before + after - 1 + reach
        start = segment.start.take_along_dim((after - 1).clamp(0, length - 1), 1)
        visible = drop_full_mask((columns >= start) | ~ended[:, None])
        of_queries = None if visible is None else visible[:, None, None]
        found.append(BlockEnd(columns.clamp(0, segment.num_keys - 1), of_queries, ended, begun))
    return BlockEnds(tuple(found), of_tokens if num_read > 1 else None, num_read)


__all__ = ["BlockEnd", "BlockEnds", "block_ends"]
