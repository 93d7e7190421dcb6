"""Hidden states as `output_hidden_states=True` returns them."""

import torch
from torch import nn


class CapturedStates(nn.Module):
    """The place where `capture_outputs` records hidden states, `(batch, length, hidden_size)`, in the caller's order."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states
