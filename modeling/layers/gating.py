"""Gates in place of the residual sum: Parisotto et al., 2019, https://arxiv.org/abs/1910.06764, section 3.2.

x is the residual stream, y the output of a sub-layer, products are elementwise, W and U are matrices without bias.
"""

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_gtrxl import GTrXLConfig


class ResidualSum(nn.Module):
    """x + y: no gate (TrXL-I)."""

    def __init__(self, config: GTrXLConfig):
        super().__init__()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class InputGate(nn.Module):
    """sigmoid(W x) x + y"""

    def __init__(self, config: GTrXLConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.gate_proj(x).sigmoid() * x + y


class BiasedGate(nn.Module):
    """A gate with a bias b, which starts at `gate_bias`: sigmoid(W x - b) or, for the highway, sigmoid(W x + b)."""

    def __init__(self, config: GTrXLConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.gate_bias = nn.Parameter(torch.empty(config.hidden_size))

    def init_weights(self, config: GTrXLConfig) -> None:
        init.constant_(self.gate_bias, float(config.gate_bias))


class OutputGate(BiasedGate):
    """x + sigmoid(W x - b) y"""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + (self.gate_proj(x) - self.gate_bias).sigmoid() * y


class HighwayGate(BiasedGate):
    """s x + (1 - s) y, s = sigmoid(W x + b)"""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        share = (self.gate_proj(x) + self.gate_bias).sigmoid()
        return share * x + (1 - share) * y


class SigmoidTanhGate(BiasedGate):
    """x + sigmoid(W y - b) tanh(U y)"""

    def __init__(self, config: GTrXLConfig):
        super().__init__(config)
        self.candidate_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + (self.gate_proj(y) - self.gate_bias).sigmoid() * self.candidate_proj(y).tanh()


class GRUGate(nn.Module):
    """(1 - z) x + z h: a gated recurrent unit over depth.

        r = sigmoid(W_r y + U_r x)      z = sigmoid(W_z y + U_z x - b)      h = tanh(W_h y + U_h (r x))

    `output_proj` holds W_r, W_z, W_h, one under the other; `stream_proj` holds U_r, U_z; `candidate_proj` is U_h.
    """

    def __init__(self, config: GTrXLConfig):
        super().__init__()
        self.output_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.stream_proj = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)
        self.candidate_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.gate_bias = nn.Parameter(torch.empty(config.hidden_size))

    def init_weights(self, config: GTrXLConfig) -> None:
        init.constant_(self.gate_bias, float(config.gate_bias))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        reset_y, update_y, candidate_y = self.output_proj(y).chunk(3, dim=-1)
        reset_x, update_x = self.stream_proj(x).chunk(2, dim=-1)
        reset = (reset_y + reset_x).sigmoid()
        update = (update_y + update_x - self.gate_bias).sigmoid()
        candidate = (candidate_y + self.candidate_proj(reset * x)).tanh()
        return (1 - update) * x + update * candidate


GATES: dict[str, type[nn.Module]] = {
    "gru": GRUGate,
    "highway": HighwayGate,
    "input": InputGate,
    "none": ResidualSum,
    "output": OutputGate,
    "sigmoid_tanh": SigmoidTanhGate,
}
