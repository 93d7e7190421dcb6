"""Weights of 8 bits on the CPU by torch's own dynamic quantization."""

import warnings

import torch
from eight_bits import goes_on, is_near, log_probs, remembering, small
from tiny import tokens
from torch import nn


@remembering
def test_dynamic_int8_of_torch(model_type: str):
    model, ids = small(model_type), tokens(2, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch names torchao as its successor
        mine = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)
    assert is_near(log_probs(mine, ids), log_probs(model, ids))
    assert goes_on(mine, ids).shape == (2, 5)
