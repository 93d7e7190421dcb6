"""Columns of rows: in another order, the last ones, of rows that begin again; and what may be asked of a tensor."""

import torch
from torch._subclasses import FakeTensor  # public torch has no name for it


def is_symbolic(tensor: torch.Tensor) -> bool:
    """Whether nobody can ask for its numbers: in a compiled graph, on the meta device, or where shapes alone are computed
    (`FakeTensorMode`)."""
    return torch.compiler.is_compiling() or tensor.is_meta or isinstance(tensor, FakeTensor)


def computing_dtype(like: torch.Tensor) -> torch.dtype:
    """The type in which products with `like` are computed: autocast's, or its own."""
    device_type = like.device.type
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return like.dtype


def gather_columns(rows: torch.Tensor, order: torch.Tensor | None, dim: int = 1) -> torch.Tensor:
    """`rows` with the columns of dimension `dim` in the `order` (B or 1, n) of their batch row, numbers from 0."""
    if order is None:
        return rows
    shape, size = [1] * rows.dim(), [*rows.shape]
    shape[0], shape[dim] = order.shape
    size[dim] = order.shape[1]
    # not take_along_dim, which computes a remainder of each number, once for each feature: three times as long
    return rows.gather(dim, order.view(shape).to(rows.device).expand(size))


def keep_last(columns: torch.Tensor, count: int, dim: int = 1) -> torch.Tensor:
    """The last `count` columns, also for a count of zero, where `columns[-0:]` would keep everything."""
    length = columns.shape[dim]
    kept = min(count, length)
    return columns.narrow(dim, length - kept, kept)


def reset_state(state: torch.Tensor, reset: torch.Tensor) -> torch.Tensor:
    """`state` (B, ...) with zeros in the rows of `reset` (B,) bool: what a new row remembers."""
    return state.masked_fill(reset.view(-1, *[1] * (state.dim() - 1)), 0)


def drop_full_mask(mask: torch.Tensor | None) -> torch.Tensor | None:
    """None for a mask that hides nothing, so that unpadded batches take the plain path. A compiled graph cannot ask."""
    if mask is None or is_symbolic(mask):
        return mask
    return None if bool(mask.all()) else mask
