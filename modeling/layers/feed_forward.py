"""The position-wise feed-forward: Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.3."""

import torch
from torch import nn

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.activations import activation
from transformers_xl.modeling.layers.dropout import Dropout


class FeedForward(nn.Module):
    """`fc2(act(fc1(x)))`, with dropout after the activation and on the output."""

    def __init__(self, config: MemoryConfig):
        super().__init__()
        self.fc1: nn.Module = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2: nn.Module = nn.Linear(config.intermediate_size, config.hidden_size)
        self.act_fn = activation(config.hidden_act)
        self.dropout = Dropout(config)
        self.output_dropout = Dropout(config, config.residual_dropout)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        inner = self.dropout(self.act_fn(self.fc1(hidden_states)))
        return self.output_dropout(self.fc2(inner))
