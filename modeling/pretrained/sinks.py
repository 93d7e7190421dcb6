"""Attention sinks: Xiao et al., 2023, https://arxiv.org/abs/2309.17453, section 3.2.

The first tokens of a text stay when the window moves on. They stand right in front of the window that the first token of a
call has, so that no distance exceeds those of the window by more than the sinks and the call: what a token sees of them
depends on where its call begins.
"""

from typing import NamedTuple

import torch

from transformers_xl.modeling.memory.key_value_memory import KeyValueMemory, SinkMemory
from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.window import gather_columns
from transformers_xl.modeling.pretrained.places import Places
from transformers_xl.modeling.pretrained.rotation import LayerRotation


class WindowAndSinks(NamedTuple):
    """What a layer remembers that has sinks."""

    window: KeyValueMemory
    sinks: SinkMemory


# B batch, T segment, N sinks, H heads, D head dim
class SinkPlan(NamedTuple):
    """What a call does with the sinks of all layers.

    `are_seen`: whether a token has them behind its window, so that they stand in front of it. `columns` (B, N): where in
    the segment the sinks stand that are new; `are_new` (B, N) bool; both None where all are old. `shift` (B,): how far
    they move on from where they were read; None where none does.
    """

    are_seen: bool
    columns: torch.Tensor | None
    are_new: torch.Tensor | None
    shift: torch.Tensor | None

    @classmethod
    def of(cls, places: Places, num_sinks: int, mem_len: int) -> "SinkPlan":
        """That of a segment whose tokens stand at `places`, with a window of `mem_len`."""
        columns = are_new = shift = None
        length = places.position_ids.shape[1]
        if places.lowest < num_sinks:
            index = torch.arange(num_sinks, device=places.before.device)
            first = length - (places.after - places.before)  # padding stands on the left
            columns = (first[:, None] + index - places.before[:, None]).clamp(0, length - 1)
            are_new = (index >= places.before[:, None]) & (index < places.after[:, None])
        behind = mem_len - 1 + num_sinks
        if places.highest > behind:
            shift = (places.before - behind).clamp(min=0)
        return cls(places.highest + length > mem_len, columns, are_new, shift)


class SinkReader:
    """Hands a layer its keys and values, the sinks in front of them."""

    def __init__(self, memory: WindowAndSinks, plan: SinkPlan, rotation: LayerRotation | None):
        self.memory, self.plan, self.rotation = memory, plan, rotation

    def __call__(self, keys: torch.Tensor, values: torch.Tensor) -> Tensors:
        """Each `(B, H, N + C + T, D)`."""
        window, shape = self.memory.window, self.memory.window.shape
        sinks = shape.split(self.memory.sinks.read().to(keys))
        if self.plan.columns is not None and self.plan.are_new is not None:
            are_new = self.plan.are_new[:, None, :, None].to(keys.device)
            new = [gather_columns(each, self.plan.columns, dim=-2) for each in (keys, values)]
            sinks = tuple(torch.where(are_new, *pair) for pair in zip(new, sinks, strict=True))
            self.memory.sinks.write(shape.join(*sinks).detach())
        both = window.read_and_write(keys, values)
        if not self.plan.are_seen:
            return both
        if self.plan.shift is not None and self.rotation is not None:
            sinks = self.rotation(sinks, self.plan.shift)
        return tuple(torch.cat(pair, dim=-2) for pair in zip(sinks, both, strict=True))


__all__ = ["SinkPlan", "SinkReader", "WindowAndSinks"]
