"""Positions in a segment, added to the stream: learned (Al-Rfou et al., 2018) or sinusoids (Vaswani et al., 2017)."""

from dataclasses import dataclass

import torch
from torch import nn

from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.ops.sinusoids import sinusoids


class SinusoidPositions(nn.Module):
    """The sinusoids of https://arxiv.org/abs/1706.03762, section 3.5."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.hidden_size = hidden_size

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """`(batch or 1, length)` integers to `(batch or 1, length, hidden_size)`."""
        return sinusoids(positions, self.hidden_size, dtype)


class LearnedPositions(nn.Embedding):
    """A learned vector for each of `segment_length` positions."""

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return super().forward(positions).to(dtype)


@dataclass(frozen=True, kw_only=True)
class AbsolutePositionsContext(SegmentContext):
    """`places` (B or 1, T): that of each token in its row or document."""

    places: torch.Tensor


def positions_in_row(
    shape: tuple[int, int], segment_mask: torch.Tensor | None, document_ids: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """Place of each token in its row or document, from 0, `(B or 1, T)`, for rows whose padding stands on the left.

    `segment_mask` (B, T) bool and `document_ids` (B, T) are None where no row needs them. Padding gets 0.
    """
    columns = torch.arange(shape[1], device=device)[None]
    begins = torch.zeros_like(columns) if segment_mask is None else (~segment_mask).sum(dim=1, keepdim=True)
    if document_ids is not None:
        is_new = torch.cat([torch.zeros_like(document_ids[:, :1]), document_ids.diff(dim=1)], dim=1) != 0
        begins = torch.maximum(begins, (columns * is_new).cummax(dim=1).values)
    return (columns - begins).clamp(min=0)
