"""The order of memory tokens and segments in a text: Bulatov et al., 2022, https://arxiv.org/abs/2207.06881, section 3.

.. | read | segment | write | read | segment | write | read | open segment
"""

from typing import NamedTuple, Self

import torch

from transformers_xl.modeling.memory.counter_memory import CounterMemory
from transformers_xl.modeling.memory.token_memory import WrittenMemory
from transformers_xl.modeling.ops.blocks import TextColumns
from transformers_xl.modeling.ops.window import SegmentPacking, gather_columns, keep_last, right_align


class RecurrentTokens(NamedTuple):
    """The memory tokens that each row has written, `(batch, tokens, hidden_size)`, and how many tokens it has read of its
    open segment (`place`)."""

    memory_tokens: WrittenMemory
    place: CounterMemory


# B batch, T tokens of a call, n of a part
class SegmentPart(NamedTuple):
    """The part of a call that belongs to one segment of each row. Rows may have different numbers of its tokens, or none.

    Args:
        order: `(B, n)`, indices of tokens of the call, those of the part on the right.
        is_real: `(B, n)` bool, which of them belong to the part; the others are padding.
        begins: `(B,)` bool, rows in which a document begins with this part.
    """

    order: torch.Tensor
    is_real: torch.Tensor
    begins: torch.Tensor


class SegmentParts(NamedTuple):
    """The parts of a call in reading order. `places` `(B, T)`: the index of each token in the concatenated parts."""

    parts: list[SegmentPart]
    places: torch.Tensor

    @classmethod
    def of(cls, packing: SegmentPacking, place: torch.Tensor, segment_length: int) -> Self:
        """The parts of a call, whose `packing` is without memory; `place` `(B,)`: how many tokens each row has read of its
        open segment."""
        text, in_text, _ = TextColumns.of(packing, 0)
        text = torch.zeros_like(in_text) if text is None else text
        is_real, is_first = text >= 0, in_text == 0
        in_segment = torch.where(text == 0, in_text + place[:, None], in_text) % segment_length
        is_real, is_first = is_real.expand_as(in_segment), is_first.expand_as(in_segment)
        number = ((is_first | (in_segment == 0)) & is_real).cumsum(1) - 1
        places, parts, start = torch.zeros_like(number), [], 0
        for index in range(max(int(number.where(is_real, -1).max()) + 1, 1)):
            mine = (number == index) & is_real
            counts = mine.sum(1, keepdim=True)
            width = max(int(counts.max()), 1)
            order = keep_last(right_align(mine), width)
            parts.append(SegmentPart(order, gather_columns(mine, order), (mine & is_first & (text > 0)).any(1)))
            places = torch.where(mine, start + width - counts + mine.cumsum(1) - 1, places)
            start += width
        return cls(parts, places)


__all__ = ["RecurrentTokens", "SegmentPart", "SegmentParts"]
