"""A step of training and an evaluation make no logits of all tokens, unless somebody reads them."""

import pytest
import torch
from largest import Largest
from optional_packages import needs
from tiny_bases import VOCAB_SIZE, tiny_base
from trained import LANES, arguments, losses, text

from transformers_xl import MemoryTrainer, TransformerXLConfig, TransformerXLForCausalLM, add_memory
from transformers_xl.data.text_stream import TextStream
from transformers_xl.modeling.layers import token_loss

peft = needs("peft")

AT_A_TIME, SEGMENT = 5, 40


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_loss, "LOGITS_AT_A_TIME", AT_A_TIME * VOCAB_SIZE)


def build(kind: str):
    torch.manual_seed(0)
    if kind == "base":
        return add_memory(tiny_base("gemma2").float(), mem_len=8)
    config = TransformerXLConfig(
        vocab_size=VOCAB_SIZE, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, mem_len=8, dropout=0.0
    )
    return TransformerXLForCausalLM(config)


def trainer_of(model, folder, **fields) -> MemoryTrainer:
    options = {name: fields.pop(name) for name in ("compute_metrics", "compute_loss_func") if name in fields}
    stream = TextStream(text(LANES * SEGMENT * 2 + 1), SEGMENT, LANES)
    held_out = TextStream(text(160, seed=1), SEGMENT, LANES)
    args = arguments(folder, max_steps=2, use_cpu=True, **fields)
    return MemoryTrainer(model, args, train_dataset=stream, eval_dataset=held_out, **options)


@pytest.mark.parametrize("kind", ["base", "our own"])
def test_a_loss_alone_makes_few_logits_at_a_time(kind: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    trainer = trainer_of(build(kind), tmp_path / "few")
    with Largest(width=VOCAB_SIZE) as largest:
        trainer.train()
        evaluated = trainer.evaluate()["eval_loss"]
    assert 0 < largest.numel < LANES * SEGMENT * VOCAB_SIZE / 2
    monkeypatch.setattr(MemoryTrainer, "without_logits", lambda self, inputs: inputs)
    monkeypatch.setattr(token_loss, "LOGITS_AT_A_TIME", 10**9)
    whole = trainer_of(build(kind), tmp_path / "whole")
    whole.train()
    torch.testing.assert_close(losses(trainer), losses(whole), atol=1e-5, rtol=1e-5)
    assert evaluated == pytest.approx(whole.evaluate()["eval_loss"], abs=1e-5)


@pytest.mark.parametrize("kind", ["base", "our own"])
def test_who_reads_logits_gets_those_of_all_tokens(kind: str, tmp_path):
    shapes = []

    def loss(outputs, labels, num_items_in_batch=None):
        shapes.append(tuple(outputs.logits.shape))
        return outputs.logits.flatten(0, 1).logsumexp(-1).mean()

    trainer_of(build(kind), tmp_path, compute_loss_func=loss).train()
    assert set(shapes) == {(LANES, SEGMENT, VOCAB_SIZE)}

    def metrics(prediction):
        return {"columns": prediction.predictions.shape[1]}

    assert trainer_of(build(kind), tmp_path, compute_metrics=metrics).evaluate()["eval_columns"] == SEGMENT


def test_labels_are_smoothed_behind_adapters_too(tmp_path):
    """They were not: the loss function was given to the adapters, and the step failed at its end."""
    adapted = peft.get_peft_model(build("base"), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    found = []
    for index, (model, smoothing) in enumerate([(adapted, 0.5), (build("base"), 0.5), (build("base"), 0.0)]):
        trainer = trainer_of(model, tmp_path / str(index), label_smoothing_factor=smoothing)
        trainer.train()
        found.append(losses(trainer)[0].item())
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    assert found[0] != pytest.approx(found[2], abs=1e-2)
