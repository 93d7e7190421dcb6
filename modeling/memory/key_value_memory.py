"""The window of a layer that another library wrote: the keys and values that it hands to its cache."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from transformers_xl.modeling.memory.recurrent_memory import RecurrentMemory
from transformers_xl.modeling.memory.window_memory import WindowMemory
from transformers_xl.modeling.ops.rolling_buffer import ColumnBuffer, Tensors


# B batch, C columns of the memory, T of the segment, H heads, D head dim
class KeyValueShape(NamedTuple):
    """Heads and widths of what a layer hands to its cache: keys `(B, key_heads, T, key_dim)`, and values."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int

    @property
    def width(self) -> int:
        """Width of a column with both."""
        return self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def join(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Keys and values side by side, `(B, T, width)`."""
        return torch.cat([each.transpose(1, 2).flatten(2) for each in (keys, values)], dim=-1)

    def split(self, columns: torch.Tensor) -> Tensors:
        """Keys and values of `columns` `(B, C, width)`."""
        keys, values = columns.split([self.key_heads * self.key_dim, self.value_heads * self.value_dim], dim=-1)
        return (
            keys.unflatten(-1, (self.key_heads, self.key_dim)).transpose(1, 2),
            values.unflatten(-1, (self.value_heads, self.value_dim)).transpose(1, 2),
        )


class KeyValueMemory(WindowMemory):
    """Keys and values of the last `mem_len - 1` positions: with the token itself, a token sees `mem_len`.

    value     keys and values side by side              (B, <= mem_len - 1, width)
    cache     keys, values                              (B, H, <= mem_len - 1, D)
    """

    def __init__(self, shape: KeyValueShape, mem_len: int):
        super().__init__(mem_len - 1, shape.width, mem_len, same_length=True, starts_with_zeros=False)
        self.shape = shape

    def use_buffer(self, is_static: bool = False) -> None:
        if self.buffer is None and not is_static:
            self.buffer = ColumnBuffer(self.reach)
        super().use_buffer(is_static)

    def read_and_write(self, keys: torch.Tensor, values: torch.Tensor) -> Tensors:
        """Note those of a segment, and return those of `[memory; segment]`, packed: each `(B, H, C + T, D)`.

        As a value it may be called again for the same segment, by a layer that runs twice.
        """
        if self.buffer is None:
            self.write(self.shape.join(keys.detach(), values.detach()))
        past = self.unprojected()
        return self.extend((keys, values), None if past is None else self.shape.split(past.to(keys)))

    def turn(self, rotation: Callable[[Tensors, torch.Tensor], Tensors], shift: torch.Tensor) -> None:
        """Let the tokens stand `shift` (B,) positions later: `rotation` says what keys and values are there."""
        if self.inputs is not None:
            self.inputs = self.shape.join(*rotation(self.shape.split(self.inputs), shift))
        elif self.buffer is not None and self.buffer.tensors:
            self.buffer.hold(rotation(self.buffer.tensors, shift))


class SinkMemory(RecurrentMemory):
    """Keys and values of the first tokens of a text, side by side, `(B, sinks, width)`; the position of a row says how many
    there are. Tokens that are taken back leave theirs behind, which the next ones write over."""

    is_croppable = True

    def moved(self, move: Callable[[torch.Tensor], Tensors], shift: torch.Tensor) -> Tensors:
        """`move(read())`, tensors with the batch first, which depend on `shift` `(B, ...)`: the next segment finds them
        in a cache if it moves them as far."""
        if self.kept_projection and not torch.equal(self.kept_projection[-1], shift):
            self.kept_projection = ()
        return self.projected(lambda state: (*move(state), shift))[:-1]


__all__ = ["KeyValueMemory", "KeyValueShape", "SinkMemory"]
