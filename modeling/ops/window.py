"""Where the tokens of a batch stand and which of them see each other, when every row is `[memory; segment]`.

Padding never takes a place: each row is packed to the right, so that row b, column K-1 is its newest real token and the
distance of two real tokens is the distance of their columns. Shapes: B batch, T segment, M memory, K = M + T.

    row    memory     segment       packed
    0      . . p q  | . a b         . . . p q a b       row 0 is shorter: three columns are padding (.)
    1      p q r s  | a b c         p q r s a b c
"""

from typing import NamedTuple

import torch


class PackedRows(NamedTuple):
    """Rows of `[memory; segment]` packed to the right; each field is None where no row needs it.

    `order` (B, K): column of `[memory; segment]` that stands at each packed column; `valid` (B, K): real tokens, packed;
    `document_ids` (B, K): number of the document that each packed column belongs to, the memory's being 0.
    """

    order: torch.Tensor | None = None
    valid: torch.Tensor | None = None
    document_ids: torch.Tensor | None = None


def right_align(valid: torch.Tensor) -> torch.Tensor:
    """The stable order (B, K) that brings the real columns of `valid` (B, K) bool to the right."""
    return inverse(packed_places(valid))


def packed_places(valid: torch.Tensor) -> torch.Tensor:
    """The column (B, K) to which `right_align` brings each column of `valid` (B, K): padding first, each in its order."""
    padding = ~valid
    return torch.where(valid, padding.sum(dim=-1, keepdim=True) + valid.cumsum(dim=-1), padding.cumsum(dim=-1)) - 1


def inverse(order: torch.Tensor) -> torch.Tensor:
    """The order (B, K) that undoes `order`."""
    columns = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, columns)


