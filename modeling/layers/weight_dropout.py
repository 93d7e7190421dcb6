"""Weight dropout: Merity et al., 2017, https://arxiv.org/abs/1708.02182, section 2, after DropConnect (Wan et al., 2013).

    h_t = f(W x_t + (m * U) h_{t-1}),      m_ij = 0 with probability p, else 1 / (1 - p)

One mask m of the recurrent matrix serves all rows and positions of a segment: whatever passes along time does not meet
another one at every step.
"""

import torch
from torch import nn
from torch.nn import functional as F


def call_with_weight_dropout(rnn: nn.RNNBase, p: float, *inputs) -> torch.Tensor | tuple:
    """`rnn(*inputs)`, in training mode with its hidden-to-hidden matrices dropped with probability `p`.

    The dropped matrices exist in this call only: names of parameters, files and optimizers know nothing of them, as they
    would of `torch.nn.utils.parametrize`. Masks come from torch's random numbers, so that activation checkpointing and a
    resumed training draw the same ones.
    """
    if not rnn.training or p == 0:
        return rnn(*inputs)
    recurrent = {name: weight for name, weight in rnn.named_parameters() if name.startswith("weight_hh")}
    return torch.func.functional_call(rnn, {name: F.dropout(weight, p) for name, weight in recurrent.items()}, inputs)


__all__ = ["call_with_weight_dropout"]
