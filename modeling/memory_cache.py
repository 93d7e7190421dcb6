"""The memory as the attention reads it: projected keys and values, owned by the caller and updated in place."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import Cache

from transformers_xl.modeling.memory.column_memory import ColumnMemory
from transformers_xl.modeling.memory.layer_memory import LayerMemory
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.ops.rolling_buffer import Tensors, mark_static_address


class MemoryCacheLayer:
    """What a layer remembers, as transformers asks for it.

    Attributes:
        memories: the NamedTuple that the layer declared.
        keys, values: of its window, `(batch, heads, columns, head_dim)`, newest last; None where it has none.
    """

    is_croppable = is_sliding = True

    def __init__(self, memories: LayerMemory, is_compileable: bool):
        self.memories, self.is_compileable = memories, is_compileable
        buffers = [memory.buffer for memory in memories if isinstance(memory, ColumnMemory)]
        self.buffers = [buffer for buffer in buffers if buffer is not None]

    @property
    def is_initialized(self) -> bool:
        return any(memory.num_rows >= 0 for memory in self.memories)

    @property
    def keys(self) -> torch.Tensor | None:
        return self.buffers[0].tensors[0] if self.buffers and self.buffers[0].tensors else None

    @property
    def values(self) -> torch.Tensor | None:
        return self.buffers[0].tensors[1] if self.buffers and self.buffers[0].tensors else None

    @property
    def record_past(self) -> bool:
        """Whether tokens can be taken back."""
        return any(buffer.records_past for buffer in self.buffers)

    @record_past.setter
    def record_past(self, value: bool) -> None:
        for buffer in self.buffers:
            buffer.records_past = value

    def get_max_length(self) -> int:
        """-1: a text may have any length."""
        return -1


class MemoryCache(Cache):
    """The memory of a model as its layers read it: made by `model(ids, use_cache=True)` or by `generate()`.

    Passing it back as `past_key_values` continues the text, one token's projections per token. It belongs to the weights
    it was made with, and to one position of one text: `copy()` branches off. Keys and values of its layers are views of
    memory that the next calls write to.

    Attributes:
        memory ([`ModelMemory`]): what the layers read and write.
        ended (`torch.Tensor` of shape `(batch,)`, *optional*): bool, rows that have ended inside `generate()` and
            remember nothing more.

    Args:
        memory: what the model remembers, of `model.build_memory()`.
        static (`bool`): whether the tensors have a fixed shape and address, for `torch.compile`.
    """

    layers: list[MemoryCacheLayer]  # type: ignore[assignment]  # transformers' list may hold other kinds of layers

    def __init__(self, memory: ModelMemory, static: bool = False):
        memory.use_buffers(static)
        layers: list[Any] = [MemoryCacheLayer(each, static) for each in memory.layers]
        super().__init__(layers=layers)
        self.memory, self.static = memory, static
        self.ended: torch.Tensor | None = None
        self.start = None  # what beam search started from, while it runs
        self.num_tokens: int | torch.Tensor = 0
        self.count_from_zero()

    def count_from_zero(self) -> None:
        """Let `get_seq_length()` count the tokens that are read from now on."""
        self.num_tokens = 0
        if self.static:
            # a tensor, as in the static layers of transformers: every number would compile a new graph
            self.num_tokens = torch.zeros((), dtype=torch.long)
            mark_static_address(self.num_tokens)

    @property
    def mask(self) -> torch.Tensor | None:
        """Bool `(batch, columns)`, columns of the longest window that hold real tokens; None: all."""
        return self.memory.mask

    @property
    def num_kept(self) -> int:
        """Number of columns that the next segment sees, padding included."""
        return self.memory.num_seen

    @property
    def batch_size(self) -> int:
        return self.memory.batch

    @property
    def is_compileable(self) -> bool:
        return self.static

    @property
    def is_initialized(self) -> bool:
        return self.memory.batch >= 0

    def get_seq_length(self, layer_idx: int = 0) -> int | torch.Tensor:
        """Number of tokens read since the cache was made, or copied."""
        return self.num_tokens

    def close(self, length: int) -> None:
        """Continue from what a segment of `length` tokens wrote."""
        self.memory.close()
        if isinstance(self.num_tokens, torch.Tensor):
            self.num_tokens.add_(length)
        else:
            self.num_tokens += length

    def take(self, mask: torch.Tensor, keys: Tensors, values: Tensors) -> None:
        """Continue from tensors of a static cache that one more token made: [`~exporting.as_tensors`] names them."""
        self.memory.mask = mask
        for window, *columns in zip(self.memory.windows, keys, values, strict=True):
            window.buffer.tensors = tuple(columns)  # type: ignore[union-attr]  # a cache has buffers
        self.num_tokens += 1

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Apply `function` to every tensor that has a row per batch element."""
        self.memory.map_rows(function)
        self.ended = None if self.ended is None else function(self.ended)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self.map_rows(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.map_rows(lambda rows: rows.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.map_rows(lambda rows: rows[indices.to(rows.device)])

    def activate_past_recording(self) -> None:
        """Allow the tokens read from now on to be taken back, until `crop`."""
        if self.static:
            raise ValueError(
                "A static memory cannot take tokens back: assisted decoding needs `cache_implementation=None`."
            )
        for layer in self.layers:
            layer.record_past = True

    @property
    def records_past(self) -> bool:
        return any(layer.record_past for layer in self.layers)

    def crop(self, tokens_to_remove: int) -> None:
        """Take the newest `-tokens_to_remove` positions back, and cut what is kept to the window again."""
        removed = -tokens_to_remove
        if removed < 0:
            raise ValueError(
                f"`tokens_to_remove`={tokens_to_remove} must be zero or negative: minus the tokens to remove."
            )
        if removed and not self.records_past and any(w.num_held >= w.reach for w in self.memory.windows):
            raise RuntimeError(
                "The window is full and what left it was not recorded: call `activate_past_recording()` first."
            )
        self.memory.crop(removed)
        self.num_tokens -= removed

    def reset(self) -> None:
        self.memory.clear()
        self.ended = None
        self.count_from_zero()

    def finish(self) -> None:
        """Leave `generate()`: the rows may continue, and tokens can no longer be taken back."""
        self.ended = None
        self.start = None
        if not self.static:
            self.memory.crop(0)
            for layer in self.layers:
                layer.record_past = False

    def copy(self, mask: torch.Tensor | None = None) -> "MemoryCache":
        """A memory that continues from here without changing this one; `get_seq_length()` counts from zero.

        `mask` (batch, columns) bool replaces that of this one, where it is given.

        Raises:
            ValueError: `mask` has another shape.
        """
        if mask is not None and tuple(mask.shape) != (self.batch_size, self.num_kept):
            raise ValueError(
                f"`mems_mask` has shape {tuple(mask.shape)}: this cache holds (batch, positions) = "
                f"({self.batch_size}, {self.num_kept}), and knows which are real: leave `mems_mask` out."
            )
        other = MemoryCache(self.memory.copy(), self.static)
        other.finish()
        other.memory.mask = other.memory.mask if mask is None else mask
        return other


__all__ = ["MemoryCache", "MemoryCacheLayer"]
