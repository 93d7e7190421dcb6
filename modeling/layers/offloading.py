"""Weights that Accelerate keeps elsewhere: https://github.com/huggingface/accelerate."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def onloaded(module: nn.Module, states: torch.Tensor) -> Iterator[torch.Tensor]:
    """`states` on the device of `module`, and its weights there meanwhile: Accelerate does so around `forward` alone."""
    hook = getattr(module, "_hf_hook", None)
    if hook is None:
        yield states
        return
    (states,), _ = hook.pre_forward(module, states)
    try:
        yield states
    finally:
        hook.post_forward(module, states)
