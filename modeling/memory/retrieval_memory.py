"""Keys and values of very many tokens, of which the nearest are looked up: Wu et al., 2022, https://arxiv.org/abs/2203.08913,
section 3.

    | keys of complete blocks, the newest `num_keys` | keys of the open block |
                     searched                            not yet

Blocks are counted from the beginning of a text. Nothing that is remembered here has a gradient.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch.nn import functional as F

from transformers_xl.modeling.memory.counter_memory import CounterMemory
from transformers_xl.modeling.memory.key_value_memory import KeyValueShape
from transformers_xl.modeling.memory.layer_memory import Memory, Shape
from transformers_xl.modeling.ops.call_parts import CallPart, CallParts
from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.window import SegmentPacking, drop_full_mask, gather_columns, keep_last

MAX_SCORES = 2**25  # computed at once: what a search takes beside the keys, 128 MiB of float32


class KeyCounts(NamedTuple):
    """Of each row, the same in all layers: how many tokens its open block has, and how many keys are searched."""

    block_position: CounterMemory
    num_searched: CounterMemory


# B batch, T tokens of a call, n of a block, H heads, D head dim, k keys for each token, S slots
class BlockLookup(NamedTuple):
    """The tokens of a call that belong to one block of each row: they search the same keys.

    Keys stand in a ring: that of the p-th token since the memory was made in slot p % size.

    Args:
        part: which tokens these are.
        slots: `(B, n)`, where their own keys are written.
        start: `(B,)`, p of the first token of the block. The keys before it are searched,
        num_searched: `(B,)`, so many.
        first, width: all of these stand in the slots `first .. first + width - 1`. None is searched where `width` is 0.
        visible: `(B, width)` bool, which of these slots each row searches; None: all.
    """

    part: CallPart
    slots: torch.Tensor
    start: torch.Tensor
    num_searched: torch.Tensor
    first: int
    width: int
    visible: torch.Tensor | None


class Lookups(NamedTuple):
    """What a call looks up and remembers, block by block, in every layer that remembers keys.

    Args:
        parts: the parts of the call.
        blocks: what each looks up.
        end: `(B,)`, number of keys that each row has written since the memory was made.
        num_columns: largest number of keys that a row remembers after the call.
        num_slots: slots that the call needs.
    """

    parts: CallParts
    blocks: list[BlockLookup]
    end: torch.Tensor
    num_columns: int
    num_slots: int


class KeySearch:
    """Finds the keys that have the largest products with a query: exactly, by a matrix product."""

    def find(
        self, query: torch.Tensor, keys: torch.Tensor, lookup: BlockLookup, count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            query: `(B, H, n, D)`.
            keys: the ring, `(B, H, S, D)`.
            lookup: which of its slots are searched.
            count: how many keys to find for each query.

        Returns:
            The slots `(B, H, n, count)` of the keys, and whether there is such a key, bool.
        """
        keys, limit = keys.narrow(2, lookup.first, lookup.width), min(count, lookup.width)
        hidden = None if lookup.visible is None else ~lookup.visible[:, None, None]
        found = []
        for part in query.split(max(MAX_SCORES // keys[..., 0].numel(), 1), dim=2):
            scores = part @ keys.mT
            found.append((scores if hidden is None else scores.masked_fill_(hidden, -torch.inf)).topk(limit))
        scores, slots = (torch.cat(each, dim=2) for each in zip(*found, strict=True))
        missing = (0, count - limit)
        return F.pad(slots + lookup.first, missing), F.pad(scores > -torch.inf, missing)

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor], num_rows: int) -> None:
        """Follow rows that move: `function` is applied to tensors whose first dimension is the batch."""

    def clear(self) -> None:
        """Forget the ring: the next one is another."""

    def copy(self) -> "KeySearch":
        """A search for a copy of the ring."""
        return self


