"""LAMB and Muon against their updates, resumed, and refused where they cannot be."""

import sys

import pytest
import torch
from optional_packages import needs
from tiny import tiny_model
from torch import nn
from trained import LANES, SEGMENT, arguments, small_model, text

from transformers_xl import MemoryTrainer
from transformers_xl.data.text_stream import TextStream
from transformers_xl.training.muon import MuonAndAdamW, matrices_of_layers
from transformers_xl.training.optimizers import check_optimizer

LR, BETAS, EPS, DECAY = 0.01, (0.9, 0.95), 1e-6, 0.1


def trainer_of(folder, **fields) -> MemoryTrainer:
    if fields.get("optimizer") != "muon":
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
    with pytest.raises(ValueError, match="`optimizer`='lomb' is not known: 'lamb' and 'muon' are"):
        trainer_of(tmp_path, optimizer="lomb")


def test_the_package_that_is_missing_is_named(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    model, stream = small_model(), TextStream(text(LANES * SEGMENT + 1), SEGMENT, LANES)
    with pytest.raises(ValueError, match="needs the package pytorch_optimizer: pip install"):
        MemoryTrainer(model, arguments(tmp_path, optimizer="lamb"), train_dataset=stream)


def muon_trainer(folder, **fields) -> MemoryTrainer:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has no Muon")
    return trainer_of(folder, optimizer="muon", **fields)


def names_of_muon(trainer: MemoryTrainer) -> set[str]:
    names = {id(each): name for name, each in trainer.model.named_parameters()}
    groups = trainer.create_optimizer().param_groups
    return {names[id(each)] for group in groups if group["is_muon"] for each in group["params"]}


def test_muon_and_adamw_step_what_is_theirs(tmp_path):
    """All weights after three steps are those of torch's two optimizers side by side, decay and clipping included."""
    trainer = muon_trainer(tmp_path, lr_scheduler_type="linear")
    names, decayed = names_of_muon(trainer), set(trainer.get_decay_parameter_names(trainer.model))
    twin = small_model(initializer_range=0.2)
    assert names == {
        f"model.layers.{layer}.{name}.weight"
        for layer in range(len(twin.model.layers))
        for name in (*(f"self_attn.{each}_proj" for each in "qkvro"), "mlp.fc1", "mlp.fc2")
    }
    mine = dict(twin.named_parameters())
    rest = [
        {
            "params": [mine[name] for name in mine.keys() - names if (name in decayed) == is_decayed],
            "weight_decay": decay,
        }
        for is_decayed, decay in ((True, DECAY), (False, 0.0))
    ]
    matrices = [mine[name] for name in mine if name in names]
    apart = [
        torch.optim.AdamW(rest, LR, BETAS, EPS),
        torch.optim.Muon(matrices, LR, DECAY, adjust_lr_fn="match_rms_adamw"),
    ]
    parameters = dict(trainer.model.named_parameters())

    def note(optimizer, *args) -> None:
        for name, parameter in parameters.items():
            mine[name].grad = parameter.grad.clone()
        for each in apart:
            for group in each.param_groups:
                group["lr"] = optimizer.param_groups[0]["lr"]
            each.step()

    trainer.create_optimizer().register_step_pre_hook(note)
    trainer.train()
    assert trainer.state.global_step == 3
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter, mine[name], atol=1e-6, rtol=1e-6)


def test_muon_resumes_bit_for_bit(tmp_path):
    whole = muon_trainer(tmp_path / "whole", save_strategy="steps", save_steps=1)
    whole.train()
    resumed = muon_trainer(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    moments = [optimizer.state_dict()["state"] for optimizer in (resumed.optimizer, whole.optimizer)]
    torch.testing.assert_close(*moments, atol=0, rtol=0)
    other = MemoryTrainer(
        small_model(initializer_range=0.2),
        arguments(tmp_path / "other", use_cpu=True, max_steps=3),
        train_dataset=TextStream(text(LANES * SEGMENT * 5 + 1), SEGMENT, LANES),
    )
    with pytest.raises(ValueError, match="`optimizer`=None cannot resume where the 'muon' of the checkpoint"):
        other.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))


def test_matrices_of_layers_are_neither_words_nor_convolutions():
    model = tiny_model("streaming_transformer", "causal_lm")
    names = {id(each): name for name, each in model.named_parameters()}
    found = {names[id(each)].removeprefix("model.layers.0.") for each in matrices_of_layers(model)}
    assert {name for name in found if not name.startswith("model.")} == {
        *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
        *("mlp.gate_up_proj.weight", "mlp.down_proj.weight"),
    }
    around = tiny_model("segment_memory", "causal_lm")
    words = around.get_output_embeddings().weight
    assert all(each is not words for each in matrices_of_layers(around))
    assert len(matrices_of_layers(around)) == 2 * 7


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [({"fsdp": "full_shard"}, "`optimizer`='muon' needs whole matrices"), ({}, "needs torch 2.9")],
)
def test_muon_is_refused_where_it_cannot_be(tmp_path, monkeypatch: pytest.MonkeyPatch, fields, remedy):
    if not fields:
        monkeypatch.delattr(torch.optim, "Muon", raising=False)
    args = arguments(tmp_path, optimizer="muon")
    for name, value in fields.items():
        setattr(args, name, value)
    with pytest.raises(ValueError, match=remedy):
        check_optimizer(args)
    if hasattr(torch.optim, "Muon"):
        with pytest.raises(ValueError, match=r"shape \(3,\): Muon steps matrices alone"):
            MuonAndAdamW([weight := nn.Parameter(torch.zeros(3))]).use_muon([weight])


def test_muon_steps_the_matrices_of_adapters_alone(tmp_path):
    """What they are put into stays; a head that is trained beside them is AdamW's."""
    peft = needs("peft")
    model = tiny_model("streaming_transformer", "sequence_classification")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_proj", "v_proj"])
    adapted = peft.get_peft_model(model, config)
    names = {id(each): name for name, each in adapted.named_parameters()}
    found = {names[id(each)] for each in matrices_of_layers(adapted)}
    trained = {name for name, each in adapted.named_parameters() if each.requires_grad}
    assert found == {name for name in trained if ".lora_" in name}
    assert trained - found  # the head


def test_muon_trains_adapters(tmp_path):
    peft = needs("peft")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has no Muon")
    adapted = peft.get_peft_model(
        small_model(), peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"])
    )
    before = {name: each.detach().clone() for name, each in adapted.named_parameters()}
    stream = TextStream(text(LANES * SEGMENT * 5 + 1), SEGMENT, LANES)
    args = arguments(tmp_path, optimizer="muon", learning_rate=LR, use_cpu=True, max_steps=3)
    MemoryTrainer(adapted, args, train_dataset=stream).train()
    changed = {name for name, each in adapted.named_parameters() if not torch.equal(each, before[name])}
    assert changed == {name for name in before if ".lora_" in name}
