"""The window of Transformer-XL: what a layer's attention read of the last tokens. https://arxiv.org/abs/1901.02860, 3.2."""

from typing import NamedTuple, Self

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.memory.column_memory import ColumnMemory


class WindowMemory(ColumnMemory):
    """The last `mem_len` inputs of an attention, one column a token.

    Args:
        mem_len: positions that are remembered.
        width: that of an input.
        sliding_window: positions that a token sees right behind a full memory, itself included.
        same_length: whether every token sees so many; else those later in a segment see the segment too.
        starts_with_zeros: whether a fresh row remembers zeros, instead of nothing.
    """

    def __init__(self, mem_len: int, width: int, sliding_window: int, same_length: bool, starts_with_zeros: bool):
        super().__init__(mem_len, width, sliding_window - 1, starts_with_zeros)
        self.sliding_window = sliding_window
        self.nearest = sliding_window if same_length else None

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


class AttentionMemory(NamedTuple):
    """What a Transformer-XL layer remembers: `inputs`, those of its attention."""

    inputs: WindowMemory


__all__ = ["AttentionMemory", "WindowMemory"]
