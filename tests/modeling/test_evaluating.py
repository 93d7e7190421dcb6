"""Evaluation leaves every module in the mode that it comes in."""

import pytest
from torch import nn

from transformers_xl.modeling.evaluating import evaluating


def test_every_module_gets_its_mode_back():
    """A frozen part of a model that trains stays frozen, also where the body fails."""
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()).eval())
    modes = [module.training for module in model.modules()]
    assert modes == [True, True, False, False]

    def fail() -> None:
        with evaluating(model):
            assert not any(module.training for module in model.modules())
            raise RuntimeError("of the body")

    with pytest.raises(RuntimeError, match="of the body"):
        fail()
    assert [module.training for module in model.modules()] == modes
