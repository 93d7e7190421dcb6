"""MemoryTrainer against a loop written by hand, and transformers' own Trainer on the same models."""

import numpy as np
import pytest
import torch
from optional_packages import needs
from tiny import tensors_of
from torch.nn import functional as F
from trained import LANES, QUIET, SEGMENT, VOCAB, Pairs, arguments, by_hand, segments, small_model, text
from transformers import Trainer, TrainingArguments, default_data_collator, set_seed

from transformers_xl import (
    AdaptiveSpanConfig,
    AdaptiveSpanForCausalLM,
    MemoryTrainer,
    TransformerXLForCausalLM,
    TransformerXLForSequenceClassification,
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
)
from transformers_xl.data.text_stream import TextStream
from transformers_xl.training.trainer import SpanTrimming, TrainingProgress


@pytest.mark.parametrize("accumulation", [1, 2])
def test_training_equals_a_loop_by_hand(tmp_path, accumulation: int):
    ids = text(LANES * SEGMENT * 4 + 1)
    trainer = MemoryTrainer(
        small_model(),
        arguments(tmp_path, num_train_epochs=2, gradient_accumulation_steps=accumulation),
        train_dataset=TextStream(ids, SEGMENT, LANES),
    )
    trainer.train()
    model = small_model()
    expected = by_hand(model, ids, epochs=2, accumulation=accumulation)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), atol=1e-4, rtol=0)  # logs are rounded
    for ours, theirs in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-6, rtol=1e-5)


def test_without_memory_the_loop_is_another(tmp_path):
    """The test above could not fail if the memory made no difference."""
    ids = text(LANES * SEGMENT * 4 + 1)
    model, forgetful = small_model(), small_model()
    with_memory = by_hand(model, ids, epochs=1)
    mems_free = [
        F.cross_entropy(forgetful(inputs).logits.transpose(1, 2), targets).item() for inputs, targets in segments(ids)
    ]
    assert abs(with_memory[-1] - mems_free[-1]) > 1e-3


def test_evaluation_carries_its_own_memory(tmp_path):
    train_ids, eval_ids = text(LANES * SEGMENT * 4 + 1), text(LANES * SEGMENT * 3 + 1, seed=1)
    trainer = MemoryTrainer(
        small_model(),
        arguments(tmp_path, max_steps=2),
        train_dataset=TextStream(train_ids, SEGMENT, LANES),
        eval_dataset=TextStream(eval_ids, SEGMENT, LANES),
    )
    trainer.train()
    before = tensors_of(trainer.memory["train"].map(torch.clone))
    metrics = [trainer.evaluate()["eval_loss"] for _ in range(2)]
    assert metrics[0] == metrics[1]  # every evaluation starts afresh
    assert "eval" not in trainer.memory
    assert all(torch.equal(*pair) for pair in zip(tensors_of(trainer.memory["train"]), before, strict=True))

    model, mems, losses = trainer.model.eval(), None, []
    for inputs, targets in segments(eval_ids):
        with torch.no_grad():
            outputs = model(inputs.to(model.device), mems=mems)
        mems = outputs.mems
        losses.append(F.cross_entropy(outputs.logits.transpose(1, 2), targets.to(model.device)).item())
    assert metrics[0] == pytest.approx(sum(losses) / len(losses), abs=1e-6)


def test_evaluation_in_mid_training_changes_nothing(tmp_path):
    ids = text(LANES * SEGMENT * 4 + 1)
    weights = []
    for strategy in ("no", "steps"):
        trainer = MemoryTrainer(
            small_model(),
            arguments(tmp_path, num_train_epochs=1, eval_strategy=strategy, eval_steps=1),
            train_dataset=TextStream(ids, SEGMENT, LANES),
            eval_dataset=TextStream(ids, SEGMENT, LANES),
        )
        trainer.train()
        weights.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_the_best_checkpoint_by_one_of_several_sets(tmp_path):
    """The metric says of which set; transformers would end at the first evaluation."""
    stream = TextStream(text(LANES * SEGMENT * 2 + 1), SEGMENT, LANES)
    sets = {"near": stream, "far_off": stream}

    def trainer(metric):
        args = arguments(
            tmp_path, max_steps=2, eval_strategy="steps", eval_steps=1, save_strategy="best", load_best_model_at_end=True,
            metric_for_best_model=metric,
        )  # fmt: skip
        return MemoryTrainer(small_model(), args, train_dataset=stream, eval_dataset=sets)

    for metric in (None, "loss", "eval_loss", "near"):
        with pytest.raises(ValueError, match=r"`metric_for_best_model`=.* set one of 'near_.*', 'far_off_"):
            trainer(metric)
    for metric in ("far_off_loss", "eval_near_perplexity"):
        best = trainer(metric)
        best.train()
        assert best.state.best_metric is not None


def test_predictions_hold_no_memory(tmp_path):
    stream = TextStream(text(LANES * SEGMENT * 3 + 1), SEGMENT, LANES)
    trainer = MemoryTrainer(small_model(), arguments(tmp_path), eval_dataset=stream)
    predictions = trainer.predict(stream).predictions
    assert isinstance(predictions, np.ndarray)
    assert predictions.shape == (len(stream), SEGMENT, VOCAB)


