"""A model as it is evaluated: without dropout."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """`model.eval()`, as long as the body runs. Every module gets back the mode that it comes in, frozen ones too."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


__all__ = ["evaluating"]
