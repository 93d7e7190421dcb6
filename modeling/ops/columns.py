"""Columns of rows: in another order, the last ones, of rows that begin again."""

import torch


def gather_columns(rows: torch.Tensor, order: torch.Tensor | None, dim: int = 1) -> torch.Tensor:
    """`rows` with the columns of dimension `dim` in the `order` (B, n) of their batch row."""
    if order is None:
        return rows
    shape = [1] * rows.dim()
    shape[0], shape[dim] = order.shape
    return rows.take_along_dim(order.view(shape).to(rows.device), dim=dim)


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
    if mask is None or torch.compiler.is_compiling():
        return mask
    return None if bool(mask.all()) else mask
