"""Where the tokens of a segment stand in the positions of a base."""

from typing import NamedTuple, Self

import torch

from transformers_xl.modeling.memory.segment import Segment


# B batch, T segment
class Places(NamedTuple):
    """Positions: places in the text, less what they have been moved back.

    Args:
        position_ids: `(B, T)`; those of padding go on.
        before: `(B,)`, the position of a row's next token before the segment.
        lowest, highest: of `before`.
        moved: `(B,)`, how many positions a row's text has been moved back after the segment.
        longest_begun: how many tokens the longest document has that begins inside the segment.
    """

    position_ids: torch.Tensor
    before: torch.Tensor
    lowest: int
    highest: int
    moved: torch.Tensor
    longest_begun: int = 0

    @classmethod
    def of(cls, segment: Segment, moved: torch.Tensor) -> Self:
        """That of a segment, of rows whose text has been moved back by `moved` `(B,)` positions."""
        before = segment.tokens_read - moved
        lowest, highest = (int(extreme) for extreme in before.aminmax())
        ids = segment.document_ids
        if ids is None:
            return cls(segment.places - moved[:, None], before, lowest, highest, moved)
        position_ids = segment.places - moved[:, None].masked_fill(ids > 0, 0)
        begun = ids > 0 if segment.mask is None else (ids > 0) & segment.mask
        longest = int((position_ids + 1).where(begun, 0).max())
        return cls(position_ids, before, lowest, highest, moved.masked_fill(ids[:, -1] > 0, 0), longest)


__all__ = ["Places"]
