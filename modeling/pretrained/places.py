"""Where the tokens of a segment stand, and what they see."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from transformers_xl.modeling.ops.window import SegmentPacking


# B batch, T segment, K columns in front of the segment and its own
class Places(NamedTuple):
    """Where the tokens of a segment stand.

    `position_ids` (B, T); `before` (B,), the position of a row's next token before the segment, `after` (B,) behind it;
    `lowest` and `highest` of `before`.
    """

    position_ids: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor
    lowest: int
    highest: int

    @classmethod
    def of(cls, before: torch.Tensor, packing: SegmentPacking) -> "Places":
        """That of a segment whose rows continue at positions `before` (B,)."""
        length, mask, document_ids = packing.length, packing.segment_mask, packing.document_ids
        lowest, highest = (int(extreme) for extreme in before.aminmax())
        if mask is None and document_ids is None:
            position_ids = before[:, None] + torch.arange(length, device=before.device)
            return cls(position_ids, before, before + length, lowest, highest)
        valid = (
            torch.ones(packing.batch, length, dtype=torch.long, device=before.device) if mask is None else mask.long()
        )
        count = valid.cumsum(dim=1)
        start = -before[:, None]
        if document_ids is not None:
            begins = document_ids.diff(dim=1, prepend=torch.zeros_like(document_ids[:, :1])) > 0
            first = torch.where(begins, count - valid, 0).cummax(dim=1).values
            start = torch.where(document_ids > 0, first, start)
        position_ids = (count - 1 - start).clamp(min=0)
        after = torch.where(valid.any(dim=1), position_ids[:, -1] + 1, before)
        return cls(position_ids, before, after, lowest, highest)


def nearest_of_document(mem_len: int, document_ids: torch.Tensor | None) -> Callable[..., Any]:
    """Which keys a query sees of those before it: the `mem_len` nearest of its document, whose number each packed column
    has in `document_ids` (B, K); None: all are one."""

    def sees(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> Any:
        near = q_idx - kv_idx < mem_len
        if document_ids is None:
            return near
        return near & (document_ids[batch_idx, q_idx] == document_ids[batch_idx, kv_idx])

    return sees


def nearest_and_sinks(
    mem_len: int, num_sinks: int, num_columns: int, num_before: int, position_ids: torch.Tensor, copies: torch.Tensor
) -> Callable[..., Any]:
    """Which keys a query sees: the `mem_len` nearest, and of its copy of the sinks those that are not among them.

    Args:
        num_columns: columns of copies of the sinks, in front of all others.
        num_before: columns in front of the segment.
        position_ids: (B, T), which tell how far a sink lies behind.
        copies: (B, T), the copy that a token sees.
    """

    def sees(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> Any:
        token = q_idx - num_before
        is_far = position_ids[batch_idx, token] - kv_idx % num_sinks >= mem_len
        is_own = copies[batch_idx, token] == kv_idx // num_sinks
        return torch.where(kv_idx < num_columns, is_far & is_own, q_idx - kv_idx < mem_len)

    return sees


__all__ = ["Places", "nearest_and_sinks", "nearest_of_document"]
