"""A call cut where blocks of its texts end, for a model that reads block by block.

    | open block | block | block | op      the columns of a row, counted from the beginning of its document
            [   0   |   1   |   2  ]       a call, and its parts

Shapes: B batch, T tokens of a call, P tokens of a part.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch

from transformers_xl.modeling.ops.blocks import BlockPlaces
from transformers_xl.modeling.ops.window import SegmentPacking, gather_columns, keep_last, right_align


class CallPart(NamedTuple):
    """The tokens of a call that belong to one block of each row. Rows may have different numbers of them, or none.

    Args:
        order: `(B, P)`, indices of tokens of the call, those of the part on the right.
        valid: `(B, P)` bool, which of them belong to the part; the others are padding.
        begins: `(B,)` bool, rows in which a document begins with this part.
    """

    order: torch.Tensor
    valid: torch.Tensor
    begins: torch.Tensor


class CallParts(NamedTuple):
    """The parts of a call in reading order. `places` `(B, T)`: the index of each token in the concatenated parts."""

    parts: list[CallPart]
    places: torch.Tensor

    @classmethod
    def of(cls, packing: SegmentPacking, position: torch.Tensor, size: int) -> Self:
        """The parts of a call for blocks of `size`; `packing` and `position` `(B,)` as in `BlockPlaces.of`."""
        valid, is_first, begins, place, _ = BlockPlaces.of(packing, position, size)
        number = (valid & (is_first | (place == 0))).cumsum(1) - 1
        places, parts, start = torch.zeros_like(number), [], 0
        for index in range(max(int(number.where(valid, -1).max()) + 1, 1)):
            mine = (number == index) & valid
            counts = mine.sum(1, keepdim=True)
            width = max(int(counts.max()), 1)
            order = keep_last(right_align(mine), width)
            parts.append(CallPart(order, gather_columns(mine, order), (mine & begins).any(1)))
            places = torch.where(mine, start + width - counts + mine.cumsum(1) - 1, places)
            start += width
        return cls(parts, places)

    @property
    def is_one(self) -> bool:
        """Whether the call is one part, which continues the open block of every row."""
        return len(self.parts) == 1 and not bool(self.parts[0].begins.any())

    def join(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """The `states` `(B, P, E)` of all parts as those of the call, `(B, T, E)`; those of padding are arbitrary."""
        return gather_columns(torch.cat(list(states), dim=1), self.places)


__all__ = ["CallPart", "CallParts"]
