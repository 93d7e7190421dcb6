"""LAMB against its update by hand, resumed, and refused where it cannot be."""

import sys

import pytest
import torch
from optional_packages import needs
from torch import nn
from trained import LANES, SEGMENT, arguments, small_model, text

from transformers_xl import MemoryTrainer
from transformers_xl.data.text_stream import TextStream

LR, BETAS, EPS, DECAY = 0.01, (0.9, 0.95), 1e-6, 0.1


def trainer_of(folder, **fields) -> MemoryTrainer:
    needs("pytorch_optimizer")
    defaults = {
        "optimizer": "lamb", "learning_rate": LR, "adam_beta1": BETAS[0], "adam_beta2": BETAS[1], "adam_epsilon": EPS,
        "weight_decay": DECAY, "use_cpu": True, "max_steps": 3,
    }  # fmt: skip
    model = small_model(initializer_range=0.2)
    return MemoryTrainer(
        model,
        arguments(folder, **(defaults | fields)),
        train_dataset=TextStream(text(LANES * SEGMENT * 5 + 1), SEGMENT, LANES),
    )


class Lamb:
    """One parameter's, by the equations of You et al., 2020, without bias correction."""

    def __init__(self, parameter: nn.Parameter, decay: float):
        self.value, self.decay = parameter.detach().clone(), decay
        self.first = self.second = torch.zeros_like(parameter)

    def step(self, gradient: torch.Tensor) -> None:
        self.first = BETAS[0] * self.first + (1 - BETAS[0]) * gradient
        self.second = BETAS[1] * self.second + (1 - BETAS[1]) * gradient**2
        update = self.first / (self.second.sqrt() + EPS) + self.decay * self.value
        norm = self.value.norm().clamp(max=10)
        trust = norm / (update.norm() + EPS) if norm > 0 and update.norm() > 0 else 1.0
        self.value = self.value - LR * trust * update


def test_lamb_is_its_equations(tmp_path):
    trainer = trainer_of(tmp_path)
    parameters = dict(trainer.model.named_parameters())
    decayed = trainer.get_decay_parameter_names(trainer.model)
    by_hand = {name: Lamb(each, DECAY if name in decayed else 0.0) for name, each in parameters.items()}
    assert 0 < len(decayed) < len(parameters)

    def note(*args) -> None:
        for name, parameter in parameters.items():
            by_hand[name].step(parameter.grad)

    trainer.create_optimizer().register_step_pre_hook(note)
    trainer.train()
    assert trainer.state.global_step == 3
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter, by_hand[name].value, atol=1e-5, rtol=1e-4)
        assert not torch.equal(parameter, small_model(initializer_range=0.2).get_parameter(name))


def test_lamb_resumes(tmp_path):
    whole = trainer_of(tmp_path / "whole", save_strategy="steps", save_steps=1)
    whole.train()
    resumed = trainer_of(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_an_optimizer_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`optimizer`='lomb' is not known: 'lamb' is"):
        trainer_of(tmp_path, optimizer="lomb")


def test_the_package_that_is_missing_is_named(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    model, stream = small_model(), TextStream(text(LANES * SEGMENT + 1), SEGMENT, LANES)
    with pytest.raises(ValueError, match="needs the package pytorch_optimizer: pip install"):
        MemoryTrainer(model, arguments(tmp_path, optimizer="lamb"), train_dataset=stream)
