"""Where transformers' `generate()` keeps the memory: the one place that is written to."""

from typing import Any

import torch
from transformers import Cache

from transformers_xl.modeling.memory_value import Memory

Tensors = tuple[torch.Tensor, ...]


class LayerRoom:
    """What a cache keeps for one layer, beside its memory: room behind the columns, where those of the next token are
    written, the projections of relative positions, `(heads, distances, head_dim)`, and what a variant has `derived` from
    the memory. That says itself whose it is, and follows its rows with `map_rows(function, memory)`.

    No column that a memory shows is written to.
    """

    is_ring = False  # whether columns are written over, in turn

    def __init__(self) -> None:
        self.positions: torch.Tensor | None = None
        self.derived: Any = None
        self.storages: list[torch.Tensor] = []
        self.end = 0  # of what is written
        self.shown: Tensors | None = None  # the columns of a memory that end there

    def append(self, past: Tensors, new: Tensors) -> Tensors:
        """`[past; new]` of columns `(B, .., C, D)` and `(B, .., T, D)`: views of the room."""
        kept, added = past[0].shape[-2], new[0].shape[-2]
        has_room = past is self.shown and self.end + added <= self.storages[0].shape[-2]
        if not has_room or (self.storages[0].is_inference() and not torch.is_inference_mode_enabled()):
            self._move(past, new, kept + added)
        for storage, each in zip(self.storages, new, strict=True):
            storage.narrow(-2, self.end, added).copy_(each)
        self.end += added
        return tuple(each.narrow(-2, self.end - kept - added, kept + added) for each in self.storages)

    def _move(self, past: Tensors, new: Tensors, needed: int) -> None:
        size, kept = needed + max(needed // 4, 32), past[0].shape[-2]
        self.storages = [each.new_empty(*each.shape[:-2], size, each.shape[-1]) for each in new]
        for storage, each in zip(self.storages, past, strict=True):
            storage.narrow(-2, 0, kept).copy_(each)
        self.end = kept


class MemoryCache(Cache):
    """A memory for `past_key_values`: made by `model(ids, use_cache=True)` or by `generate()`.

    Its columns are keys and values. To continue a text in two ways, make two caches of one memory: `MemoryCache(memory)`.

    Args:
        memory: what is remembered; nothing when not given.
        static (`bool`): whether all tensors have one shape for all steps, for `torch.compile`.

    Attributes:
        ended (`torch.Tensor` of shape `(batch,)`, *optional*): bool, rows that have ended inside `generate()` and remember
            nothing more.
        records_past: whether nothing is dropped, so that tokens can be taken back.
    """

    def __init__(self, memory: Memory | None = None, static: bool = False):
        super().__init__(layers=[])
        self.static, self.records_past = static, False
        self.rooms: list[LayerRoom] = []
        self.reset()
        self.memory = memory

    @property
    def memory(self) -> Memory | None:
        """What is remembered ([`Memory`]); None: nothing yet."""
        if self.ring is not None:
            self.memory = self.ring.memory(self.ended)
        return self._memory

    @memory.setter
    def memory(self, memory: Memory | None) -> None:
        self._memory, self.ring = memory, None

    @property
    def batch_size(self) -> int:
        """Number of rows; -1: nothing is remembered yet."""
        return -1 if self._memory is None else self._memory.batch_size

    @property
    def is_compileable(self) -> bool:
        return self.static

    @property
    def is_initialized(self) -> bool:
        return self._memory is not None

    def get_seq_length(self, layer_idx: int = 0) -> int | torch.Tensor:
        """Number of tokens that were read since the cache was made."""
        return self.num_tokens

    def update_memory(self, memory: Memory, length: int) -> None:
        """Hold what is remembered after `length` more tokens."""
        self.memory = memory
        self.num_tokens = self.num_tokens + length

    def room(self, layer: int) -> LayerRoom:
        """That of a layer."""
        while len(self.rooms) <= layer:
            self.rooms.append(LayerRoom())
        return self.rooms[layer]

    def _map_rows(self, function: Any) -> None:
        self.memory = None if self.memory is None else self.memory.map(function)
        self.ended = None if self.ended is None else function(self.ended)
        for index, room in enumerate(self.rooms):
            if room.derived is not None and self.memory is not None:
                room.derived = room.derived.map_rows(function, self.memory.layers[index])

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._map_rows(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map_rows(lambda rows: rows.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._map_rows(lambda rows: rows[indices.to(rows.device)])

    def activate_past_recording(self) -> None:
        """Allow the tokens that are read from now on to be taken back, until `finish`."""
        if self.static:
            raise ValueError(
                "A static memory cannot take tokens back: assisted decoding needs `cache_implementation=None`."
            )
        self.records_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Take the newest `-tokens_to_remove` tokens back.

        Raises:
            ValueError: the number is positive.
            RuntimeError: they have pushed others out of the window, which nobody recorded.
        """
        if tokens_to_remove > 0:
            raise ValueError(
                f"`tokens_to_remove`={tokens_to_remove} must be zero or negative: minus the tokens to remove."
            )
        if tokens_to_remove == 0 or self.memory is None:
            return
        if not self.records_past and bool((self.memory.tokens_read > self.memory.lengths).any()):
            raise RuntimeError("What left the window was not recorded: call `activate_past_recording()` first.")
        self.memory = self.memory.without(-tokens_to_remove)
        self.num_tokens += tokens_to_remove

    def reset(self) -> None:
        """Forget all rows."""
        self.ring: Any = None  # where a compiled step keeps the memory
        self.memory = None
        self.ended: torch.Tensor | None = None
        self.num_tokens: int | torch.Tensor = 0
        if self.static:  # a number would compile a new graph at every step
            self.num_tokens = torch.zeros((), dtype=torch.long)

    def finish(self) -> None:
        """Leave `generate()`: rows may continue, and tokens can no longer be taken back."""
        self.ended, self.records_past = None, False


__all__ = ["LayerRoom", "MemoryCache"]