class RetrievalMemory(Memory):
    """Keys and values of the newest tokens of each row.

        value     side by side, newest last                 (B, <= num_keys + block_length - 1, width)
        cache     keys and values in a ring, in place       (B, H, <= num_keys + block_length, D)

    How many columns are a row's own, `KeyCounts` say.

    Args:
        num_keys: keys that are searched at most.
        block_length: tokens of a block.
        shape: heads and widths of keys and values.
        search: how a cache finds keys; values are always searched exactly.
    """

    def __init__(self, num_keys: int, block_length: int, shape: KeyValueShape, search: KeySearch):
        self.num_keys, self.block_length, self.shape = num_keys, block_length, shape
        self.size = num_keys + block_length  # no slot is written that the same block searches
        self.search = search
        self.columns: torch.Tensor | None = None
        self.ring: Tensors = ()
        self.end: torch.Tensor | None = None  # (B,) keys that were ever written to the ring
        self.new: tuple[Tensors, Lookups] | None = None
        self.is_cache = False
        self.is_owned = True  # whether nobody else reads the ring

    @property
    def shapes(self) -> dict[str, Shape]:
        return {"": (None, self.shape.width)}

    @property
    def num_rows(self) -> int:
        held = self.ring[0] if self.ring else self.columns
        return -1 if held is None else len(held)

    def use_buffer(self, is_static: bool = False) -> None:
        self.is_cache = True

    def start(self, batch: int, like: torch.Tensor) -> None:
        self.load((like.new_zeros(batch, 0, self.shape.width),), like)

    def load(self, tensors: Tensors, like: torch.Tensor) -> None:
        self.columns = keep_last(tensors[0], self.size - 1).to(like.dtype)
        self.ring, self.new, self.is_owned = (), None, True
        self.end = torch.full((len(self.columns),), self.columns.shape[1], device=self.columns.device)
        self.search.clear()

    def plan(self, packing: SegmentPacking, counts: KeyCounts) -> Lookups:
        """What a call looks up; `counts` follow."""
        assert self.end is not None, "start() or load() comes first"
        end, position = self.end.to(packing.device), counts.block_position.read()
        searched = counts.num_searched.read().minimum(end - position).clamp(0, self.num_keys)
        parts, blocks = CallParts.of(packing, position, self.block_length), []
        for part in parts.parts:
            position, searched = (each.masked_fill(part.begins, 0) for each in (position, searched))
            start, slots = end - position, (end[:, None] + part.valid.cumsum(1) - 1) % self.size
            blocks.append(BlockLookup(part, slots, start, searched, *self.slots_of(start, searched)))
            end, position = (each + part.valid.sum(1) for each in (end, position))
            is_whole = position == self.block_length
            position = position.masked_fill(is_whole, 0)
            searched = torch.where(is_whole, searched + self.block_length, searched).clamp(max=self.num_keys)
        counts.block_position.write(position)
        counts.num_searched.write(searched)
        return Lookups(parts, blocks, end, int((position + searched).max()), min(int(end.max()), self.size))

    def slots_of(self, start: torch.Tensor, searched: torch.Tensor) -> tuple[int, int, torch.Tensor | None]:
        """`first`, `width` and `visible` of a [`BlockLookup`]."""
        if not bool(searched.any()):
            return 0, 0, None
        last = int(start.max())
        oldest = int((start - searched).where(searched > 0, last).min())
        is_whole = oldest // self.size < (last - 1) // self.size  # the ring is read around its end
        first, width = (0, self.size) if is_whole else (oldest % self.size, last - oldest)
        slots = torch.arange(first, first + width, device=start.device)
        return first, width, drop_full_mask((start[:, None] - 1 - slots) % self.size < searched[:, None])

    @torch.no_grad()
    def open(self, lookups: Lookups, like: torch.Tensor) -> Tensors:
        """The ring with room for what a call writes. As a value it is made again, so that a layer may run twice."""
        ring = self.ring
        if not ring:
            assert self.columns is not None, "start() or load() comes first"
            columns = self.columns.to(like)
            ring = tuple(grown(each, lookups.num_slots) for each in self.shape.split(columns))
            self.is_owned = True
        elif ring[0].shape[2] < lookups.num_slots:
            ring = tuple(grown(each, min(max(2 * each.shape[2], lookups.num_slots), self.size)) for each in ring)
            self.is_owned = True
        elif not self.is_owned or (ring[0].is_inference() and not torch.is_inference_mode_enabled()):
            ring, self.is_owned = tuple(each.clone() for each in ring), True
        self.new = ring, lookups
        if self.is_cache:
            self.ring, self.columns = ring, None
        return ring

    @torch.no_grad()
    def find(self, query: torch.Tensor, keys: torch.Tensor, lookup: BlockLookup, count: int) -> Tensors:
        """As [`KeySearch.find`]."""
        return (self.search if self.is_cache else EXACT_SEARCH).find(query, keys, lookup, count)

    @torch.no_grad()
    def write(self, new: Tensors, lookup: BlockLookup) -> None:
        """Remember keys and values of the tokens of a block, each `(B, H, n, D)`."""
        assert self.new is not None, "open() comes first"
        rows = torch.arange(len(lookup.slots), device=lookup.slots.device)[:, None].expand_as(lookup.slots)
        rows, slots = rows[lookup.part.valid], lookup.slots[lookup.part.valid]
        for ring, each in zip(self.new[0], new, strict=True):
            ring[rows, :, slots] = each.detach().transpose(1, 2)[lookup.part.valid]

    def value(self, packing: SegmentPacking | None) -> Tensors:
        if self.new is None:
            assert self.columns is not None, "start() or load() comes first"
            return (self.columns,)
        ring, lookups = self.new
        places = lookups.end[:, None] + torch.arange(-lookups.num_columns, 0, device=lookups.end.device)
        keys, values = (gather_columns(each, places.clamp(min=0) % self.size, dim=2) for each in ring)
        return (self.shape.join(keys, values),)

    def close(self, packing: SegmentPacking) -> None:
        if self.new is not None:
            self.end, self.new = self.new[1].end, None

    def reset_rows(self, reset: torch.Tensor) -> None:
        pass  # the counts of a new row say that none of these keys is its own

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.search.map_rows(function, self.num_rows)
        self.columns = None if self.columns is None else function(self.columns)
        self.end = None if self.end is None else function(self.end)
        self.ring = tuple(function(each) for each in self.ring)

    def clear(self) -> None:
        self.columns = self.end = self.new = None
        self.ring, self.is_owned = (), True
        self.search.clear()

    def copy(self) -> Self:
        other = super().copy()
        other.search = self.search.copy()
        self.is_owned = other.is_owned = False
        return other


EXACT_SEARCH = KeySearch()


def grown(states: torch.Tensor, size: int) -> torch.Tensor:
    """A copy of `states` `(B, H, S, D)` with room for `size` columns."""
    storage = states.new_zeros(*states.shape[:2], max(size, states.shape[2]), states.shape[3])
    storage[:, :, : states.shape[2]] = states
    return storage


__all__ = ["BlockLookup", "KeyCounts", "KeySearch", "Lookups", "RetrievalMemory"]
