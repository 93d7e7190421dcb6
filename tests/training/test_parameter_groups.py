"""Groups of parameters with a learning rate of their own, and what weight decay leaves alone."""

import numpy as np
import pytest
import torch
from tiny import tiny_model, variants
from torch import nn
from transformers import HfArgumentParser, default_data_collator, set_seed

from transformers_xl import MemoryTrainer
from transformers_xl.data.text_stream import TextStream
from transformers_xl.training.parameter_groups import learning_rate_groups
from transformers_xl.training.trainer import MemoryTrainingArguments

SEGMENT, LANES = 6, 3
# what each paper trains apart, and fields that make it exist
GROUPS = {
    "pkm_transformer": ({"keys", "values"}, {"num_memory_keys": 4, "memory_topk": 2, "memory_key_dim": 8}),
    "adaptive_span": ({"spans"}, {"span_loss_coef": 0.1, "initial_span": 0.5}),
    "universal_transformer": ({"ponder"}, {}),
    "depth_adaptive_transformer": ({"halting"}, {"halting": "geometric"}),
    "vanilla_transformer": ({"auxiliary"}, {}),
}


def model_of(model_type: str, **fields):
    set_seed(0)
    return tiny_model(model_type, "causal_lm", torch.float32, **(GROUPS.get(model_type, ((), {}))[1] | fields))


def trainer_of(tmp_path, model: nn.Module, **fields) -> MemoryTrainer:
    defaults = {
        "per_device_train_batch_size": LANES, "max_steps": 1, "learning_rate": 0.05, "lr_scheduler_type": "constant",
        "optim": "sgd", "max_grad_norm": 0.0, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }  # fmt: skip
    stream = TextStream(np.random.default_rng(0).integers(3, 37, 60), SEGMENT, LANES)
    args = MemoryTrainingArguments(str(tmp_path), **(defaults | fields))
    return MemoryTrainer(model, args, train_dataset=stream)


@pytest.mark.parametrize("model_type", variants(causal_lm=True))
def test_the_groups_of_every_variant(model_type: str):
    groups = learning_rate_groups(model_of(model_type))
    assert groups.keys() == GROUPS.get(model_type, (set(), {}))[0]
    members = [parameter for group in groups.values() for parameter in group]
    assert len(set(members)) == len(members)


@pytest.mark.parametrize("model_type", GROUPS)
def test_a_group_learns_at_its_rate(tmp_path, model_type: str):
    """Against the gradients of a copy."""
    rates = dict.fromkeys(GROUPS[model_type][0], 0.4)
    model, other = model_of(model_type), model_of(model_type).train()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trainer = trainer_of(tmp_path, model, group_learning_rates=rates)
    trainer.train()
    batch = default_data_collator([trainer.train_dataset[lane] for lane in range(LANES)])
    targets = batch["shift_labels"]
    other(batch["input_ids"], shift_labels=targets, num_items_in_batch=targets.numel()).loss.backward()
    members = {parameter for group in learning_rate_groups(other).values() for parameter in group}
    moved = set()
    for name, parameter in other.named_parameters():
        rate = 0.4 if parameter in members else 0.05
        step = before[name] - model.get_parameter(name).detach()
        torch.testing.assert_close(step, rate * parameter.grad, atol=2e-6, rtol=1e-3)
        moved |= {name} if parameter in members and parameter.grad.any() else set()
    assert len(moved) == len(members)
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {0.05, 0.4}


def test_one_of_two_groups_under_adamw_with_a_schedule(tmp_path):
    model = model_of("pkm_transformer")
    trainer = trainer_of(
        tmp_path, model, optim="adamw_torch", weight_decay=0.1, group_learning_rates={"values": 0.5},
        lr_scheduler_type="linear", max_steps=3,
    )  # fmt: skip
    trainer.create_optimizer_and_scheduler(4)
    (values,) = [group for group in trainer.optimizer.param_groups if group["initial_lr"] == 0.5]
    assert values["params"] == learning_rate_groups(model)["values"]
    assert values["weight_decay"] == 0.1  # as it was
    trainer.optimizer.step()
    trainer.lr_scheduler.step()
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {0.5 * 0.75, 0.05 * 0.75}
    together = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    assert len(together) == len(set(together)) == len(list(model.parameters()))


@pytest.mark.parametrize("model_type", variants(causal_lm=True))
def test_weight_decay_is_for_matrices(tmp_path, model_type: str):
    """Not for biases, gains of norms, spans and gates: vectors all of them, but for u and v."""
    model = model_of(model_type)
    trainer = trainer_of(tmp_path, model, optim="adamw_torch", weight_decay=0.1)
    trainer.create_optimizer()
    decayed = {
        parameter for group in trainer.optimizer.param_groups if group["weight_decay"] for parameter in group["params"]
    }
    for name, parameter in model.named_parameters():
        assert (parameter in decayed) is (parameter.dim() > 1 and "bias" not in name)
    assert model.lm_head.weight in decayed


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("transformer_xl", {"group_learning_rates": {"values": 0.1}}, "`group_learning_rates` names 'values'.*none"),
        ("pkm_transformer", {"group_learning_rates": {"spans": 0.1}}, "names 'spans'.*'keys', 'values'"),
        ("pkm_transformer", {"group_learning_rates": {"values": 0.0}}, r"`group_learning_rates`\['values'\]=0.0"),
        ("pkm_transformer", {"group_learning_rates": {"values": "fast"}}, r"\['values'\]='fast'"),
        ("pkm_transformer", {"group_learning_rates": 0.1}, "`group_learning_rates`=0.1"),
    ],
)
def test_what_cannot_be_meant(tmp_path, model_type: str, fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        trainer_of(tmp_path, model_of(model_type), **fields)


def test_frozen_and_sparse_values_are_refused(tmp_path):
    frozen = model_of("pkm_transformer")
    frozen.model.layers[1].mlp.values.requires_grad_(False)
    with pytest.raises(ValueError, match="names 'values'.* 'keys'"):
        trainer_of(tmp_path, frozen, group_learning_rates={"values": 0.1})
    with pytest.raises(ValueError, match="`sparse_values`"):
        trainer_of(tmp_path, model_of("pkm_transformer", sparse_values=True))


def test_rates_from_a_command_line(tmp_path):
    line = ["--output_dir", str(tmp_path), "--group_learning_rates", '{"values": 0.001}', "--average_weights", "ema"]
    (args,) = HfArgumentParser(MemoryTrainingArguments).parse_args_into_dataclasses(line)
    assert args.group_learning_rates == {"values": 0.001}
    assert args.average_weights == "ema"
