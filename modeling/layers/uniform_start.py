"""How torch starts linear maps and recurrent networks: uniform in +-1/sqrt(inputs)."""

from collections.abc import Iterable

import torch
from transformers import initialization as init


def start_uniform(parameters: Iterable[torch.nn.Parameter], inputs: int) -> None:
    """Draw all `parameters` of a map of so many `inputs`."""
    for parameter in parameters:
        init.uniform_(parameter, -(inputs**-0.5), inputs**-0.5)


__all__ = ["start_uniform"]
