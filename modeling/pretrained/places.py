"""Where the tokens of a segment stand, and what they see."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from transformers_xl.modeling.ops.window import SegmentPacking


# B batch, T segment, K columns in front of the segment and its own
class Places(NamedTuple):
    """Where the tokens of a segment stand.

    `position_ids` (B, T); `before` (B,), the position of a row's next token before the segment, `after` (B,) behind it;
    `lowest` and `highest` of `before`; `documents`, if some may begin inside.
    """

    position_ids: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor
    lowest: int
    highest: int
    documents: "Documents | None" = None

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
        documents = None
        if document_ids is not None:
            documents = Documents(document_ids, (valid * (document_ids == 0)).sum(dim=1), count[:, -1])
        return cls(position_ids, before, after, lowest, highest, documents)

    def longest_begun(self) -> int:
        """How many tokens the longest document has that begins inside the segment."""
        if self.documents is None:
            return 0
        return int((self.position_ids + 1).masked_fill(self.documents.ids == 0, 0).max())


class Documents(NamedTuple):
    """Documents of a segment: `ids` (B, T), 0 for that of the memory; `num_first` (B,), how many tokens that one has in the
    segment, of the `num_read` (B,) that a row has."""

    ids: torch.Tensor
    num_first: torch.Tensor
    num_read: torch.Tensor


def nearest_of_document(mem_len: int, document_ids: torch.Tensor | None, num_columns: int = 0) -> Callable[..., Any]:
    """Which keys a query sees of those before it: the `mem_len` nearest of its document, whose number each packed column
    behind the first `num_columns` has in `document_ids` (B, K); None: all are one."""

    def sees(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> Any:
        near = q_idx - kv_idx < mem_len
        if document_ids is None:
            return near
        query, key = document_ids[batch_idx, q_idx - num_columns], (kv_idx - num_columns).clamp(min=0)
        return near & (query == document_ids[batch_idx, key])

    return sees


def nearest_and_sinks(
    mem_len: int,
    num_sinks: int,
    num_columns: int,
    num_before: int,
    position_ids: torch.Tensor,
    copies: torch.Tensor,
    document_ids: torch.Tensor | None = None,
) -> Callable[..., Any]:
    """Which keys a query sees: the `mem_len` nearest, and of its copy of the sinks those that are not among them.

    Args:
        num_columns: columns of copies of the sinks, in front of all others.
        num_before: columns in front of the segment.
        position_ids: (B, T), which tell how far a sink lies behind. In documents that begin inside, none is far.
        copies: (B, T), the copy that a token sees.
        document_ids: (B, K), as in [`nearest_of_document`].
    """
    is_near = nearest_of_document(mem_len, document_ids, num_columns)

    def sees(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> Any:
        token = q_idx - num_before
        is_far = position_ids[batch_idx, token] - kv_idx % num_sinks >= mem_len
        is_own = copies[batch_idx, token] == kv_idx // num_sinks
        return torch.where(kv_idx < num_columns, is_far & is_own, is_near(batch_idx, head_idx, q_idx, kv_idx))

    return sees


__all__ = ["Places", "nearest_and_sinks", "nearest_of_document"]
