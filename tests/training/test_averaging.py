"""Averages of the weights against torch's own, by hand; evaluated, saved, resumed, and swapped in and out bit for bit."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn
from transformers import set_seed

from transformers_xl import (
    AdaptiveSpanConfig,
    AdaptiveSpanForCausalLM,
    MemoryTrainer,
    PKMTransformerConfig,
    PKMTransformerModel,
    TransformerXLConfig,
)
from transformers_xl import TransformerXLForCausalLM as Model
from transformers_xl.data.text_stream import TextStream
from transformers_xl.training.averaging import FILE, WeightAverage, load_averaged_weights
from transformers_xl.training.trainer import MemoryTrainingArguments

VOCAB, SEGMENT, LANES, STEPS = 23, 6, 3, 6
FUNCTIONS = {"ema": get_ema_multi_avg_fn(0.7), "swa": get_swa_multi_avg_fn()}
IDS = np.random.default_rng(0).integers(0, VOCAB, LANES * SEGMENT * STEPS + 1)


def small_model(**fields) -> Model:
    set_seed(0)
    defaults = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return Model(TransformerXLConfig(vocab_size=VOCAB, dropout=0.1, **(defaults | {"mem_len": 8} | fields)))


def trainer_of(tmp_path, model: Model | None = None, trainer_class=MemoryTrainer, **fields) -> MemoryTrainer:
    defaults = {
        "per_device_train_batch_size": LANES, "per_device_eval_batch_size": LANES, "max_steps": STEPS, "seed": 5,
        "learning_rate": 0.2, "optim": "sgd", "lr_scheduler_type": "constant", "report_to": "none", "save_strategy": "no",
        "disable_tqdm": True, "dataloader_pin_memory": False, "average_decay": 0.7,
    }  # fmt: skip
    stream = TextStream(IDS, SEGMENT, LANES)
    args = MemoryTrainingArguments(str(tmp_path), **(defaults | fields))
    model = small_model() if model is None else model
    return trainer_class(model, args, train_dataset=stream, eval_dataset=stream)


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


class NotingTrainer(MemoryTrainer):
    """Keeps the weights after every step, for a loop by hand."""

    def training_step(self, model, *args, **kwargs):
        self.seen = [*getattr(self, "seen", []), weights_of(model)]
        return super().training_step(model, *args, **kwargs)


def by_hand(kind: str, snapshots: list[dict[str, torch.Tensor]], **fields) -> Model:
    """What torch's `AveragedModel` makes of the weights."""
    model = small_model(**fields)
    average = AveragedModel(model, multi_avg_fn=FUNCTIONS[kind])
    for snapshot in snapshots:
        model.load_state_dict(snapshot)
        average.update_parameters(model)
    return average.module


@pytest.mark.parametrize(("start", "first"), [(0, 1), (3, 3), (0.5, 3)])
@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_it_is_that_of_torch(tmp_path, kind: str, start: float, first: int):
    plain = trainer_of(tmp_path, trainer_class=NotingTrainer)
    plain.train()
    snapshots = [*plain.seen[1:], weights_of(plain.model)][first - 1 :]  # after steps `first` .. 6
    expected = by_hand(kind, snapshots)
    ours = trainer_of(tmp_path, average_weights=kind, average_start=start)
    ours.train()
    for name, tensor in ours.model.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], atol=1e-6, rtol=1e-5)
    assert not torch.equal(ours.model.lm_head.weight, plain.model.lm_head.weight)
    assert ours.model.lm_head.weight is ours.model.model.embed_tokens.weight
    left_alone = trainer_of(tmp_path, average_weights=kind, average_start=start, average_in_the_end=False)
    left_alone.train()
    assert_same(weights_of(left_alone.model), weights_of(plain.model))


def test_evaluation_uses_the_average_and_training_does_not_notice(tmp_path):
    fields = {"eval_strategy": "steps", "eval_steps": 2}
    plain = trainer_of(tmp_path, **fields)
    plain.train()
    trainer = trainer_of(tmp_path, average_weights="ema", average_in_the_end=False, **fields)
    trainer.train()
    own = weights_of(trainer.model)
    assert_same(own, weights_of(plain.model))
    losses = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    assert len(losses) == 3
    assert trainer.evaluate()["eval_loss"] == losses[-1]
    predicted = trainer.predict(trainer.eval_dataset).metrics["test_loss"]
    averaged = trainer_of(tmp_path)
    trainer.weight_average.copy_to(averaged.model)
    assert averaged.evaluate()["eval_loss"] == losses[-1] == predicted
    assert abs(plain.evaluate()["eval_loss"] - losses[-1]) > 1e-4
    assert_same(weights_of(trainer.model), own)


