"""Attention sinks: Xiao et al., 2023, https://arxiv.org/abs/2309.17453, section 3.2.

The first tokens of a text (the sinks) stay visible when the window moves on. Their keys are rotated to positions directly
before the window. The original moves them at every token. Here they move every `STEP` tokens of a row, independent of where
its calls begin: a call has one copy of the sinks for each step that its tokens are in, and each token sees one copy. No
distance exceeds those of the window by more than the number of sinks and one step.
"""

from typing import NamedTuple, Self

import torch

from transformers_xl.modeling.memory.key_value_memory import KeyValueMemory, KeyValueShape, SinkMemory
from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.window import gather_columns
from transformers_xl.modeling.pretrained.places import Places
from transformers_xl.modeling.pretrained.rotation import LayerRotation

STEP = 32  # tokens; a smaller step costs more copies of the sinks, a larger one increases their distance


class WindowAndSinks(NamedTuple):
    """The memory of a layer with sinks."""

    window: KeyValueMemory
    sinks: SinkMemory


# B batch, T segment, N sinks, K copies of them, H heads, D head dim
class NewSinks(NamedTuple):
    """The sinks that a segment brings: `columns` `(B, N)`, their indices in it; `are_new` `(B, N)` bool, which it does."""

    columns: torch.Tensor
    are_new: torch.Tensor

    @classmethod
    def of(cls, num_sinks: int, length: int, begin: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> Self:
        """Those of documents whose tokens `before` to `after` `(B,)` stand from column `begin` `(B,)` of `length` on."""
        index = torch.arange(num_sinks, device=before.device)
        columns = (begin - before)[:, None] + index
        are_new = (index >= before[:, None]) & (index < after[:, None])
        return cls(columns.clamp(0, length - 1), are_new)

    def put(self, state: torch.Tensor, shape: KeyValueShape, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """The `state` `(B, N, width)` that is remembered, with those of the segment."""
        new = shape.join(*(gather_columns(each, self.columns, dim=-2) for each in (keys, values)))
        return torch.where(self.are_new[..., None].to(keys.device), new, state)


class SinkPlan(NamedTuple):
    """What a call does with the sinks of all layers.

    Args:
        num_columns: K N columns in front of the window; 0 if the sinks of all tokens are still in their windows, or hidden.
        seen: sinks that the segment brings to the document of the memory; None: all are from earlier calls.
        kept: those of the document that it ends with, which is another one where documents begin inside.
        shift: `(B, K)`, how many positions each copy has moved from where the sinks were read; None: none has moved.
        copies: `(B, T)`, index of the copy that each token sees.
    """

    num_columns: int
    seen: NewSinks | None
    kept: NewSinks | None
    shift: torch.Tensor | None
    copies: torch.Tensor

    @classmethod
    def of(cls, places: Places, num_sinks: int, mem_len: int) -> "SinkPlan":
        """The plan for a segment whose tokens are at `places`, with a window of `mem_len`."""
        shift = None
        length = places.position_ids.shape[1]
        seen, kept = new_sinks(places, num_sinks)
        copies = torch.zeros_like(places.position_ids)
        if places.highest + length > mem_len - 1 + num_sinks + STEP:
            first = moved_by(places.before, num_sinks, mem_len)[:, None]
            copies = (moved_by(places.position_ids, num_sinks, mem_len) - first).clamp(min=0) // STEP
            numbers = torch.arange(
                (length + STEP - 2) // STEP + 1, device=first.device
            )  # the most that a call can need
            shift = first + STEP * numbers
        num_columns = 0 if places.highest + length <= mem_len else num_sinks * (1 if shift is None else shift.shape[1])
        return cls(num_columns, seen, kept, shift, copies)

    def alike(self, places: Places, num_sinks: int, mem_len: int) -> int | None:
        """The place of the segment within a step, if it is the same in all rows: then they see the same columns. None: it
        differs."""
        if self.num_columns == 0:
            return 0
        if places.lowest < mem_len - 1 + num_sinks:
            return None
        if self.shift is None:
            return 0
        return None if (places.highest - places.lowest) % STEP else places.lowest % STEP

    def unmoved(self, num_sinks: int) -> "SinkPlan":
        """The plan for a base whose keys have no rotation: one copy for all tokens."""
        return self._replace(
            num_columns=min(self.num_columns, num_sinks), shift=None, copies=torch.zeros_like(self.copies)
        )

    def hidden(self) -> "SinkPlan":
        """The plan for a layer whose tokens do not see the sinks, and which remembers them."""
        return self._replace(num_columns=0)


def new_sinks(places: Places, num_sinks: int) -> tuple[NewSinks | None, NewSinks | None]:
    """What a segment brings to the document of the memory, and to the one that it ends with."""
    length, before, after = places.position_ids.shape[1], places.before, places.after
    if places.documents is None:
        # padding stands on the left
        new = NewSinks.of(num_sinks, length, length - (after - before), before, after)
        return (new, new) if places.lowest < num_sinks else (None, None)
    _, num_first, num_read = places.documents
    begin, begun = length - num_read, num_first < num_read
    seen = NewSinks.of(num_sinks, length, begin, before, before + num_first)
    # the newest document fills the last columns
    start = torch.where(begun, length - after, begin)
    return seen, NewSinks.of(num_sinks, length, start, before.masked_fill(begun, 0), after)


def farthest(num_sinks: int, mem_len: int) -> int:
    """The largest distance from a token to a position that it sees."""
    return mem_len - 1 + (num_sinks + STEP - 1 if num_sinks > 0 else 0)


def moved_by(position_ids: torch.Tensor, num_sinks: int, mem_len: int) -> torch.Tensor:
    """How many positions the sinks have moved that tokens at these positions see: whole steps, once there is room before
    the window. Positions of a row can be reduced by this number; without sinks, by all the room before the window."""
    room = (position_ids - (mem_len - 1 + num_sinks)).clamp(min=0)
    return room // STEP * STEP if num_sinks > 0 else room


class SinkReader:
    """Gives a layer its keys and values, with the sinks in front."""

    def __init__(self, memory: WindowAndSinks, plan: SinkPlan, rotation: LayerRotation | None):
        self.memory, self.plan, self.rotation = memory, plan, rotation

    def __call__(self, keys: torch.Tensor, values: torch.Tensor) -> Tensors:
        """Each `(B, H, K N + C + T, D)`."""
        window, shape, plan = self.memory.window, self.memory.window.shape, self.plan
        state, has_new = self.memory.sinks.read().to(keys), plan.seen is not None
        if plan.seen is not None and plan.kept is not None:
            before, state = state, plan.seen.put(state, shape, keys, values)
            kept = state if plan.kept is plan.seen else plan.kept.put(before, shape, keys, values)
            self.memory.sinks.write(kept.detach())
        both = window.read_and_write(keys, values)
        if plan.num_columns == 0:
            return both
        if plan.shift is None or self.rotation is None:
            sinks = shape.split(state)
        elif has_new:
            sinks = self.copies(state)
        else:
            sinks = self.memory.sinks.moved(lambda state: self.copies(state.to(keys)), plan.shift)
        return tuple(
            torch.cat([each.to(keys), of_window], dim=-2) for each, of_window in zip(sinks, both, strict=True)
        )

    def copies(self, state: torch.Tensor) -> Tensors:
        """Keys and values of all copies, each `(B, H, K N, D)`, of the `state` that is remembered."""
        assert self.plan.shift is not None, "copies that have not moved are one"
        assert self.rotation is not None, "keys that do not turn do not move"
        num_copies = self.plan.shift.shape[1]
        sinks = [each.repeat(1, 1, num_copies, 1) for each in self.memory.window.shape.split(state)]
        return self.rotation(sinks, self.plan.shift.repeat_interleave(state.shape[1], dim=1))


__all__ = ["SinkPlan", "SinkReader", "WindowAndSinks", "farthest", "moved_by"]
