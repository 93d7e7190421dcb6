"""The blocks of `[open block; segment]` side by side, so that a call costs its blocks.

    columns       | unused | text 0, block 0 | text 0, block 1 .. | text 1, block 0 | padding |
    grid                   | text 0, block 0 | text 0, block 1    | text 1, block 0 ..    |

Blocks are counted from the beginning of a text. What is remembered begins with a block, so that places in blocks follow
from columns. Shapes: B batch, T tokens, C columns of the memory, K = C + T, G blocks of a row.
"""

from typing import NamedTuple, Self

import torch
from torch.nn import functional as F

from transformers_xl.modeling.memory.segment import Segment, is_true, noted
from transformers_xl.modeling.ops.columns import gather_columns, is_symbolic


class BlockGrid(NamedTuple):
    """The blocks of a call: those that end in it, and those that stay open.

    Args:
        size: columns of a block.
        place: `(B or 1, K)`, the place of each column in its block.
        keep: how many columns are remembered after the call.
        begin: `(B or 1, G)`, the first column of each block; None: each row has one block.
        order: `(B or 1, T)`, where each token stands in the grid.
        is_first: `(B, G)` bool, blocks with which a text begins inside the call; None: there are none.
        is_whole: `(B or 1, G)` bool, blocks that end; None: there are none.
    """

    size: int
    place: torch.Tensor
    keep: int
    begin: torch.Tensor | None = None
    order: torch.Tensor | None = None
    is_first: torch.Tensor | None = None
    is_whole: torch.Tensor | None = None

    @classmethod
    def of(cls, segment: Segment, size: int) -> Self:
        """The blocks of a call after an open block."""
        num_keys, keep = segment.num_keys, columns_to_keep(segment, size)
        column = torch.arange(num_keys, device=segment.start.device)
        oldest = segment.num_before - segment.lengths[: len(segment.start), None]
        start = torch.cat([oldest.expand(-1, segment.num_before), segment.start], 1)
        place = (column - start).clamp(min=0) % size
        if num_keys <= size and segment.document_ids is None:
            is_whole = (segment.end - segment.start[:, -1] == size)[:, None]
            has_whole = num_keys == size and is_true(is_whole.any(), when_compiling=True)
            return cls(size, place, keep, is_whole=is_whole if has_whole else None)

        is_real = column >= start  # padding stands in blocks too, which it does not end
        number = (((place == 0) & is_real).cumsum(1) - 1).clamp(min=0)
        count = -(-num_keys // size)  # of one text; a compiled graph cannot depend on the number of documents
        if segment.document_ids is not None:
            count = num_keys if is_symbolic(number) else int(number.max()) + 1

        def have(which: torch.Tensor) -> torch.Tensor:
            """The blocks, `(B or 1, G)` bool, that hold one of the columns in `which` `(B or 1, K)`."""
            marked = which.new_zeros(len(which), count + 1)
            return marked.scatter_(1, number.where(which, count), True)[:, :-1]

        begin = column.new_zeros(len(number), count + 1)
        begin.scatter_(1, number.where((place == 0) & is_real, count), column.expand_as(number))
        is_first = None
        if segment.document_ids is not None:
            is_begin = is_real & (column == start)
            is_first = have(
                F.pad(is_begin[:, segment.num_before :] & (segment.document_ids > 0), (segment.num_before, 0))
            )
        end = num_keys if segment.is_plain else segment.end[:, None]
        is_whole = have(is_real & (place == size - 1) & (column < end))
        order = (number * size + place)[:, segment.num_before :]
        return cls(size, place, keep, begin[:, :-1], order, is_first, is_whole)

    def cut(self, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Cut `states` `(B, H, n, D)` of the last n columns into blocks, each `(B, H, <= size, D)`. Places without a state
        get an arbitrary one."""
        if self.begin is None:
            return (states,)
        order = self.begin[..., None] + torch.arange(self.size, device=states.device)
        order = (order.flatten(1) - (self.place.shape[1] - states.shape[-2])).clamp(0, states.shape[-2] - 1)
        return gather_columns(states, order, dim=-2).split(self.size, dim=-2)

    def join(self, blocks: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Undo `cut`: the states of the tokens, `(B, H, T, D)`."""
        return gather_columns(torch.cat(blocks, dim=-2), self.order, dim=-2)


def columns_to_keep(segment: Segment, size: int) -> int:
    """How many columns the open blocks have after a call, of the row that has most."""
    if segment.is_plain:
        return segment.num_keys % size
    if is_symbolic(segment.lengths):
        return min(segment.num_keys, size - 1)
    return int(open_lengths(segment, size).max())


def open_lengths(segment: Segment, size: int) -> torch.Tensor:
    """How many columns the open block of each row has after a call, `(B,)`."""
    lengths = (segment.end - segment.start[:, -1]) % size
    return noted(lengths, segment.num_keys % size) if segment.is_plain else lengths


__all__ = ["BlockGrid", "open_lengths"]
