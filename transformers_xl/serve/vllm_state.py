"""Memories of one size in a pool of bytes: a slot for each text, as vLLM keeps the states of its requests.

Nothing here knows vLLM: the pool is a tensor.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self, cast

import torch

from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory

ALIGNMENT = 64  # bytes: tensors of every type are views of a pool whose slots begin at such places


class StatePart(NamedTuple):
    """One tensor of a memory in a slot.

    Args:
        shape: of one row, without the batch.
        dtype: its type.
        offset: where it begins in the slot, in bytes.
        is_columns: whether it holds the columns of a window, in its last dimension but one, the newest last.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    is_columns: bool


class StateLayout(NamedTuple):
    """Where the tensors of one row's memory stand in a slot of `num_bytes`, by their names (`Memory.named_tensors`)."""

    parts: dict[str, StatePart]
    num_bytes: int

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any) -> Self:
        """The layout of a base `model` (a `MemoryModel`) that remembers keys and values.

        Raises:
            ValueError: its memory has no constant size, or what it says depends on how a text is cut.
        """
        check_size(model)
        cache = MemoryCache()
        model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), past_key_values=cache)
        read = cast(Memory, cache.memory)
        if any(layer.older for layer in read.layers):
            raise ValueError(
                f"A {model.config.model_type} model cannot run in vLLM: it keeps what leaves its window, so that its "
                "memory grows while a text is read, and vLLM gives every request a state of one size. Use the scheduler or "
                "the server of this package."
            )
        most = model.new_memory(1, torch.empty(0, dtype=model.dtype, device=model.device), static=True)
        parts, offset = {}, 0
        for name, tensor in read.named_tensors().items():
            shape, is_columns = tuple(tensor.shape[1:]), ".columns." in name
            if is_columns:
                count = most.layers[int(name.split(".")[1])].num_columns
                shape = (*shape[:-2], count, shape[-1])
            parts[name] = StatePart(shape, tensor.dtype, offset, is_columns)
            offset += _aligned(math.prod(shape) * tensor.dtype.itemsize)
        return cls(parts, offset)

    def views(self, pool: torch.Tensor) -> dict[str, torch.Tensor]:
        """Each tensor of all slots, `(slots, ..)`, of a `pool` `(slots, num_bytes)` uint8."""
        return {name: _view(pool, part) for name, part in self.parts.items()}


def check_size(model: Any) -> None:
    """Check that a base `model` remembers, and the same however its text is cut.

    Raises:
        ValueError: it does not.
    """
    config = model.config
    if config.mem_len == 0:
        raise ValueError(
            f"A {config.model_type} model with `mem_len`=0 cannot run in vLLM: it remembers nothing of the tokens before "
            "a call, and vLLM gives them once. Use `generate()`."
        )
    if not config.same_length:
        raise ValueError(
            "`same_length`=False cannot run in vLLM: what a token sees would depend on where vLLM cuts prompts, that is on "
            "the other requests. Set `same_length` to true in config.json, if the model may read so."
        )


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _view(pool: torch.Tensor, part: StatePart) -> torch.Tensor:
    """One tensor of all slots."""
    length = math.prod(part.shape) * part.dtype.itemsize
    return pool[:, part.offset : part.offset + length].view(part.dtype).view(len(pool), *part.shape)


class StatePool:
    """Memories in the slots of a `pool` `(slots, num_bytes)` uint8, which is written to in place."""

    def __init__(self, layout: StateLayout, pool: torch.Tensor):
        self.layout, self.views = layout, layout.views(pool)

    def read(self, slots: Sequence[int]) -> Memory:
        """A copy of what stands in these slots, one row each, with as many columns as the row that has most."""
        index = torch.tensor(slots, device=self.views["lengths"].device)
        count = int(self.views["lengths"][index].max())

        def rows(name: str, view: torch.Tensor) -> torch.Tensor:
            if self.layout.parts[name].is_columns:
                view = _newest(view, min(count, view.shape[-2]))
            return view.index_select(0, index)

        return Memory.from_named_tensors({name: rows(name, view) for name, view in self.views.items()})

    def write(self, slots: Sequence[int], memory: Memory) -> None:
        """Put the rows of a memory into these slots; unused columns are zeros.

        Raises:
            ValueError: it has other tensors than the slots, or more columns.
        """
        tensors = memory.named_tensors()
        if tensors.keys() != self.views.keys():
            raise ValueError(
                f"The memory has the tensors {sorted(tensors)[:4]}..: the slots have {sorted(self.views)[:4]}... Is it the "
                "memory of this model, from calls with a cache?"
            )
        index = torch.tensor(slots, device=memory.lengths.device)
        for name, tensor in tensors.items():
            view = self.views[name]
            if self.layout.parts[name].is_columns:
                unused = view.shape[-2] - tensor.shape[-2]
                if unused < 0:
                    raise ValueError(f"`{name}` has {tensor.shape[-2]} columns: a slot has {view.shape[-2]}.")
                view.narrow(-2, 0, unused).index_fill_(0, index, 0)  # of the text before, which may hold NaN
                view = _newest(view, tensor.shape[-2])
            view.index_copy_(0, index, tensor)


def _newest(columns: torch.Tensor, count: int) -> torch.Tensor:
    return columns.narrow(-2, columns.shape[-2] - count, count)


__all__ = ["StateLayout", "StatePart", "StatePool"]
