"""The activations of transformers, by the name in a config."""

from torch import nn
from transformers.activations import ACT2FN


def activation(name: str) -> nn.Module:
    """A module for `hidden_act`.

    Raises:
        ValueError: there is no activation of that name.
    """
    if name not in ACT2FN:
        raise ValueError(f"`hidden_act`={name!r} must be one of {', '.join(sorted(ACT2FN))}.")
    return ACT2FN[name]


__all__ = ["activation"]
