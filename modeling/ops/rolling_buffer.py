"""Columns that move on with a text: the newest ones of some tensors, which a cache extends at every token."""

from collections.abc import Callable

import torch

from transformers_xl.modeling.ops.window import gather_columns, keep_last

Tensors = tuple[torch.Tensor, ...]


def mark_static_address(tensor: torch.Tensor) -> None:
    """Tell the compiler that a tensor stays where it is. The call is private: without it, CUDA records graphs again."""
    mark = getattr(getattr(torch, "_dynamo", None), "mark_static_address", None)
    if mark is not None and not torch.compiler.is_compiling():
        mark(tensor)


# B batch, C columns, `...` any dimensions between, D width
class RollingBuffer:
    """The last `size` columns of several tensors `(B, ..., C, D)`, which move together, newest last.

        storage   | old columns | kept columns | room |
                                               ^ end

    New columns are written into the room, so that a token costs its own columns; where there is none left, the kept columns
    move to the front. Autograd, packing and compiled graphs want new tensors instead (`concatenate`).

    Attributes:
        tensors: the kept columns; more than `size` of them while the past is recorded.
        is_owned: whether they are the end of what stands in the storage, and nothing else reads what lies behind it.
        records_past: whether columns stay until `crop`, since some may be taken back (assisted decoding).
    """

    is_static = False

    def __init__(self, size: int):
        self.size = size
        self.tensors: Tensors = ()
        self.storage: Tensors = ()
        self.end = 0
        self.is_owned = False
        self.records_past = False

    @property
    def num_kept(self) -> int:
        """Number of columns that the next segment sees."""
        return min(self.tensors[0].shape[-2], self.size) if self.tensors else 0

    def hold(self, tensors: Tensors) -> None:
        """Keep these columns instead. They are never written to."""
        self.tensors, self.is_owned = tensors, False

    def extend(self, new: Tensors, order: torch.Tensor | None = None) -> Tensors:
        """Add columns, and return `[kept; new]`, packed by `order` (B, C)."""
        if not self.tensors:
            self.hold(tuple(each[..., :0, :] for each in new))
        if order is None and self.grows_in_place(new[0].shape[-2]):
            return self.append(new)
        pairs = [self.concatenate(*pair, order) for pair in zip(self.tensors, new, strict=True)]
        self.hold(tuple(kept for _, kept in pairs))
        return tuple(seen for seen, _ in pairs)

    def concatenate(
        self, kept: torch.Tensor, new: torch.Tensor, order: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What a segment sees of one tensor, and what is kept of it afterwards."""
        memory = keep_last(kept, self.size, dim=-2)
        seen = gather_columns(torch.cat([memory, new], dim=-2), order, dim=-2)
        if not self.records_past:
            return seen, keep_last(seen, self.size, dim=-2)
        pushed_out = kept.narrow(-2, 0, kept.shape[-2] - memory.shape[-2])
        return seen, torch.cat([pushed_out, seen], dim=-2)

    def grows_in_place(self, length: int) -> bool:
        return (
            length <= self.size
            and not self.records_past
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
        )

    def append(self, new: Tensors) -> Tensors:
        """What `concatenate` does, in place."""
        length, kept = new[0].shape[-2], self.num_kept
        if not self.is_writable() or self.end + length > self.storage[0].shape[-2]:
            self.make_room(kept, length)
        start, self.end = self.end, self.end + length
        for storage, each in zip(self.storage, new, strict=True):
            storage.narrow(-2, start, length).copy_(each)
        seen = tuple(storage.narrow(-2, start - kept, kept + length) for storage in self.storage)
        self.tensors, self.is_owned = tuple(keep_last(each, self.size, dim=-2) for each in seen), True
        return seen

    def is_writable(self) -> bool:
        return self.is_owned and (torch.is_inference_mode_enabled() or not self.storage[0].is_inference())

    def make_room(self, kept: int, length: int) -> None:
        """Let the storage begin with the kept columns, and have `length` free columns behind them."""
        shift, space = self.end - kept, self.size + max(self.size // 4, 4 * length)
        fits = self.is_writable() and kept + length <= self.storage[0].shape[-2] <= space
        if fits and kept <= 8 * shift:
            # in at most eight steps, none longer than the shift, so that no step writes what it or a later one reads
            for first in range(0, kept, shift):
                count = min(shift, kept - first)
                for storage in self.storage:
                    storage.narrow(-2, first, count).copy_(storage.narrow(-2, shift + first, count))
        else:
            self.storage = tuple(self.spacious(keep_last(each, self.size, dim=-2), space) for each in self.tensors)
        self.end = kept

    def spacious(self, kept: torch.Tensor, space: int) -> torch.Tensor:
        """Storage of `space` columns that begins with `kept`, and lies along the rows: one query reads it faster so."""
        storage = kept.new_empty(*kept.shape[:-2], kept.shape[-1], space).transpose(-1, -2)
        storage[..., : kept.shape[-2], :] = kept
        return storage

    def detach(self) -> None:
        """Let gradients end here."""
        if any(each.requires_grad for each in self.tensors):
            self.hold(tuple(each.detach() for each in self.tensors))

    def keep(self, count: int) -> None:
        """Drop all but the newest `count` columns."""
        self.tensors = tuple(keep_last(each, count, dim=-2) for each in self.tensors)

    def crop(self, removed: int) -> None:
        """Take the newest `removed` columns back, and keep `size` of the others."""
        whole = [each.narrow(-2, 0, each.shape[-2] - removed) for each in self.tensors]
        self.hold(tuple(keep_last(each, self.size, dim=-2) for each in whole))

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Apply `function` to the tensors, whose first dimension is the batch."""
        self.hold(tuple(function(each) for each in self.tensors))

    def copy(self) -> "RollingBuffer":
        """A buffer that continues from here independently: neither writes what the other sees."""
        other = type(self)(self.size)
        other.hold(self.tensors)
        self.is_owned = False
        return other

    def clear(self) -> None:
        self.hold(())


class ColumnBuffer(RollingBuffer):
    """The same, one column behind the other: what `scaled_dot_product_attention` reads without a copy."""

    def spacious(self, kept: torch.Tensor, space: int) -> torch.Tensor:
        storage = kept.new_empty(*kept.shape[:-2], space, kept.shape[-1])
        storage[..., : kept.shape[-2], :] = kept
        return storage


class StaticRollingBuffer(RollingBuffer):
    """The same in tensors of fixed shape and address, for compiled graphs: filled from the right, empty columns masked."""

    is_static = True

    @property
    def num_kept(self) -> int:
        return self.size

    def hold(self, tensors: Tensors) -> None:
        if not tensors:
            self.tensors = ()
            return
        if not self.tensors:
            self.tensors = tuple(each.new_zeros(*each.shape[:-2], self.size, each.shape[-1]) for each in tensors)
            for each in self.tensors:
                mark_static_address(each)
        for kept, given in zip(self.tensors, tensors, strict=True):
            columns = keep_last(given, self.size, dim=-2)
            kept.narrow(-2, self.size - columns.shape[-2], columns.shape[-2]).copy_(columns.detach())

    def concatenate(
        self, kept: torch.Tensor, new: torch.Tensor, order: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen = gather_columns(torch.cat([kept, new], dim=-2), order, dim=-2)
        return seen, keep_last(seen, self.size, dim=-2)

    def grows_in_place(self, length: int) -> bool:
        return False

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        tensors = tuple(function(each) for each in self.tensors)
        self.tensors = ()
        self.hold(tensors)

    def copy(self) -> "StaticRollingBuffer":
        other = type(self)(self.size)
        other.hold(self.tensors)
        return other

    def clear(self) -> None:
        for each in self.tensors:
            each.zero_()


__all__ = ["ColumnBuffer", "RollingBuffer", "StaticRollingBuffer", "Tensors", "mark_static_address"]
