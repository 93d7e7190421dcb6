"""Dropout that costs nothing when nothing is dropped, and its variational form.

Variational dropout: Gal & Ghahramani, 2016, https://arxiv.org/abs/1512.05287 ("locked" in Merity et al., 2017).
"""

import torch
from torch import nn

from transformers_xl.configuration.configuration_memory import MemoryConfig


class Dropout(nn.Dropout):
    """`nn.Dropout` that does not call transformers outside of training: a generated token passes some three per layer.

    With `config.variational_dropout` a row drops the same features at all positions of a segment, and others in the next
    one. Not the same over segments: gradients end where a segment begins, so that one mask is shared by all that one
    gradient sees, as for the truncated gradients of recurrent networks; and a mask that outlives its segment would have to
    be remembered with `mems`, reset with its row and saved with the training. States without positions have a mask of their
    own.

    Args:
        p: the probability; `config.dropout` when not given.
    """

    def __init__(self, config: MemoryConfig, p: float | None = None):
        super().__init__(config.dropout if p is None else p)
        self.is_variational = config.variational_dropout

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """`states` `(batch, length, features)`, or `(batch, features)`."""
        if not self.training or self.p == 0:
            return states
        if not self.is_variational or states.dim() < 3:
            return super().forward(states)
        return states * super().forward(torch.ones_like(states[:, :1]))