def test_lanes_must_be_the_batch(tmp_path):
    with pytest.raises(ValueError, match="lanes"):
        MemoryTrainer(small_model(), arguments(tmp_path), train_dataset=TextStream(text(100), SEGMENT, LANES + 1))


@pytest.mark.parametrize("model_class", [TransformerXLForCausalLM, TransformerXLForSequenceClassification])
def test_the_library_trainer_fine_tunes(tmp_path, model_class):
    dataset = Pairs(classify=model_class is TransformerXLForSequenceClassification)
    args = TrainingArguments(str(tmp_path), num_train_epochs=6, learning_rate=5e-3, logging_steps=8, **QUIET)
    trainer = Trainer(
        small_model(model_class),
        args,
        train_dataset=dataset,
        eval_dataset=dataset,
        data_collator=default_data_collator,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < 0.8 * before
    predictions = trainer.predict(dataset).predictions
    assert predictions.shape[0] == len(dataset)
    if model_class is TransformerXLForSequenceClassification:
        assert (predictions.argmax(-1) == dataset.classes.numpy()).mean() > 0.9


def scheduled_model() -> VanillaTransformerForCausalLM:
    set_seed(0)
    config = VanillaTransformerConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        segment_length=SEGMENT, intermediate_losses="linear", dropout=0.0,
    )  # fmt: skip
    return VanillaTransformerForCausalLM(config)


@pytest.mark.parametrize("trainer_class", [MemoryTrainer, Trainer])
def test_a_model_knows_its_training_progress(tmp_path, trainer_class):
    """Its loss at each step is the one of that share of the training."""
    model, stream = scheduled_model(), TextStream(text(300), SEGMENT, LANES)
    seen = []
    model.register_forward_hook(lambda module, arguments, output: seen.append(module.training_progress))
    options = {} if trainer_class is MemoryTrainer else {"callbacks": [TrainingProgress]}
    trainer = trainer_class(model, arguments(tmp_path, max_steps=4), train_dataset=stream, **options)
    trainer.train()
    assert seen == [0.0, 0.25, 0.5, 0.75]
    # the last layer alone predicts in the second half: one loss for each of two targets, 1 + 0.5
    assert model.layer_weights() == [0.0, 0.0, 1.0]
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[0] > 1.5 * losses[2]


def test_a_model_with_adapters_knows_its_training_progress(tmp_path):
    peft = needs("peft")
    base, stream, seen = scheduled_model(), TextStream(text(300), SEGMENT, LANES), []
    base.register_forward_hook(lambda module, arguments, output: seen.append(module.training_progress))
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    MemoryTrainer(adapted, arguments(tmp_path, max_steps=4), train_dataset=stream).train()
    assert seen == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("trainer_class", [MemoryTrainer, Trainer])
def test_spans_are_trimmed_after_every_step(tmp_path, trainer_class):
    """Their loss alone moves the spans: down to zero, where a layer keeps the ramp and no parameter goes on below."""
    set_seed(0)
    config = AdaptiveSpanConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, mem_len=12,
        span_ramp=2, span_loss_coef=10.0, initial_span=0.88, dropout=0.0,
    )  # fmt: skip
    model, stream = AdaptiveSpanForCausalLM(config), TextStream(text(300), SEGMENT, LANES)
    kept = []
    model.register_forward_pre_hook(lambda module, arguments: kept.append(module.config.layer_spans))
    options = {} if trainer_class is MemoryTrainer else {"callbacks": [SpanTrimming]}
    rate = {"learning_rate": 0.005}
    trainer_class(model, arguments(tmp_path, max_steps=6, **rate), train_dataset=stream, **options).train()
    # each step takes learning rate x weight x max_span / heads, 0.3, of the share
    assert kept == [None, [9, 9], [6, 6], [2, 2], [2, 2], [2, 2]]
    assert all((layer.self_attn.span_mask.span == 0).all() for layer in model.model.layers)


def test_the_loss_of_spans_counts_once_for_a_step(tmp_path):
    """However many batches its gradients come from."""
    losses = []
    for lanes, accumulated in ((4, 1), (2, 2)):
        set_seed(0)
        config = AdaptiveSpanConfig(
            vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, mem_len=8,
            span_loss_coef=1.0, initial_span=0.5, dropout=0.0, initializer_range=0.02,
        )  # fmt: skip
        model, stream = AdaptiveSpanForCausalLM(config), TextStream(text(300), SEGMENT, lanes)
        fields = {"per_device_train_batch_size": lanes, "gradient_accumulation_steps": accumulated, "max_steps": 1}
        trainer = MemoryTrainer(model, arguments(tmp_path, **fields), train_dataset=stream)
        trainer.train()
        (loss,) = (row["loss"] for row in trainer.state.log_history if "loss" in row)
        losses.append(loss)
    # 2 layers x 1.0 x 4 positions, and about log(vocabulary)
    assert losses[0] == pytest.approx(losses[1], abs=0.1)
    assert 8.0 < losses[0] - np.log(VOCAB) + 0.5 < 9.0
