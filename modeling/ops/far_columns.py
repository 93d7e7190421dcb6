"""Columns that an attention reads beside those of `[memory; segment]`."""

from typing import NamedTuple

import torch


# B batch, T segment, S far columns, H heads, D head dim
class FarColumns(NamedTuple):
    """Columns that are no distances: what a memory holds beside the window.

    Args:
        key, value: `(B, H, S, D)`.
        visible: `(B or 1, 1, T, S)` bool, which of them each query sees; None: all.
        distance: `(B or 1, T, S)` integers, how far each column lies from each query; None: they lie directly before the
            window of one token, which sees them all.
        min_distance: no column that is seen lies nearer than this `distance`.
    """

    key: torch.Tensor
    value: torch.Tensor
    visible: torch.Tensor | None = None
    distance: torch.Tensor | None = None
    min_distance: int = 0


__all__ = ["FarColumns"]
