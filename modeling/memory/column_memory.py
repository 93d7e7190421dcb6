"""Vectors that stand side by side, the newest last, which an attention reads behind those of its segment."""

from collections.abc import Callable
from typing import Self

import torch

from transformers_xl.modeling.memory.layer_memory import Memory, Shape
from transformers_xl.modeling.ops.key_mask import ALL_VISIBLE, KeyMask
from transformers_xl.modeling.ops.rolling_buffer import RollingBuffer, StaticRollingBuffer, Tensors
from transformers_xl.modeling.ops.window import SegmentPacking, gather_columns, keep_last


# B batch, C columns of the memory, T of the segment, E width, H heads, D head dim
class ColumnMemory(Memory):
    """The last `length` columns, each a vector of `width`.

        value     inputs                                    (B, <= length, E)
        cache     keys, values, or what else is projected   (B, H, <= reach, D), and the inputs only until then

    An attention asks for what is not projected yet, and hands in the projections of both:

        past = memory.unprojected()
        memory.write(hidden_states)
        key, value = memory.extend(project(hidden_states), None if past is None else project(past))

    What moves in a segment of s tokens:

        load      | m m m m m |                 a value; a cache has it already
        extend    | m m m m m | s s |           what the attention reads, packed
        value         | m m m s s |             the newest `length`; a cache keeps the newest `reach` (close)

    How many columns there are:

        length      at most, in the value
        reach       at most, that a segment reads: a window of `n` positions has the token itself and `n - 1` columns
        num_held    now
        num_seen    now, of those that the next segment reads

    Args:
        length: columns that its value has at most.
        width: that of a column.
        reach: columns that a segment reads; all when not given.
        starts_with_zeros: whether a new row remembers `length` vectors of zeros, instead of nothing.
    """

    is_croppable = True

    def __init__(self, length: int, width: int, reach: int | None = None, starts_with_zeros: bool = False):
        self.length, self.width = length, width
        self.reach = length if reach is None else reach
        self.starts_with_zeros = starts_with_zeros
        self.inputs: torch.Tensor | None = None
        self.new: torch.Tensor | None = None
        self.buffer: RollingBuffer | None = None
        self.restarted: torch.Tensor | None = None  # (B,) rows of the buffer whose zeros are not projected yet
        self.key_mask: KeyMask = ALL_VISIBLE  # what the queries of this segment see
        self.positions: torch.Tensor | None = None  # (H, distances, D): what a cache keeps of relative positions

    @classmethod
    def with_mask(cls, key_mask: KeyMask = ALL_VISIBLE) -> "ColumnMemory":
        """An empty memory, for an attention that is called on its own."""
        memory = ColumnMemory(0, 0)
        memory.key_mask = key_mask
        return memory

    @property
    def shapes(self) -> dict[str, Shape]:
        return {"": (None, self.width)}

    @property
    def num_rows(self) -> int:
        held = self.held
        return -1 if held is None else len(held)

    @property
    def held(self) -> torch.Tensor | None:
        """One of the tensors that are held, `(B, .., C, D)`."""
        return self.buffer.tensors[0] if self.buffer is not None and self.buffer.tensors else self.inputs

    @property
    def num_held(self) -> int:
        """Number of columns that are held, those included that only a longer segment would see."""
        return 0 if self.held is None else self.held.shape[-2]

    def use_buffer(self, is_static: bool = False) -> None:
        if self.buffer is None:
            self.buffer = (StaticRollingBuffer if is_static else RollingBuffer)(self.reach)

    def start(self, batch: int, like: torch.Tensor) -> None:
        self.inputs, self.new = like.new_zeros(batch, self.num_started, self.width), None

    @property
    def num_started(self) -> int:
        """Number of columns that a new row remembers: zeros."""
        return self.length if self.starts_with_zeros else 0

    def load(self, tensors: Tensors, like: torch.Tensor) -> None:
        self.inputs, self.new = tensors[0].to(like.dtype), None

    @property
    def num_seen(self) -> int:
        """Number of columns that the next segment sees."""
        if self.buffer is not None and (self.buffer.tensors or self.buffer.is_static):
            return self.buffer.num_kept
        return 0 if self.inputs is None else min(self.inputs.shape[1], self.reach)

    def unprojected(self) -> torch.Tensor | None:
        """The columns `(B, <= reach, E)` that `extend` wants projected beside those of the segment; None: none."""
        memory = None if self.inputs is None else keep_last(self.inputs, self.reach)
        return None if memory is None or memory.shape[1] == 0 else memory

    def write(self, inputs: torch.Tensor) -> None:
        """Note the segment's columns, `(B, T, E)`."""
        self.new = inputs

    def extend(self, new: Tensors, past: Tensors | None = None) -> Tensors:
        """The projections `(B, H, C + T, D)` of `[memory; segment]`, packed."""
        if self.key_mask.device not in (None, new[0].device):  # layers may stand on different ones
            self.key_mask = self.key_mask.to(new[0].device)
        order = self.key_mask.order
        if self.buffer is None:
            if past is not None:  # apart from the segment: no gradient is computed for what needs none
                new = tuple(torch.cat(pair, dim=-2) for pair in zip(past, new, strict=True))
            return tuple(gather_columns(each, order, dim=-2) for each in new)
        if past is not None:
            self.project_into(self.buffer, past)
        self.inputs = self.restarted = None
        return self.buffer.extend(new, order)

    def project_into(self, buffer: RollingBuffer, past: Tensors) -> None:
        if self.restarted is not None and buffer.tensors:
            rows = self.restarted[:, None, None, None].to(past[0].device)
            past = tuple(torch.where(rows, *pair) for pair in zip(past, buffer.tensors, strict=True))
        buffer.hold(past)

    def keep_positions(self, positions: torch.Tensor) -> None:
        """Keep what an attention projected of the relative positions, `(H, distances, D)`."""
        if self.buffer is not None and self.buffer.is_static:
            # those of one token to come: a graph would be made again for every length of a prompt
            positions = keep_last(positions, self.reach + 2).mT.contiguous().mT
        self.positions = positions

    def value(self, packing: SegmentPacking | None) -> Tensors:
        assert self.inputs is not None, "start() or load() comes first"
        if packing is None or self.new is None:
            return (self.inputs,)
        kept, added = packing.lengths(self.inputs.shape[1], self.length)
        order, length = packing.rows(kept, added).order, packing.limited(self.length)
        both = torch.cat(
            [keep_last(self.inputs, kept).to(self.new), keep_last(self.new, added)], dim=1
        )  # on the layer's device
        return (keep_last(gather_columns(both, None if order is None else keep_last(order, length)), length),)

    def value_mask(self, packing: SegmentPacking) -> torch.Tensor | None:
        """Which columns of the value are real, `(B, <= length)` bool; None: all."""
        assert self.inputs is not None, "start() or load() comes first"
        return packing.next_memory_mask(
            packing.rows(*packing.lengths(self.inputs.shape[1], self.length)), packing.limited(self.length)
        )

    def close(self, packing: SegmentPacking) -> None:
        self.new, self.key_mask = None, ALL_VISIBLE
        if packing.limit is not None and self.buffer is not None:
            self.buffer.keep(packing.limit)

    def detach(self) -> None:
        if self.buffer is not None:
            self.buffer.detach()

    def reset_rows(self, reset: torch.Tensor) -> None:
        if not self.starts_with_zeros:
            return  # their columns are masked
        if self.inputs is not None:
            self.inputs = self.inputs.masked_fill(reset[:, None, None].to(self.inputs.device), 0)
        elif self.buffer is not None and self.buffer.tensors:
            kept = self.buffer.tensors[0]
            self.inputs, self.restarted = kept.new_zeros(kept.shape[0], self.num_held, self.width), reset

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.inputs = None if self.inputs is None else function(self.inputs)
        self.restarted = None if self.restarted is None else function(self.restarted)
        if self.buffer is not None:
            self.buffer.map_rows(function)

    def crop(self, removed: int) -> None:
        if self.buffer is not None and self.buffer.tensors:
            self.buffer.crop(removed)

    def clear(self) -> None:
        self.inputs = self.new = self.restarted = None
        if self.buffer is not None:
            self.buffer.clear()
            self.positions = self.positions if self.buffer.is_static else None

    def copy(self) -> Self:
        other = super().copy()
        other.buffer = None if self.buffer is None else self.buffer.copy()
        return other


__all__ = ["ColumnMemory"]
