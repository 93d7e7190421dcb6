"""Where a faster form of relative attention registers itself.

A backend takes the arguments of `wide_attention.wide_attention` and returns what it returns, values and gradients. The
tests in `tests/modeling/test_backends.py` run over all of them; those of a backend for CUDA are marked `gpu`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from transformers_xl.modeling.ops.far_columns import FarColumns
from transformers_xl.modeling.ops.wide_attention import wide_attention


class Backend(NamedTuple):
    """A form of relative attention, and the device type and types of numbers that it is for. `takes(head width, dtype, far
    columns)` says whether it can compute them."""

    function: Callable[..., torch.Tensor]
    device_type: str
    dtypes: tuple[torch.dtype, ...]
    takes: Callable[[int, torch.dtype, FarColumns | None], bool]


BACKENDS: dict[str, Backend] = {}


def takes_all(width: int, dtype: torch.dtype, far: FarColumns | None) -> bool:
    return True


def register_backend(
    name: str,
    function: Callable[..., torch.Tensor],
    device_type: str,
    dtypes: tuple[torch.dtype, ...],
    takes: Callable[[int, torch.dtype, FarColumns | None], bool] = takes_all,
) -> None:
    """Use `function` for relative attention on `device_type` in `dtypes`, before those that were registered earlier."""
    BACKENDS[name] = Backend(function, device_type, dtypes, takes)


def relative_backend(
    attn_implementation: str, query: torch.Tensor, far: FarColumns | None = None
) -> Callable[..., torch.Tensor] | None:
    """The newest backend for `query`, or None: then the attention function that the user chose computes the scores' sum."""
    if attn_implementation != "sdpa":
        return None
    device_type = query.device.type
    in_autocast = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if in_autocast else query.dtype
    for backend in reversed(BACKENDS.values()):
        of_kind = backend.device_type == device_type and dtype in backend.dtypes
        if of_kind and backend.takes(query.shape[-1], dtype, far):
            return backend.function
    return None


register_backend("wide", wide_attention, "cpu", (torch.float32, torch.float64))


__all__ = ["BACKENDS", "Backend", "register_backend", "relative_backend"]
