"""All that a model remembers of a batch: the memories of its layers and its own, and which columns are real."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from transformers_xl.modeling.memory.column_memory import ColumnMemory
from transformers_xl.modeling.memory.layer_memory import LayerMemory, Memory
from transformers_xl.modeling.memory.memory_layout import MemoryLayout
from transformers_xl.modeling.memory.window_memory import WindowMemory
from transformers_xl.modeling.ops.call_parts import CallPart
from transformers_xl.modeling.ops.rolling_buffer import mark_static_address
from transformers_xl.modeling.ops.window import SegmentPacking, drop_full_mask, keep_last


class ModelMemory:
    """What a call of the model reads and writes.

        mems -> load -> open(segment) -> each layer: unprojected, write, extend (or read, write) -> value -> mems
        a cache         open(segment) -> each layer: the same                                    -> close

    Args:
        layers: of every layer, a NamedTuple of memories.
        own: those of the model itself.

    Attributes:
        mask (`torch.Tensor` of shape `(batch, columns)`): bool, columns of the longest window that hold real tokens; None:
            all.
        packing: that of the segment that is being read; None between two.
    """

    def __init__(self, layers: Sequence[LayerMemory], own: LayerMemory = ()):
        self.layers: Sequence[Any] = layers
        self.own: Any = own
        self.layout = MemoryLayout(layers, own)
        self.memories: list[Memory] = [part.memory for part in self.layout.parts]
        self.windows = [memory for memory in self.memories if isinstance(memory, WindowMemory)]
        self.mask: torch.Tensor | None = None
        self.packing: SegmentPacking | None = None
        self.num_before = 0  # columns of the longest window before the segment
        self.is_cache = self.is_static = False

    def use_buffers(self, is_static: bool = False) -> None:
        """Become the memory of a cache, which keeps what is projected."""
        self.is_cache, self.is_static = True, is_static
        for part in self.layout.parts:
            if is_static and not isinstance(part.memory, ColumnMemory):
                raise ValueError(
                    f"`cache_implementation`='static' holds attention memories only, and this model also remembers "
                    f"`{part.name}`: leave it out."
                )
            part.memory.use_buffer(is_static)

    @property
    def segment(self) -> SegmentPacking:
        """The packing of the segment that is being read."""
        assert self.packing is not None, "open() comes first"
        return self.packing

    @property
    def batch(self) -> int:
        """Number of rows; -1: nothing was read yet."""
        return self.memories[0].num_rows if self.memories else -1

    @property
    def longest(self) -> WindowMemory:
        """The window that reaches farthest: `mask` has its columns."""
        reaches = [window.reach for window in self.windows]
        return self.windows[reaches.index(max(reaches))]

    @property
    def num_seen(self) -> int:
        """Number of columns of the longest window that the next segment sees, padding included."""
        seen = [window.num_seen for window in self.windows]
        return max(seen) if seen else 0

    @property
    def num_positions(self) -> int:
        """Number of rows of relative positions that every window has projected."""
        kept = [0 if window.positions is None else window.positions.shape[1] for window in self.windows]
        return min(kept) if kept else 0

    def start(self, batch: int, like: torch.Tensor) -> None:
        """Remember what new rows do, in the type and on the device of `like`."""
        self.mask = None
        for memory in self.memories:
            memory.start(batch, like)

    def load(self, mems: Sequence[torch.Tensor], mems_mask: torch.Tensor | None, like: torch.Tensor) -> None:
        """Remember a value."""
        self.mask = drop_full_mask(mems_mask)
        for memory, tensors in zip(self.memories, self.layout.grouped(mems), strict=True):
            memory.load(tensors, like)

    def memory_mask(self, batch: int, device: torch.device) -> torch.Tensor | None:
        """Which columns hold real tokens, (B, >= num_seen) bool, the newest last; None when all do."""
        if not self.is_static:
            return self.mask
        columns = self.num_seen
        if self.mask is None or self.mask.shape[1] != columns:
            held = min(self.longest.num_held, columns)
            mask = (
                torch.ones(batch, held, dtype=torch.bool, device=device)
                if self.mask is None
                else keep_last(self.mask, held)
            )
            self.mask = torch.cat([mask.new_zeros(batch, columns - held), mask], dim=1)
            mark_static_address(self.mask)
        return self.mask

    def open(
        self, inputs: torch.Tensor, segment_mask: torch.Tensor | None, document_ids: torch.Tensor | None
    ) -> SegmentPacking:
        """Begin the segment `inputs` (B, T, E), whose padding stands on the left."""
        batch, length = inputs.shape[:2]
        if self.batch < 0:
            self.start(batch, inputs)
        self.num_before = self.num_seen
        memory_mask = self.memory_mask(batch, inputs.device)
        self.packing = SegmentPacking(batch, length, inputs.device, memory_mask, segment_mask, document_ids)
        return self.packing

    def value(self, detach: bool = True) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None]:
        """`mems` and `mems_mask` after the segment, if one was read; gradients end there, unless the call continues."""
        mems = self.layout.join([memory.value(self.packing) for memory in self.memories])
        mems = tuple(each.detach() for each in mems) if detach else mems
        if self.packing is None or not self.windows:
            return mems, self.mask
        lengths = [memory.shape[1] for memory in self.layout.windows(mems)]
        longest = self.windows[lengths.index(max(lengths))]
        return mems, drop_full_mask(longest.value_mask(self.packing))

    def close(self, detach: bool = True) -> None:
        """Continue from what the segment wrote: at the end of a call with a cache, where gradients end, or inside it."""
        packing = self.segment
        if self.windows:
            num_columns = self.num_before + packing.length
            self.note_columns(
                packing.next_memory_mask(packing.rows(self.num_before), num_columns),
                packing.limited(self.longest.reach),
            )
        for memory in self.memories:
            memory.close(packing)
            if detach:
                memory.detach()
        self.packing = None

    def read_parts(
        self, parts: Sequence[CallPart], like: torch.Tensor, detach: bool
    ) -> Iterator[tuple[CallPart, "ModelMemory"]]:
        """Each part of a call with the memory that it reads and writes; after the last one this memory is that of the call.

        Args:
            parts: the parts in order. All have to be read.
            like: what `load` takes.
            detach: whether gradients end between the parts.
        """
        here = self
        for index, part in enumerate(parts):
            if not self.is_cache:  # what a part has read stays as it is: checkpointing runs its layers again
                mems = here.value(detach)
                here = self.copy()
                here.load(*mems, like)
            elif index > 0:
                self.close(detach)
            if bool(part.begins.any()):
                here.reset_rows(part.begins)
            yield part, here
        if not self.is_cache:
            self.load(*here.value(detach), like)

    def note_columns(self, valid: torch.Tensor | None, kept: int) -> None:
        """Note which of the `kept` newest columns are worth remembering, of those (B, C) that the segment saw and made."""
        window = self.longest
        if self.is_static:
            self.mask.copy_(keep_last(valid, kept))  # type: ignore[union-attr, arg-type]  # both exist where it is static
        elif window.buffer is None or not window.buffer.records_past:
            self.mask = None if valid is None else drop_full_mask(keep_last(valid, kept))
        elif valid is not None:
            pushed_out = window.num_held - valid.shape[1]
            before = valid.new_ones(valid.shape[0], pushed_out) if self.mask is None else self.mask[:, :pushed_out]
            self.mask = torch.cat([before, valid], dim=1)

    def reset_rows(self, reset: torch.Tensor) -> None:
        """Let the rows in `reset` (batch,) bool become new ones."""
        for memory in self.memories:
            memory.reset_rows(reset)
        if not self.windows or self.longest.num_held == 0:
            return
        held, started = self.longest.num_held, self.longest.num_started
        if self.mask is None and held <= started:
            return  # all columns of all rows are real
        mask = reset.new_ones(len(reset), held) if self.mask is None else self.mask
        columns = torch.arange(mask.shape[1], device=mask.device)
        mask = torch.where(reset[:, None], columns >= mask.shape[1] - started, mask)
        self.mask = mask if self.is_static else drop_full_mask(mask)

    def rows_with_memory(self, batch: int) -> torch.Tensor | None:
        """Rows (B,) bool that remember something; None when no row does."""
        rows = [changed for memory in self.memories if (changed := memory.changed_rows) is not None]
        if self.windows and self.longest.num_held > 0:
            rows.append(torch.ones(batch, dtype=torch.bool) if self.mask is None else self.mask.any(dim=1))
        return torch.stack([each.to(rows[0].device) for each in rows]).any(dim=0) if rows else None

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Apply `function` to every tensor, whose first dimension is the batch."""
        for memory in self.memories:
            memory.map_rows(function)
        self.mask = None if self.mask is None else function(self.mask)

    def crop(self, removed: int) -> None:
        """Take the newest `removed` tokens back, and keep of the others what the windows reach."""
        if self.mask is not None and not self.is_static:
            whole = self.mask.narrow(1, 0, self.mask.shape[1] - removed)
            self.mask = keep_last(whole, self.longest.reach)
        for memory in self.memories:
            memory.crop(removed)

    def clear(self) -> None:
        """Forget all rows."""
        if self.is_static and self.mask is not None:
            self.mask.zero_()
        else:
            self.mask = None
        for memory in self.memories:
            memory.clear()

    def copy(self) -> "ModelMemory":
        """A memory that continues from here independently."""
        copies = {id(part.memory): part.memory.copy() for part in self.layout.parts}
        rebuilt = [type(layer)(*(copies[id(memory)] for memory in layer)) for layer in (*self.layers, self.own)]
        other = ModelMemory(rebuilt[:-1], rebuilt[-1])
        other.is_cache, other.is_static = self.is_cache, self.is_static
        other.mask = self.mask.clone() if self.is_static and self.mask is not None else self.mask
        return other


__all__ = ["ModelMemory"]
