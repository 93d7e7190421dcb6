"""Where a faster form of relative attention registers itself.

A backend takes the arguments of `wide_attention.wide_attention` and returns what it returns, values and gradients. The
tests in `tests/modeling/test_backends.py` run over all of them; those of a backend for CUDA are marked `gpu`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from transformers_xl.modeling.ops.flex_attention import HAS_TRITON, flex_relative_attention
from transformers_xl.modeling.ops.wide_attention import wide_attention


class Backend(NamedTuple):
    """A form of relative attention, and the device type and types of numbers that it is for."""

    function: Callable[..., torch.Tensor]
    device_type: str
    dtypes: tuple[torch.dtype, ...]


BACKENDS: dict[str, Backend] = {}


def register_backend(name: str, function: Callable[..., torch.Tensor], device_type: str, dtypes: tuple) -> None:
    """Use `function` for relative attention on `device_type` in `dtypes`, before those that were registered earlier."""
    BACKENDS[name] = Backend(function, device_type, dtypes)


def relative_backend(attn_implementation: str, query: torch.Tensor) -> Callable[..., torch.Tensor] | None:
    """The newest backend for `query`, or None: then the attention function that the user chose computes the scores' sum."""
    if attn_implementation != "sdpa":
        return None
    device_type = query.device.type
    in_autocast = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if in_autocast else query.dtype
    for backend in reversed(BACKENDS.values()):
        if backend.device_type == device_type and dtype in backend.dtypes:
            return backend.function
    return None


register_backend("wide", wide_attention, "cpu", (torch.float32, torch.float64))
if HAS_TRITON:
    register_backend("flex", flex_relative_attention, "cuda", (torch.float32, torch.bfloat16, torch.float16))


__all__ = ["BACKENDS", "Backend", "register_backend", "relative_backend"]
