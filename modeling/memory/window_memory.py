"""The window of Transformer-XL: what a layer's attention read of the last tokens. https://arxiv.org/abs/1901.02860, 3.2."""

from typing import NamedTuple, Protocol, Self

import torch

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.memory.column_memory import ColumnMemory
from transformers_xl.modeling.ops.rolling_buffer import Tensors


class WindowMemory(ColumnMemory):
    """The last `mem_len` inputs of an attention, one column a token.

    Args:
        mem_len: positions that are remembered.
        width: that of an input.
        sliding_window: positions that a token sees right behind a full memory, itself included. `mems` hold `mem_len`
            columns, and a cache those that the next token reads: `sliding_window - 1`.
        same_length: whether every token sees so many; else those later in a segment see the segment too.
        starts_with_zeros: whether a new row remembers zeros, instead of nothing.

    Attributes:
        attention_window: positions that each token sees, itself included; None: all that stand before it.
    """

    def __init__(self, mem_len: int, width: int, sliding_window: int, same_length: bool, starts_with_zeros: bool):
        super().__init__(mem_len, width, sliding_window - 1, starts_with_zeros)
        self.sliding_window = sliding_window
        self.attention_window = sliding_window if same_length else None

    @classmethod
    def of(cls, config: MemoryConfig, layer_idx: int) -> Self:
        """That of a layer, as the configuration says."""
        return cls(
            config.layer_mem_lens[layer_idx],
            config.hidden_size,
            config.layer_windows[layer_idx],
            config.same_length,
            config.initial_memory == "zeros",
        )


class BlockWindowMemory(WindowMemory):
    """A window, and fewer than `block_size` inputs that have left it: what moves a memory by blocks (`ops.blocks`).

    Args:
        config: its `hidden_size`, `same_length` and `initial_memory` are those of the window.
        mem_len: positions of the window; 0 where a memory moves as soon as a block is whole.
        block_size: positions of a block.
    """

    def __init__(self, config: MemoryConfig, mem_len: int, block_size: int):
        length, zeros = mem_len + block_size - 1, config.initial_memory == "zeros"
        super().__init__(length, config.hidden_size, length + 1, config.same_length, zeros)
        self.attention_window = mem_len if config.same_length else None
        self.window = mem_len

    def load(self, tensors: Tensors, like: torch.Tensor) -> None:
        super().load(tensors, like)
        self.reach = max(self.length, tensors[0].shape[1])  # of a longer window nothing is dropped: it is to move

    @property
    def num_started(self) -> int:
        return self.window if self.starts_with_zeros else 0


class HasWindow(Protocol):
    """What a layer remembers: at least `inputs`, those of its attention."""

    @property
    def inputs(self) -> WindowMemory: ...


class AttentionMemory(NamedTuple):
    """What a Transformer-XL layer remembers: `inputs`, those of its attention."""

    inputs: WindowMemory


__all__ = ["AttentionMemory", "BlockWindowMemory", "HasWindow", "WindowMemory"]
