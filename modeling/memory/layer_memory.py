"""The interface of a memory. A layer, or the model, declares what it remembers as fields of a NamedTuple.

    class ShaRNNMemory(NamedTuple):
        lstm_hidden: RecurrentMemory
        lstm_cell: RecurrentMemory

The same object serves both forms. As a value (`mems`) it holds what was handed in, and a call changes none of it, so that a
layer may run twice (activation checkpointing). In a `MemoryCache` it also keeps what was derived from it.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch

from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.window import SegmentPacking

Shape = tuple[int | None, ...]  # without the batch; None: a number of columns up to the memory's length
LayerMemory = tuple[Any, ...]  # a NamedTuple whose fields are memories


class Memory(ABC):
    """One thing that is remembered of every batch row."""

    is_croppable = False  # whether the newest tokens can be taken back

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """The size of the batch; -1: nothing is remembered yet."""

    @property
    @abstractmethod
    def shapes(self) -> dict[str, Shape]:
        """The tensors of its value, by what is added to the name of the memory."""

    @property
    def changed_rows(self) -> torch.Tensor | None:
        """Which rows (batch,) bool hold something else than a new one; None: that is not seen here."""
        return None

    def use_buffer(self, is_static: bool = False) -> None:  # noqa: B027  most memories keep nothing beside themselves
        """Keep what is projected from now on: the memory of a cache."""

    @abstractmethod
    def start(self, batch: int, like: torch.Tensor) -> None:
        """Remember what `batch` new rows do, in the type and on the device of `like`."""

    @abstractmethod
    def load(self, tensors: Tensors, like: torch.Tensor) -> None:
        """Remember a value: tensors `(B, *shape)` of `shapes`, in their order."""

    @abstractmethod
    def value(self, packing: SegmentPacking | None) -> Tensors:
        """The value, as `load` takes it, after the segment of `packing`, with its graph; None: none was read since."""

    @abstractmethod
    def close(self, packing: SegmentPacking) -> None:
        """Continue from what the segment of `packing` wrote, with its graph: at the end of a call with a cache."""

    def detach(self) -> None:  # noqa: B027  most memories note nothing with a graph
        """Let gradients end in what `close` went on from."""

    @abstractmethod
    def reset_rows(self, reset: torch.Tensor) -> None:
        """Let the rows in `reset` (batch,) bool become new ones, before a segment is read."""

    @abstractmethod
    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Apply `function` to every tensor, whose first dimension is the batch."""

    def crop(self, removed: int) -> None:
        """Take the newest `removed` tokens back.

        Raises:
            ValueError: this memory cannot.
        """
        if removed and not self.is_croppable:
            raise ValueError(f"`tokens_to_remove`={-removed}: a {type(self).__name__} cannot take tokens back.")

    @abstractmethod
    def clear(self) -> None:
        """Forget all rows."""

    def copy(self) -> Self:
        """A memory that continues from here independently."""
        return copy.copy(self)


__all__ = ["LayerMemory", "Memory", "Shape"]
