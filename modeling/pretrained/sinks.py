"""Attention sinks: Xiao et al., 2023, https://arxiv.org/abs/2309.17453, section 3.2.

The first tokens of a text (the sinks) stay visible when the window moves on. Their keys are rotated to positions directly
before the window. The original moves them at every token. Here they move every `STEP` tokens of a row, independent of where
its calls begin: a call has one copy of the sinks for each step that its tokens are in, and each token sees one copy. No
distance exceeds those of the window by more than the number of sinks and one step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

import torch

from transformers_xl.modeling.memory.memory_cache import Tensors
from transformers_xl.modeling.memory.memory_value import LayerMemory
from transformers_xl.modeling.memory.segment import LayerContext, Segment
from transformers_xl.modeling.ops.columns import gather_columns
from transformers_xl.modeling.pretrained.backbone_cache import BackboneLayer
from transformers_xl.modeling.pretrained.places import Places
from transformers_xl.modeling.pretrained.rotation import LayerRotation

STEP = 32  # tokens; a smaller step costs more copies of the sinks, a larger one increases their distance


# B batch, T segment, N sinks, K copies of them, H heads, D head dim
class NewSinks(NamedTuple):
    """The sinks that a segment brings: `columns` `(B, N)`, their indices in it; `are_new` `(B, N)` bool, which it does."""

    columns: torch.Tensor
    are_new: torch.Tensor

    @classmethod
    def of(cls, num_sinks: int, begin: torch.Tensor, num: torch.Tensor, length: int) -> Self:
        """Those of documents whose first token stands, or would stand, at column `begin` `(B,)` of `length`, and which have
        tokens in the first `num` `(B,)`."""
        columns = begin[:, None] + torch.arange(num_sinks, device=begin.device)
        are_new = (columns >= 0) & (columns < num[:, None])
        return cls(columns.clamp(0, length - 1), are_new)

    def put(self, state: Tensors, new: Tensors) -> Tensors:
        """The `state` that is remembered, each `(B, H, N, D)`, with those that the segment brings of its `new` ones."""
        brought = [gather_columns(each, self.columns, dim=-2) for each in new]
        are_new = self.are_new[:, None, :, None].to(brought[0].device)
        return tuple(torch.where(are_new, *pair) for pair in zip(brought, state, strict=True))


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
    def of(cls, segment: Segment, places: Places, num_sinks: int, mem_len: int) -> "SinkPlan":
        """The plan for a segment whose tokens are at `places`, with a window of `mem_len`."""
        shift, length = None, segment.length
        seen, kept = new_sinks(segment, places, num_sinks)
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

    def unmoved(self, num_sinks: int) -> "SinkPlan":
        """The plan for a base whose keys have no rotation: one copy for all tokens."""
        return self._replace(
            num_columns=min(self.num_columns, num_sinks), shift=None, copies=torch.zeros_like(self.copies)
        )

    def hidden(self) -> "SinkPlan":
        """The plan for a layer whose tokens do not see the sinks, and which remembers them."""
        return self._replace(num_columns=0)


def new_sinks(segment: Segment, places: Places, num_sinks: int) -> tuple[NewSinks | None, NewSinks | None]:
    """What a segment brings to the document of the memory, and to the one that it ends with."""
    length, ids, num = segment.length, segment.document_ids, segment.end - segment.num_before
    if ids is None:
        new = NewSinks.of(num_sinks, -places.before, num, length)
        return (new, new) if places.lowest < num_sinks else (None, None)
    seen = NewSinks.of(num_sinks, -places.before, num.minimum((ids == 0).sum(1)), length)
    begin = torch.where(ids[:, -1] > 0, segment.start[:, -1] - segment.num_before, -places.before)
    return seen, NewSinks.of(num_sinks, begin, num, length)


def farthest(num_sinks: int, mem_len: int) -> int:
    """The largest distance from a token to a position that it sees."""
    return mem_len - 1 + (num_sinks + STEP - 1 if num_sinks > 0 else 0)


def moved_by(position_ids: torch.Tensor, num_sinks: int, mem_len: int) -> torch.Tensor:
    """How many positions the sinks have moved that tokens at these positions see: whole steps, once there is room before
    the window. Positions of a row can be reduced by this number; without sinks, by all the room before the window."""
    room = (position_ids - (mem_len - 1 + num_sinks)).clamp(min=0)
    return room // STEP * STEP if num_sinks > 0 else room


class MovedSinks(NamedTuple):
    """Copies of the sinks `state` that have moved by `shift`: a cache keeps them for the next tokens."""

    state: Tensors
    shift: torch.Tensor
    copies: Tensors


class SinkLayer(BackboneLayer):
    """Shows a layer its keys and values with the sinks in front, which it remembers as `state`, keys and values `(B, H, N,
    D)`. Tokens that are taken back leave theirs there, which the next ones write over."""

    def __init__(
        self,
        past: LayerMemory,
        context: LayerContext,
        is_sliding: bool,
        plan: SinkPlan,
        rotation: LayerRotation | None,
    ):
        super().__init__(past, context, is_sliding)
        self.plan, self.rotation, self.num_extra = plan, rotation, plan.num_columns
        self.num_sinks = past.state[0].shape[2]

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Tensors:
        """Each `(B, H, K N + C + T, D)`."""
        plan, new, kept = self.plan, (key_states, value_states), self.past.state
        columns = super().update(*new)
        state = tuple(old.to(each) for old, each in zip(self.past.state, new, strict=True))
        if plan.seen is not None and plan.kept is not None:
            before, state = state, plan.seen.put(state, new)
            kept = state if plan.kept is plan.seen else plan.kept.put(before, new)
            self.after = self.after._replace(state=tuple(each.detach() for each in kept))
        if plan.num_columns == 0:
            return columns
        sinks = state if plan.shift is None or self.rotation is None else self.moved(state, plan.shift, self.rotation)
        return tuple(torch.cat(pair, dim=-2) for pair in zip(sinks, columns, strict=True))

    def moved(self, state: Tensors, shift: torch.Tensor, rotation: LayerRotation) -> Tensors:
        """Keys and values of all copies, each `(B, H, K N, D)`."""
        layer_cache = None if torch.is_grad_enabled() or self.plan.seen is not None else self.context.layer_cache
        held = None if layer_cache is None else layer_cache.derived
        if held is not None and held.state is self.past.state and torch.equal(held.shift, shift):
            return held.copies
        sinks = [each.repeat(1, 1, shift.shape[1], 1) for each in state]
        copies = rotation(sinks, shift.repeat_interleave(self.num_sinks, dim=1))
        if layer_cache is not None:
            layer_cache.derived = MovedSinks(self.past.state, shift, copies)
        return copies

    def sees(self, places: Places) -> Callable[..., Any]:
        """Of its copy of the sinks a query sees those that are not in its window. In documents that begin inside, none is
        far."""
        is_near, window = super().sees(places), cast(int, self.context.window)

        def sees(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> Any:
            token = q_idx - self.num_before
            is_far = places.position_ids[batch_idx, token] - kv_idx % self.num_sinks >= window
            is_own = self.plan.copies[batch_idx, token] == kv_idx // self.num_sinks
            return torch.where(kv_idx < self.num_extra, is_far & is_own, is_near(batch_idx, head_idx, q_idx, kv_idx))

        return sees if self.num_extra > 0 else is_near

    def step(self, places: Places) -> int | None:
        """The place of the segment within a step of the sinks."""
        if self.num_extra == 0:
            return 0
        if places.lowest < cast(int, self.context.window) - 1 + self.num_sinks:
            return None
        if self.plan.shift is None:
            return 0
        return None if (places.highest - places.lowest) % STEP else places.lowest % STEP


__all__ = ["SinkLayer", "SinkPlan", "farthest", "moved_by"]