def rows_reset_at_end(reset: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Rows (B,) bool whose last `reset` (B, T) stands behind their last real token in `valid` (B, T)."""
    document_ids = reset.long().cumsum(dim=1)
    return document_ids[:, -1] > document_ids.masked_fill(~valid, 0).amax(dim=1)


def gather_columns(rows: torch.Tensor, order: torch.Tensor | None, dim: int = 1) -> torch.Tensor:
    """`rows` with the columns of dimension `dim` in the `order` (B, n) of their batch row."""
    if order is None:
        return rows
    shape = [1] * rows.dim()
    shape[0], shape[dim] = order.shape
    return rows.take_along_dim(order.view(shape).to(rows.device), dim=dim)


def keep_last(columns: torch.Tensor, count: int, dim: int = 1) -> torch.Tensor:
    """The last `count` columns, also for a count of zero, where `columns[-0:]` would keep everything."""
    length = columns.shape[dim]
    kept = min(count, length)
    return columns.narrow(dim, length - kept, kept)


def pack_rows(
    shape: tuple[int, int, int],
    memory_mask: torch.Tensor | None,
    segment_mask: torch.Tensor | None,
    document_ids: torch.Tensor | None,
) -> PackedRows:
    """Pack `[memory; segment]` of `shape` (B, M, T) to the right.

    A memory is packed already: what is real in it stands at its right. So nothing moves where the segment has no padding.

    Args:
        memory_mask: (B, >=M) bool, real columns of the memory, whose last M count; None when all are.
        segment_mask: (B, >=T) bool, real columns of the segment, whose padding stands on the left; None when all are.
        document_ids: (B, T) number of the document of each token, 0 for that of the memory; None when all are one document.
    """
    batch, memory_length, length = shape
    order = valid = None
    if segment_mask is not None:
        real = segment_mask.new_ones(batch, memory_length)
        memory_mask = real if memory_mask is None else keep_last(memory_mask, memory_length)
        valid = torch.cat([memory_mask, keep_last(segment_mask, length)], dim=1)
        order = right_align(valid)
        valid = gather_columns(valid, order)
    elif memory_mask is not None:
        valid = torch.nn.functional.pad(keep_last(memory_mask, memory_length), (0, length), value=True)
    if document_ids is not None:
        document_ids = gather_columns(
            torch.cat([document_ids.new_zeros(batch, memory_length), document_ids], dim=1), order
        )
    return PackedRows(order, valid, document_ids)


class SegmentPacking:
    """How the rows of a call are packed: made once, and shared by all that remembers equally much.

    Args:
        memory_mask: (B, M) bool, real columns of the memory; None when all are.
        segment_mask: (B, T) bool, real tokens, whose padding stands on the left; None when all are.
        document_ids: (B, T) number of the document of each token, 0 for that of the memory; None when all are one.
        current: (B,) number of the document at the end of the segment, where the last column does not say it.

    Attributes:
        limit: how many columns are still wanted at the end of the call; None: as many as a memory keeps.
        wanted: (B, K) bool, which of the packed columns are, where rows differ.
    """

    def __init__(
        self,
        batch: int,
        length: int,
        device: torch.device,
        memory_mask: torch.Tensor | None = None,
        segment_mask: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        current: torch.Tensor | None = None,
    ):
        self.batch, self.length, self.device = batch, length, device
        self.memory_mask, self.segment_mask = memory_mask, segment_mask
        self.document_ids, self.current = document_ids, current
        self.limit: int | None = None
        self.wanted: torch.Tensor | None = None
        self._rows: dict[tuple[int, int], PackedRows] = {}

    @property
    def is_plain(self) -> bool:
        """Whether all rows are alike: nothing is padded, and no document begins inside."""
        return self.memory_mask is None and self.segment_mask is None and self.document_ids is None

    def rows(self, kept: int, added: int | None = None) -> PackedRows:
        """The last `kept` columns of the memory and `added` of the segment (all), packed."""
        added = self.length if added is None else added
        if (kept, added) not in self._rows:
            shape = (self.batch, kept, added)
            self._rows[kept, added] = pack_rows(shape, self.memory_mask, self.segment_mask, self.document_ids)
        return self._rows[kept, added]

    def lengths(self, kept: int, length: int) -> tuple[int, int]:
        """How many columns of a memory and of the segment are worth copying, where `length` are remembered: padding and
        documents may leave room for more of the old ones."""
        kept = min(kept, max(length - self.length, 0) if self.is_plain else length)
        return kept, self.length if self.document_ids is not None else min(self.length, length)

    def limited(self, length: int) -> int:
        """How many columns are kept of a memory that may have `length`."""
        return length if self.limit is None else min(length, self.limit)

    def next_memory_mask(self, rows: PackedRows, length: int) -> torch.Tensor | None:
        """Which of the last `length` of the packed columns are worth remembering, (B, <=length) bool; None when all are."""
        valid = next_memory_mask(rows, length, self.current)
        if self.wanted is None:
            return valid
        wanted = keep_last(self.wanted, length if valid is None else valid.shape[1])
        return wanted if valid is None else valid & wanted


def visible_positions(
    rows: PackedRows, length: int, num_keys: int, window: int | None, device: torch.device
) -> torch.Tensor | None:
    """Which keys the last `length` of `num_keys` packed columns see, (B or 1, 1, T, K) bool; None when all see all.

    A token sees itself, what came before it in its document and, with a `window`, of that only the last `window` positions.
    """
    if window is not None and num_keys <= window:
        window = None  # it hides nothing
    seen = None  # one token sees all columns up to its own: what is left out for it costs agents a tenth of a step
    if length > 1 or window is not None:
        columns = torch.arange(num_keys, device=device)
        distance = columns[num_keys - length :, None] - columns
        seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        seen = seen[None, None]
    if rows.valid is not None:
        valid = rows.valid[:, None, None, :]
        seen = valid.expand(-1, 1, length, -1) if seen is None else seen & valid
    if rows.document_ids is not None:
        documents = rows.document_ids
        same = documents[:, None, num_keys - length :, None] == documents[:, None, None, :]
        seen = same if seen is None else seen & same
    return seen


def next_memory_mask(rows: PackedRows, mem_len: int, current: torch.Tensor | None = None) -> torch.Tensor | None:
    """Which of the last `mem_len` packed columns are worth remembering, (B, <=mem_len) bool; None when all are.

    Only those of the `current` (B,) document are, which is that of the last column where it is not given."""
    valid = rows.valid
    if rows.document_ids is not None:
        current = rows.document_ids == (rows.document_ids[:, -1:] if current is None else current[:, None])
        valid = current if valid is None else valid & current
    return None if valid is None else keep_last(valid, mem_len)


def reset_state(state: torch.Tensor, reset: torch.Tensor, initial: float = 0) -> torch.Tensor:
    """`state` (B, ...) with `initial` in the rows of `reset` (B,) bool: what a new row remembers."""
    return state.masked_fill(reset.view(-1, *[1] * (state.dim() - 1)), initial)


def drop_full_mask(mask: torch.Tensor | None) -> torch.Tensor | None:
    """None for a mask that hides nothing, so that unpadded batches take the plain path. A compiled graph cannot ask."""
    if mask is None or torch.compiler.is_compiling():
        return mask
    return None if bool(mask.all()) else mask
