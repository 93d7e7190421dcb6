"""Which columns of `[memory; segment]` the queries of a segment see."""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import torch

from transformers_xl.modeling.ops.window import PackedRows, visible_positions


@dataclass(frozen=True)
class DeviceMovable:
    """A dataclass whose tensors follow a module to its device: Accelerate calls `to` of what it cannot look into."""

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Self:
        """With all tensors on `device`, there or to be made, also those inside tuples, lists and others of its kind; itself
        where all are."""
        names = [field.name for field in fields(self)]
        held = [getattr(self, name) for name in names]
        moved = _moved(held, device, non_blocking)
        return self if moved is held else replace(self, **dict(zip(names, moved, strict=True)))


def _moved(value: Any, device: torch.device | str | int, non_blocking: bool) -> Any:
    if isinstance(value, (torch.Tensor, DeviceMovable)):
        return value.to(device, non_blocking=non_blocking)
    if isinstance(value, torch.device):
        return value if value == torch.device(device) else torch.device(device)
    if not isinstance(value, (tuple, list)):
        return value
    parts = [_moved(part, device, non_blocking) for part in value]
    if all(new is old for new, old in zip(parts, value, strict=True)):
        return value
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


class Columns(NamedTuple):
    """The last `length` of `num_keys` columns are queries."""

    length: int
    num_keys: int
    device: torch.device


# B batch, T segment length, K packed columns of [memory; segment]
@dataclass(frozen=True)
class KeyMask(DeviceMovable):
    """What the queries of a layer see of its K columns.

    Args:
        mask: `(B or 1, 1, T, K)` bool, what is `visible`; None where all are, or where distances say it.
        by_distance: whether it follows from the distances alone, the same for all rows: then a query sees what is nearer
            than `window` (None: all up to itself).
        window: positions that a query sees at most, itself included; None for all.
        order: `(B, K)`, the column of `[memory; segment]` that stands at each packed column; None where no row has padding.
        distance: `(B or 1, T, K)` integers, how far each column lies behind each query; None: columns are distances, the
            query of column K - T + t is at distance 0 of its own.
        min_distance: no column that is seen lies nearer than this `distance`.
        span: positions of text that each column stands for.
        behind: `(B or 1, T, K)` integers, how many positions of text the newest of these lies behind each query; None: the
            distance.
        columns: those of a mask that nobody has made, for it follows from the distances.
    """

    mask: torch.Tensor | None = None
    by_distance: bool = False
    window: int | None = None
    order: torch.Tensor | None = None
    distance: torch.Tensor | None = None
    min_distance: int = 0
    span: int = 1
    behind: torch.Tensor | None = None
    columns: Columns | None = None

    @property
    def visible(self) -> torch.Tensor | None:
        """`(B or 1, 1, T, K)` bool; None where all are. A backend that goes by the distances does not ask: then nothing of
        this size is made."""
        if self.columns is None:
            return self.mask
        length, num_keys, device = self.columns
        return visible_positions(PackedRows(), length, num_keys, self.window, device)

    @property
    def device(self) -> torch.device | None:
        """Where its tensors are, or will be made; None: there are none."""
        if self.columns is not None:
            return self.columns.device
        tensor = self.order if self.mask is None else self.mask
        return None if tensor is None else tensor.device


ALL_VISIBLE = KeyMask()  # what an attention sees that is told nothing


class FarColumns(NamedTuple):
    """Columns that an attention reads beside those of `[memory; segment]`.

    Args:
        key, value: `(B, H, S, D)`.
        key_mask: how far they lie (`distance`). Where it says nothing, they lie directly behind the window of one token,
            which sees them all.
    """

    key: torch.Tensor
    value: torch.Tensor
    key_mask: KeyMask


__all__ = ["ALL_VISIBLE", "Columns", "DeviceMovable", "FarColumns", "KeyMask"]
