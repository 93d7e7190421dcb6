"""Attention sinks: Xiao et al., 2023, https://arxiv.org/abs/2309.17453, section 3.2.

The first tokens of a text stay when the window moves on. They stand in front of the window, which the original moves them
along with at every token. Here they move at every `STEP` tokens of a row, wherever its calls begin: each call has a copy of
them for every step that its tokens are in, and a token sees one. No distance exceeds those of the window by more than the
sinks and a step.
"""

from typing import NamedTuple

import torch

from transformers_xl.modeling.memory.key_value_memory import KeyValueMemory, SinkMemory
from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.window import gather_columns
from transformers_xl.modeling.pretrained.places import Places
from transformers_xl.modeling.pretrained.rotation import LayerRotation

STEP = 32  # a copy of the sinks for each: fewer cost more columns, more reach further


class WindowAndSinks(NamedTuple):
    """What a layer remembers that has sinks."""

    window: KeyValueMemory
    sinks: SinkMemory


# B batch, T segment, N sinks, K copies of them, H heads, D head dim
class SinkPlan(NamedTuple):
    """What a call does with the sinks of all layers.

    `num_columns`: K N, in front of the window; 0 where no token has sinks behind its window. `columns` (B, N): where in the
    segment the sinks stand that are new; `are_new` (B, N) bool; both None where all are old. `shift` (B, K): how far each
    copy has moved on from where the sinks were read; None where none has. `copies` (B, T): the one that a token sees.
    """

    num_columns: int
    columns: torch.Tensor | None
    are_new: torch.Tensor | None
    shift: torch.Tensor | None
    copies: torch.Tensor

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
        copies = torch.zeros_like(places.position_ids)
        if places.highest + length > mem_len - 1 + num_sinks + STEP:
            first = moved_by(places.before, num_sinks, mem_len)[:, None]
            copies = (moved_by(places.position_ids, num_sinks, mem_len) - first).clamp(min=0) // STEP
            numbers = torch.arange((length + STEP - 2) // STEP + 1, device=first.device)  # as many as can be
            shift = first + STEP * numbers
        num_columns = 0 if places.highest + length <= mem_len else num_sinks * (1 if shift is None else shift.shape[1])
        return cls(num_columns, columns, are_new, shift, copies)

    def alike(self, places: Places, num_sinks: int, mem_len: int) -> int | None:
        """How far into a step all rows are, whose tokens then see the same columns; None: they differ."""
        if self.num_columns == 0:
            return 0
        if places.lowest < mem_len - 1 + num_sinks:
            return None
        if self.shift is None:
            return 0
        return None if (places.highest - places.lowest) % STEP else places.lowest % STEP

    def unmoved(self, num_sinks: int) -> "SinkPlan":
        """That of a base whose keys do not turn: one copy for all tokens."""
        return self._replace(
            num_columns=min(self.num_columns, num_sinks), shift=None, copies=torch.zeros_like(self.copies)
        )


def farthest(num_sinks: int, mem_len: int) -> int:
    """How far before a token what it sees stands at the most."""
    return mem_len - 1 + (num_sinks + STEP - 1 if num_sinks > 0 else 0)


def moved_by(position_ids: torch.Tensor, num_sinks: int, mem_len: int) -> torch.Tensor:
    """How far the sinks have moved that tokens at these positions see: whole steps, as soon as there is room behind the
    window. By so much a row can be moved back; one without sinks by as much as there is room."""
    room = (position_ids - (mem_len - 1 + num_sinks)).clamp(min=0)
    return room // STEP * STEP if num_sinks > 0 else room


class SinkReader:
    """Hands a layer its keys and values, the sinks in front of them."""

    def __init__(self, memory: WindowAndSinks, plan: SinkPlan, rotation: LayerRotation | None):
        self.memory, self.plan, self.rotation = memory, plan, rotation

    def __call__(self, keys: torch.Tensor, values: torch.Tensor) -> Tensors:
        """Each `(B, H, K N + C + T, D)`."""
        window, shape = self.memory.window, self.memory.window.shape
        sinks = shape.split(self.memory.sinks.read().to(keys))
        if self.plan.columns is not None and self.plan.are_new is not None:
            are_new = self.plan.are_new[:, None, :, None].to(keys.device)
            new = [gather_columns(each, self.plan.columns, dim=-2) for each in (keys, values)]
            sinks = tuple(torch.where(are_new, *pair) for pair in zip(new, sinks, strict=True))
            self.memory.sinks.write(shape.join(*sinks).detach())
        both = window.read_and_write(keys, values)
        if self.plan.num_columns == 0:
            return both
        if self.plan.shift is not None and self.rotation is not None:
            num_sinks = sinks[0].shape[-2]
            sinks = tuple(each.repeat(1, 1, self.plan.shift.shape[1], 1) for each in sinks)
            sinks = self.rotation(sinks, self.plan.shift.repeat_interleave(num_sinks, dim=1))
        return tuple(torch.cat(pair, dim=-2) for pair in zip(sinks, both, strict=True))


__all__ = ["SinkPlan", "SinkReader", "WindowAndSinks", "farthest", "moved_by"]
