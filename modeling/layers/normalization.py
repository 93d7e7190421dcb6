"""Where a norm stands: Xiong et al., 2020, https://arxiv.org/abs/2002.04745, figure 1."""

import torch
from torch import nn

from transformers_xl.configuration.configuration_memory import MemoryConfig


class SublayerNorm(nn.Module):
    """The norm of one sub-layer f, with the residual sum around it.

        pre-norm:   x + f(norm(x))      post-norm:   norm(x + f(x))

    Written `norm.after(x + f(norm.before(x)))`, where one of the two does nothing.
    """

    def __init__(self, config: MemoryConfig, size: int | None = None):
        super().__init__(config.hidden_size if size is None else size, eps=config.layer_norm_eps)
        self.norm_position = config.norm_position

    def before(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self(hidden_states) if self.norm_position == "pre" else hidden_states

    def after(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self(hidden_states) if self.norm_position == "post" else hidden_states


class SublayerLayerNorm(SublayerNorm, nn.LayerNorm):
    """That of most models."""


class SublayerRMSNorm(SublayerNorm, nn.RMSNorm):
    """Without mean and bias: Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467."""
