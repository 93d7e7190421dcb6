"""What a sub-layer is made of: its norm, its dropout, and the position-wise feed-forward.

Norms: Xiong et al., 2020, https://arxiv.org/abs/2002.04745, figure 1. Variational dropout: Gal & Ghahramani, 2016,
https://arxiv.org/abs/1512.05287 ("locked" in Merity et al., 2017). Feed-forward: Vaswani et al., 2017,
https://arxiv.org/abs/1706.03762, section 3.3.
"""

import torch
from torch import nn

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.activations import activation


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


class Dropout(nn.Dropout):
    """`nn.Dropout` that returns its input at once outside of training: a generated token passes about three per layer.

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


__all__ = ["Dropout", "FeedForward", "SublayerLayerNorm", "SublayerNorm", "SublayerRMSNorm"]