def test_weights_come_back_when_evaluation_raises(tmp_path):
    trainer = trainer_of(tmp_path, average_weights="swa", average_in_the_end=False)
    trainer.train()
    own = weights_of(trainer.model)
    trainer.compute_metrics = lambda prediction: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.evaluate()
    assert_same(weights_of(trainer.model), own)
    assert trainer.model.lm_head.weight is trainer.model.model.embed_tokens.weight


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_resumed_bit_for_bit(tmp_path, kind: str):
    fields = {"average_weights": kind, "save_strategy": "steps", "save_steps": 2, "average_start": 2}
    whole = trainer_of(tmp_path / "whole", **fields)
    whole.train()
    resumed = trainer_of(tmp_path / "resumed", **fields)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert resumed.weight_average.count == whole.weight_average.count == 5
    assert_same(resumed.weight_average.tensors, whole.weight_average.tensors)
    assert_same(weights_of(resumed.model), weights_of(whole.model))
    done = trainer_of(tmp_path / "done", **fields)  # nothing is left to be trained
    done.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-6"))
    assert_same(weights_of(done.model), weights_of(whole.model))

    # out of a checkpoint, without a trainer
    model = Model.from_pretrained(tmp_path / "whole" / "checkpoint-6")
    assert not torch.equal(model.lm_head.weight, whole.model.lm_head.weight)
    load_averaged_weights(model, tmp_path / "whole" / "checkpoint-6")
    assert_same(weights_of(model), weights_of(whole.model))
    whole.save_model(str(tmp_path / "final"))
    assert_same(weights_of(Model.from_pretrained(tmp_path / "final")), weights_of(whole.model))


def test_a_checkpoint_before_the_first_average(tmp_path):
    fields = {"average_weights": "ema", "average_start": 5, "save_strategy": "steps", "save_steps": 2}
    whole, resumed = trainer_of(tmp_path / "whole", **fields), trainer_of(tmp_path / "resumed", **fields)
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert_same(weights_of(resumed.model), weights_of(whole.model))
    model = Model.from_pretrained(tmp_path / "whole" / "checkpoint-2")
    before = weights_of(model)
    load_averaged_weights(model, tmp_path / "whole" / "checkpoint-2")
    assert_same(weights_of(model), before)


def test_the_best_model_is_an_average(tmp_path):
    trainer = trainer_of(
        tmp_path, average_weights="swa", load_best_model_at_end=True, eval_strategy="steps", eval_steps=2,
        save_strategy="steps", save_steps=2, greater_is_better=True,  # that is the first one
    )  # fmt: skip
    trainer.train()
    best = trainer.state.best_model_checkpoint
    assert best.endswith("checkpoint-2")
    model = Model.from_pretrained(best)
    load_averaged_weights(model, best)
    assert_same(weights_of(model), weights_of(trainer.model))
    assert trainer.evaluate()["eval_loss"] == trainer.state.best_metric


def model_with_spans() -> AdaptiveSpanForCausalLM:
    set_seed(0)
    fields = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "mem_len": 12,
    }
    spans = {"span_ramp": 2, "span_loss_coef": 10.0, "initial_span": 0.88}
    return AdaptiveSpanForCausalLM(AdaptiveSpanConfig(vocab_size=VOCAB, **fields, **spans)).eval()


def reaches(model: AdaptiveSpanForCausalLM) -> list[int]:
    return model.spans().amax(1).tolist()


@torch.no_grad()
def test_layers_keep_what_the_averaged_spans_see(tmp_path):
    model, average, ids = model_with_spans(), WeightAverage("swa"), torch.from_numpy(IDS[None, :20])
    average.update(model)
    model.trim_spans()
    long = model.config.layer_spans
    for layer in model.model.layers:
        layer.self_attn.span_mask.span.zero_()
    model.trim_spans()
    short = model.config.layer_spans
    average.save(tmp_path)
    with average.swapped_in(model):
        assert model.config.layer_spans == reaches(model) == long
        torch.testing.assert_close(model(ids).logits, model_with_spans()(ids).logits)
    assert model.config.layer_spans == reaches(model) == short != long
    load_averaged_weights(model, tmp_path)
    assert model.config.layer_spans == long
    model.config.layer_spans = None
    with average.swapped_in(model):
        assert model.config.layer_spans is None  # who does not trim lets spans grow
    assert model.config.layer_spans is None


