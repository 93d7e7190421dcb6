"""Where transformers' `generate()` keeps the memory: the one place that is written to."""

from typing import Any

import torch
from transformers import Cache

from transformers_xl.modeling.memory.memory_value import Memory, cat_memories
from transformers_xl.modeling.ops.columns import computing_dtype, keep_last

Tensors = tuple[torch.Tensor, ...]


def mark_static_address(tensor: torch.Tensor) -> None:
    """Tell the compiler that a tensor stays where it is. The call is private: without it, CUDA records graphs again."""
    mark = getattr(getattr(torch, "_dynamo", None), "mark_static_address", None)
    if mark is not None and not torch.compiler.is_compiling():
        mark(tensor)


class LayerCache:
    """What a cache keeps for one layer, beside its memory: storage with free space after the columns, where those of the
    next token are written; the projections of relative positions, `(heads, distances, head_dim)`; and `derived`, what the
    layer computed from its memory, which is dropped when rows move, unless it has a `map_rows(function, layer_memory)`.
    `older` is another one for the columns of `LayerMemory.older`, where a layer appends to these too.

    Columns that a memory shows are not written to, except in a static cache and in a ring.
    """

    is_ring = False  # whether columns are written over, in turn

    def __init__(self) -> None:
        self.positions: torch.Tensor | None = None
        self.derived: Any = None
        self.older: LayerCache | None = None
        self.storages: list[torch.Tensor] = []
        self.end = 0  # of what is written
        self.shown: Tensors | None = None  # the columns of a memory that end there

    def older_cache(self) -> "LayerCache":
        """That of older columns."""
        if self.older is None:
            self.older = self.like()
        return self.older

    def like(self) -> "LayerCache":
        """An empty one of this kind."""
        return LayerCache()

    def append(self, past: Tensors, new: Tensors) -> Tensors:
        """`[past; new]` of columns `(B, .., C, D)` and `(B, .., T, D)`: views of the storage."""
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
        static (`bool`): whether tensors keep their shapes and addresses over all steps, for `torch.compile`. A call then
            overwrites what `.memory` was after the one before it; the argument `memory` is copied.

    Attributes:
        ended (`torch.Tensor` of shape `(batch,)`, *optional*): bool, rows that have ended inside `generate()` and read
            nothing more, where shapes may not change. Elsewhere they read on, so that all rows are alike.
        aside: by row number, what rows that ended remember until `finish`, where `ended` is not used.
        records_past: whether nothing is dropped, so that tokens can be taken back.
        is_stateful: whether it holds a state that no token can be taken back from; the model that writes it says so.
    """

    def __init__(self, memory: Memory | None = None, static: bool = False):
        super().__init__(layers=[])
        self.static, self.records_past, self.is_stateful = static, False, False
        self.layer_caches: list[LayerCache] = []
        self.ring: Any = None  # where a compiled step keeps the memory
        self.ended: torch.Tensor | None = None
        self.aside: dict[int, Memory] = {}
        self.placed: Memory | None = None  # tensors of a static cache
        self.source: Any = None  # what the decoder of an encoder-decoder reads: no row of it moves inside `generate()`
        self.num_tokens: int | torch.Tensor = 0
        self.num_repeated = 0  # tokens at the beginning of a prompt that were read before
        self.computed_in: torch.dtype | None = None  # the type of the last call: that of autocast, where it is on
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
        self.memory = self._placed(memory) if self.static else memory
        self.num_tokens += length

    def _placed(self, memory: Memory) -> Memory:
        """The memory in tensors of this cache alone: a recorded graph (CUDA) reads and writes them where they are."""
        new, placed = list(memory.named_tensors().values()), self.placed
        own = [] if placed is None else list(placed.named_tensors().values())
        if placed is None or self._memory is not placed or [e.shape for e in own] != [e.shape for e in new]:
            placed = self.placed = memory.map(lambda each: each.clone(memory_format=torch.contiguous_format))
            for each in placed.named_tensors().values():
                mark_static_address(each)
            return placed
        for old, each in zip(own, new, strict=True):
            old.copy_(each)
        return placed

    def keep_distances(self, count: int) -> None:
        """Forget the projections of relative positions but for the nearest `count`: those of one token."""
        for layer_cache in self.layer_caches:
            if layer_cache.positions is not None and layer_cache.positions.shape[1] > count:
                layer_cache.positions = keep_last(layer_cache.positions, count).mT.contiguous().mT

    def follow_type(self, like: torch.Tensor) -> None:
        """Drop what layers keep, where a call computes in another type than the one before it: autocast began, or ended."""
        dtype = computing_dtype(like)
        if self.computed_in not in (None, dtype):
            self.layer_caches = []
        self.computed_in = dtype

    def layer_cache(self, layer: int) -> LayerCache:
        """That of a layer."""
        while len(self.layer_caches) <= layer:
            self.layer_caches.append(LayerCache())
        return self.layer_caches[layer]

    def _map_rows(self, function: Any) -> None:
        self.memory = None if self.memory is None else self.memory.map(function)
        self.ended = None if self.ended is None else function(self.ended)
        if self.memory is not None:
            for layer_cache, layer in zip(self.layer_caches, self.memory.layers, strict=False):
                move = getattr(layer_cache.derived, "map_rows", None)
                layer_cache.derived = None if move is None else move(function, layer)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._map_rows(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map_rows(lambda rows: rows.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._map_rows(lambda rows: rows[indices.to(rows.device)])

    def end_rows(self, rows: torch.Tensor) -> None:
        """Let `rows` (batch,) bool remember nothing more inside `generate()`."""
        if self.static or self.ring is not None:
            self.ended = rows if self.ended is None else rows | self.ended
            return
        new = [row for row in rows.nonzero().flatten().tolist() if row not in self.aside]
        if self.memory is not None and len(self.aside) + len(new) < self.batch_size:  # else nobody reads on
            self.aside |= {row: self.memory.rows([row]) for row in new}

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
            ValueError: the number is positive, or the memory has a state.
            RuntimeError: they have pushed others out of the window, which nobody recorded.
        """
        if tokens_to_remove > 0:
            raise ValueError(
                f"`tokens_to_remove`={tokens_to_remove} must be zero or negative: minus the tokens to remove."
            )
        if tokens_to_remove == 0 or self.memory is None:
            return
        if self.is_stateful:
            raise ValueError(
                f"`tokens_to_remove`={tokens_to_remove}: this memory has a state, and no token can be taken back from it. "
                "As an assistant use a model that remembers a window alone."
            )
        if not self.records_past and bool((self.memory.tokens_read > self.memory.lengths).any()):
            raise RuntimeError("What left the window was not recorded: call `activate_past_recording()` first.")
        self.memory = self.memory.without(-tokens_to_remove)
        self.num_tokens += tokens_to_remove

    def reset(self) -> None:
        """Forget all rows."""
        self.memory = self.ended = self.placed = None
        self.aside, self.num_tokens = {}, 0
        if self.static:  # a number would compile a new graph at every step
            self.num_tokens = torch.zeros((), dtype=torch.long)
            mark_static_address(self.num_tokens)

    def finish(self) -> None:
        """Leave `generate()`: rows may continue, and tokens can no longer be taken back."""
        self.ended, self.records_past, self.num_repeated = None, False, 0
        if self.memory is not None and self.aside:
            order = list(range(self.batch_size))
            for index, row in enumerate(self.aside):
                order[row] = self.batch_size + index
            self.memory = cat_memories([self.memory, *self.aside.values()]).rows(order)
        self.aside = {}


__all__ = ["LayerCache", "MemoryCache"]
