"""The rows of a batch that enter and leave between tokens: the memory of a scheduler, which alone is written to.

    columns of 4 places   | row 0 | row 1 | row 2 |   -   |     a call reads the first 3
    row 1 leaves          | row 0 | row 2 |   -   |   -   |     the last row takes its place
    another one enters    | row 0 | row 2 | new   |   -   |

All rows append at the same column and end there, so that a new one is written so that its newest column stands there too.
"""

from typing import Any

import torch
from transformers import PreTrainedModel

from transformers_xl.modeling.memory.memory_cache import LayerCache, MemoryCache, Tensors
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory, with_count
from transformers_xl.modeling.ops.columns import keep_last


# B rows, C columns of a row, D width
class SlotLayerCache(LayerCache):
    """Room for the columns of `capacity` rows, of which calls read and write the first ones."""

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity
        self.places: list[torch.Tensor] = []  # `storages` are the first rows of them

    def like(self) -> "SlotLayerCache":
        return SlotLayerCache(self.capacity)

    def _move(self, past: Tensors, new: Tensors, needed: int) -> None:
        self._hold(past, past[0].shape[-2], needed + max(needed // 4, 32), new)

    def _hold(self, past: Tensors, count: int, size: int, like: Tensors) -> None:
        """Put the columns of `past` `(B, .., C, D)` into new storages of `size` columns, where they are the newest of
        `count`."""
        rows, unused = len(past[0]), count - past[0].shape[-2]
        self.places = [each.new_empty(self.capacity, *each.shape[1:-2], size, each.shape[-1]) for each in like]
        self.storages, self.end = [each[:rows] for each in self.places], count
        for storage, each in zip(self.storages, past, strict=True):
            storage[..., :unused, :] = 0  # a number of no meaning may be none
            storage[..., unused:count, :] = each

    def _show(self, count: int) -> Tensors:
        self.shown = tuple(each.narrow(-2, self.end - count, count) for each in self.storages)
        return self.shown

    def enter(self, past: Tensors, new: Tensors) -> Tensors:
        """Write the columns of one row `(1, .., c, D)` after those of all rows, `(B, .., C, D)`: as many as either has."""
        count = max(past[0].shape[-2], new[0].shape[-2])
        if past is not self.shown or count > self.end or not self.places:
            self._hold(past, count, count + max(count // 4, 32), new)
        rows = len(past[0])
        self.storages = [each[: rows + 1] for each in self.places]
        for storage, each in zip(self.storages, new, strict=True):
            unused = self.end - each.shape[-2]
            storage[rows, ..., :unused, :] = 0
            storage[rows, ..., unused : self.end, :] = each[0]
        return self._show(count)

    def leave(self, past: Tensors, row: int) -> Tensors:
        """Write the columns of the last row over those of `row`."""
        if past is not self.shown:
            self._hold(past, past[0].shape[-2], past[0].shape[-2] + max(past[0].shape[-2] // 4, 32), past)
        last = len(past[0]) - 1
        for storage in self.storages if row != last else []:
            storage[row, ..., : self.end, :] = storage[last, ..., : self.end, :]
        self.storages = [each[:last] for each in self.places]
        return self._show(past[0].shape[-2])


class SlotCache(MemoryCache):
    """A cache with places for `capacity` rows."""

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity

    def layer_cache(self, layer: int) -> LayerCache:
        while len(self.layer_caches) <= layer:
            self.layer_caches.append(SlotLayerCache(self.capacity))
        return self.layer_caches[layer]


class Slots:
    """The memory of the rows that a scheduler generates, at most `capacity` at a time.

    The columns of windows, and those that a layer appends beside them, have a place for every row: nobody else's are copied
    when a row enters or leaves. What a call replaces by itself (states, compressed vectors) is joined to that of a new row.

    Args:
        model: a language model that remembers.
        capacity: rows at most.
        piece: tokens of the longest call that reads a prompt.
    """

    def __init__(self, model: PreTrainedModel, capacity: int, piece: int):
        self.model, self.capacity = model, capacity
        self.cache = SlotCache(capacity)
        inner: Any = model.model
        like = torch.empty(0, dtype=model.dtype, device=model.device)
        # a piece that follows a full window: it knows of all distances, and what a row looks like
        cache = MemoryCache(inner.new_memory(1, like, static=True))
        ids = torch.zeros(1, piece, dtype=torch.long, device=model.device)
        model(input_ids=ids, past_key_values=cache, logits_to_keep=1)
        self.positions = [layer_cache.positions for layer_cache in cache.layer_caches]
        self.row = held_by(cache)
        self._share_positions(self.cache)

    def _share_positions(self, cache: MemoryCache) -> None:
        for layer, positions in enumerate(self.positions):
            cache.layer_cache(layer).positions = positions

    @property
    def num_rows(self) -> int:
        """Rows that are generated now."""
        return 0 if self.cache.memory is None else self.cache.memory.batch_size

    def new_cache(self, memory: Memory | None) -> MemoryCache:
        """Where the prompt of one row is read, after `memory`."""
        cache = MemoryCache(None if memory is None else memory.to(self.model.device))
        self._share_positions(cache)
        return cache

    def read(self, token_ids: list[int]) -> torch.Tensor:
        """Read the next token of each row; logits `(rows, vocab_size)`."""
        ids = torch.tensor(token_ids, device=self.model.device)[:, None]
        return self.model(input_ids=ids, past_key_values=self.cache).logits[:, -1]

    def enter(self, cache: MemoryCache) -> None:
        """Let the row that was read into `cache` be the last row."""
        new = held_by(cache)
        held = new.rows(slice(0)) if self.cache.memory is None else self.cache.memory
        layers = tuple(
            self._enter_layer(old, each, self.cache.layer_cache(index), cache.layer_cache(index))
            for index, (old, each) in enumerate(zip(held.layers, new.layers, strict=True))
        )
        state = tuple(map(joined, held.state, new.state))
        lengths = torch.cat([held.lengths, new.lengths])
        self.cache.memory = Memory(layers, lengths, torch.cat([held.tokens_read, new.tokens_read]), state)

    def _enter_layer(self, held: LayerMemory, new: LayerMemory, layer_cache: Any, other: LayerCache) -> LayerMemory:
        older = tuple(map(joined, held.older, new.older)) if layer_cache.older is None and other.older is None else ()
        if not older and new.older:
            older = layer_cache.older_cache().enter(held.older, new.older)
        columns = layer_cache.enter(held.columns, new.columns) if new.columns else ()
        memory = LayerMemory(columns, tuple(map(joined, held.state, new.state)), older)
        layer_cache.derived = joined_derived(
            layer_cache.derived if self.num_rows else None, other.derived, memory, self.num_rows
        )
        return memory

    def leave(self, row: int) -> None:
        """Forget a row; the last one takes its number."""
        held = held_by(self.cache)
        last = held.batch_size - 1
        order = [last if index == row else index for index in range(last)]
        layers = tuple(
            self._leave_layer(layer, self.cache.layer_cache(index), row, order)
            for index, layer in enumerate(held.layers)
        )
        if last == 0:
            self.cache.memory = None
            return
        state = tuple(without(each, row) for each in held.state)
        self.cache.memory = Memory(layers, held.lengths[order], held.tokens_read[order], state)

    def _leave_layer(self, held: LayerMemory, layer_cache: Any, row: int, order: list[int]) -> LayerMemory:
        columns = layer_cache.leave(held.columns, row) if held.columns else ()
        older = tuple(without(each, row) for each in held.older) if layer_cache.older is None else ()
        if not older and held.older:
            older = layer_cache.older.leave(held.older, row)
        memory = LayerMemory(columns, tuple(without(each, row) for each in held.state), older)
        move = getattr(layer_cache.derived, "map_rows", None) if order else None
        layer_cache.derived = None if move is None else move(lambda each: each[order], memory)
        return memory

    def memory(self, row: int) -> Memory:
        """A copy of what a row remembers."""
        return own_copy(held_by(self.cache).rows(slice(row, row + 1)), self.model.config.initial_memory)


def held_by(cache: MemoryCache) -> Memory:
    """The memory of a cache that has read something."""
    assert cache.memory is not None, "something was read"
    return cache.memory


def joined(rows: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """`(B, ..)` and `(1, ..)` in one tensor; columns end together."""
    if rows.dim() > 2 and rows.shape[-2] != new.shape[-2]:
        longest = max(rows.shape[-2], new.shape[-2])
        rows, new = with_count(rows, longest), with_count(new, longest)
    return torch.cat([rows, new.to(rows)])


def joined_derived(held: Any, new: Any, memory: LayerMemory, num_rows: int) -> Any:
    """What a layer has derived of `num_rows` rows and of a new one, whose `memory` is this; None: it is derived again."""
    if num_rows == 0:
        move = getattr(new, "map_rows", None)
        return None if move is None else move(lambda each: each, memory)
    join = getattr(held, "join", None)
    return None if join is None or new is None else join(new, memory)


def without(rows: torch.Tensor, row: int) -> torch.Tensor:
    """`(B, ..)` without one row, in whose place the last one is written."""
    last = len(rows) - 1
    if row != last:
        rows[row] = rows[last]
    return rows[:last]


def own_copy(memory: Memory, initial_memory: str) -> Memory:
    """One row with tensors of its own, which may be trained on, without columns that it does not use."""
    length, read = int(memory.lengths), int(memory.tokens_read)
    memory = memory.newest([length] * len(memory.layers))
    if initial_memory == "empty":
        layers = tuple(
            layer._replace(older=tuple(keep_last(each, read, dim=each.dim() - 2) for each in layer.older))
            for layer in memory.layers
        )
        memory = memory._replace(layers=layers)
    with torch.inference_mode(False):
        return memory.map(lambda each: each.clone(memory_format=torch.contiguous_format))


__all__ = ["SlotCache", "SlotLayerCache", "Slots", "own_copy"]