@pytest.mark.parametrize("kind", [None, "swa"])
def test_layers_keep_what_the_best_spans_see(tmp_path, kind: str | None):
    trainer = trainer_of(
        tmp_path, model_with_spans(), average_weights=kind, load_best_model_at_end=True, eval_strategy="steps",
        eval_steps=2, save_strategy="steps", save_steps=2, greater_is_better=True, learning_rate=0.005, max_grad_norm=0.0,
    )  # fmt: skip
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")
    last = AdaptiveSpanConfig.from_pretrained(tmp_path / "checkpoint-6").layer_spans
    assert trainer.model.config.layer_spans == reaches(trainer.model) != last


def test_what_cannot_be_resumed(tmp_path):
    def saved(folder: str, **fields) -> str:
        trainer_of(tmp_path / folder, max_steps=1, save_strategy="steps", save_steps=1, **fields).train()
        return str(tmp_path / folder / "checkpoint-1")

    without, swa = saved("without"), saved("swa", average_weights="swa")
    for checkpoint, message in ((without, FILE), (swa, "`average_weights`='ema'.*'swa'")):
        with pytest.raises(ValueError, match=message):
            trainer_of(tmp_path, average_weights="ema").train(resume_from_checkpoint=checkpoint)
    with pytest.raises(ValueError, match="another model"):
        load_averaged_weights(small_model(hidden_size=32), swa)
    with pytest.raises(ValueError, match=FILE):
        load_averaged_weights(small_model(), without)


@pytest.mark.parametrize(
    "fields",
    [
        {"average_weights": "mean"},
        {"average_weights": "ema", "average_decay": 1.0},
        {"average_weights": "ema", "average_start": -1},
        {"average_weights": "ema", "save_only_model": True, "load_best_model_at_end": True, "eval_strategy": "steps",
         "save_strategy": "steps"},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_meant(tmp_path, fields: dict):
    name = "save_only_model" if "save_only_model" in fields else [*fields][-1]
    with pytest.raises(ValueError, match=f"`{name}`"):
        trainer_of(tmp_path, **fields)


def test_bfloat16_weights_move_their_average():
    """By steps that are too small for the type."""
    model = small_model().bfloat16()
    average = WeightAverage("ema", decay=0.999)
    average.update(model)
    with torch.no_grad():
        model.lm_head.weight.add_(1.0)
    target = model.lm_head.weight.float()
    distance = (target - average.tensors["model.embed_tokens.weight"]).mean().item()
    for _ in range(100):
        average.update(model)
    left = (target - average.tensors["model.embed_tokens.weight"]).mean().item()
    assert left == pytest.approx(distance * 0.999**100, rel=1e-3)


def test_statistics_are_averaged_and_frozen_weights_are_not():
    model = PKMTransformerModel(
        PKMTransformerConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, mem_len=4,
                             intermediate_size=16, num_memory_keys=4, memory_topk=2)
    )  # fmt: skip
    model.embed_tokens.requires_grad_(False)
    average, means = WeightAverage("swa"), []
    for seed in range(3):
        torch.manual_seed(seed)
        model.train()(torch.randint(VOCAB, (2, 5)))
        means.append(model.layers[1].mlp.query_net.norm.running_mean.clone())
        average.update(model)
    name = "layers.1.mlp.query_net.norm.running_mean"
    torch.testing.assert_close(average.tensors[name], torch.stack(means).mean(0))
    assert "embed_tokens.weight" not in average.tensors
    assert not [name for name in average.tensors if "num_batches_tracked" in name]


def test_sharded_weights(tmp_path):
    """One process of FSDP2: averages are sharded as the weights are, files hold whole tensors."""
    plain = nn.Linear(4, 6)
    other = nn.Linear(4, 6)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        sharded = nn.Linear(4, 6)
        sharded.load_state_dict(plain.state_dict())
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        torch.distributed.fsdp.fully_shard(sharded, mesh=mesh)
        averages = [WeightAverage("ema", 0.5), WeightAverage("ema", 0.5)]
        for model, average in zip((plain, sharded), averages, strict=True):
            average.update(model)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(3)
            average.update(model)
        assert isinstance(averages[1].tensors["weight"], DTensor)
        torch.testing.assert_close(averages[1].tensors["weight"].full_tensor(), averages[0].tensors["weight"])
        averages[1].save(tmp_path)
        load_averaged_weights(other, tmp_path)
        torch.testing.assert_close(other.weight, averages[0].tensors["weight"])
        load_averaged_weights(sharded, tmp_path)
        torch.testing.assert_close(sharded.weight.full_tensor(), averages[0].tensors["weight"])
    finally:
        torch.distributed.destroy_process_group()
