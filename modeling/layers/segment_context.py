"""What layers are told of a segment and of the columns that its queries may see."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch

from transformers_xl.modeling.layers.positions import Biases
from transformers_xl.modeling.ops.token_order import TokenOrder

PositionEmbeddings = tuple[torch.Tensor | None, Biases | None] | torch.Tensor


@dataclass(frozen=True)
class DeviceMovable:
    """A dataclass whose tensors follow a module to its device: Accelerate calls `to` of what it cannot look into."""

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Self:
        """A copy with all tensors on `device`, also those inside of tuples and lists."""
        moved = {each.name: _moved(getattr(self, each.name), device, non_blocking) for each in fields(self)}
        return replace(self, **moved)


def _moved(value: Any, device: torch.device | str | int, non_blocking: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=non_blocking)
    if not isinstance(value, (tuple, list)):
        return value
    parts = [_moved(part, device, non_blocking) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


# B batch, T segment length, K packed columns of [memory; segment]
@dataclass(frozen=True)
class KeyView(DeviceMovable):
    """Which of the K columns the queries of a layer see.

    Args:
        visible: `(B or 1, 1, T, K)` bool; None where all are.
        by_distance: whether `visible` follows from the distances alone, the same for all rows: then a query sees what is
            nearer than `window` (None: all up to itself).
        window: positions that a query sees at most, itself included; None for all.
        order: `(B, K)`, the column of `[memory; segment]` that stands at each packed column; None where no row has padding.
    """

    visible: torch.Tensor | None = None
    by_distance: bool = False
    window: int | None = None
    order: torch.Tensor | None = None


@dataclass(frozen=True)
class SegmentContext(DeviceMovable):
    """What all layers are told of a segment. A variant adds fields of its own in a subclass.

    Args:
        segment_mask: `(B, T)` bool, real tokens; padding stands on the left. None where all are real.
        episode: `(B, T)`, number of the episode of each token, 0 for that of the memory; None where all are of one.
        position_embeddings: what the model's positions made for all layers.
        shown: the order in which hidden states and weights are shown; None where nobody asks for them.
    """

    segment_mask: torch.Tensor | None = None
    episode: torch.Tensor | None = None
    position_embeddings: PositionEmbeddings | None = None
    shown: TokenOrder | None = None


ALL_VISIBLE, PLAIN_SEGMENT = KeyView(), SegmentContext()  # what an attention sees that is told nothing

__all__ = ["ALL_VISIBLE", "PLAIN_SEGMENT", "KeyView", "SegmentContext"]
