"""A feed-forward with a gate: Shazeer, 2020, https://arxiv.org/abs/2002.05202 (SwiGLU with the activation silu)."""

import torch
from torch import nn

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.activations import activation
from transformers_xl.modeling.layers.transformer_layer import Dropout


class GatedFeedForward(nn.Module):
    """`down(act(gate) * up)` with `[gate, up]` one linear map of the input, without biases; dropout falls on the product
    and on the output."""

    def __init__(self, config: MemoryConfig):
        super().__init__()
        self.gate_up_proj: nn.Module = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj: nn.Module = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn = activation(config.hidden_act)
        self.dropout = Dropout(config)
        self.output_dropout = Dropout(config, config.residual_dropout)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        return self.output_dropout(self.down_proj(self.dropout(self.act_fn(gate) * up)))


__all__ = ["GatedFeedForward"]
