"""Positions that still run while others have halted: their states packed together, and put back."""

import torch

from transformers_xl.modeling.ops.window import last, right_align, take


# B batch, T length, N running positions, R of them in the row that has most
class Running:
    """The positions of a bool mask `(B, T)` that still run.

    What works position by position is done on `pack(states)` `(N, width)`. Attention works row by row, on
    `to_rows(packed)` `(B, R, width)`, in which a row with fewer than R positions is filled up with zeros: `columns`
    `(B, R)` says which position stands where (None: each in its own place), `filled` `(B, R)` bool where one stands.
    """

    def __init__(self, mask: torch.Tensor):
        self.mask = self.filled = mask
        self.columns: torch.Tensor | None = None
        longest = int(mask.sum(dim=1).max())
        self.any = longest > 0
        self.all = longest == mask.shape[1] and bool(mask.all())
        if 0 < longest < mask.shape[1]:
            self.columns = last(right_align(mask), longest)
            self.filled = take(mask, self.columns)

    def pack(self, states: torch.Tensor) -> torch.Tensor:
        """The running positions `(N, ...)` of `(B, T, ...)`."""
        return states[self.mask]

    def unpack(self, packed: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """`states` `(B, T, ...)` with `packed` `(N, ...)` in the running positions; a halted one keeps its state."""
        return states.index_put((self.mask,), packed)

    def to_rows(self, packed: torch.Tensor) -> torch.Tensor:
        """`(B, R, ...)` of `(N, ...)`."""
        rows = packed.new_zeros(*self.filled.shape, *packed.shape[1:])
        return rows.index_put((self.filled,), packed)

    def from_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """`(N, ...)` of `(B, R, ...)`."""
        return rows[self.filled]


__all__ = ["Running"]
