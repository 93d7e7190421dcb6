"""What a training is made of, with memory: precision, clipping, schedules, labels, epochs, evaluation, search."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from optional_packages import needs
from torch.nn import functional as F
from trained import (
    LANES,
    SEGMENT,
    VOCAB,
    Bare,
    Flowing,
    arguments,
    by_hand,
    flat,
    losses,
    segments,
    small_model,
    text,
)  # fmt: skip
from transformers import EarlyStoppingCallback, TrainerCallback, get_linear_schedule_with_warmup, set_seed

from transformers_xl import AdaptiveSpanConfig, AdaptiveSpanForCausalLM, MemoryTrainer
from transformers_xl.data.text_stream import TextStream


def train(tmp_path, dataset, eval_dataset=None, model=None, callbacks=None, **fields) -> MemoryTrainer:
    trainer = MemoryTrainer(
        small_model() if model is None else model,
        arguments(tmp_path, use_cpu=True, **fields),
        train_dataset=dataset,
        eval_dataset=eval_dataset,
        callbacks=callbacks,
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("bf16", [False, True])
def test_everything_at_once_equals_a_loop_by_hand(tmp_path, bf16: bool):
    """Three epochs, accumulation with a last smaller group, clipping, a schedule, evaluation in between."""
    ids, held_out = text(LANES * SEGMENT * 5 + 1), text(LANES * SEGMENT * 3 + 1, seed=1)
    trainer = train(
        tmp_path, TextStream(ids, SEGMENT, LANES), TextStream(held_out, SEGMENT, LANES), num_train_epochs=3, bf16=bf16,
        gradient_accumulation_steps=2, max_grad_norm=0.5, lr_scheduler_type="linear", warmup_steps=2, optim="adamw_torch",
        learning_rate=0.01, weight_decay=0.0, eval_strategy="steps", eval_steps=2,
    )  # fmt: skip

    model, steps = small_model(), segments(ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 9)
    expected, evaluations = [], []
    for _ in range(3):
        mems = None
        for group in (steps[0:2], steps[2:4], steps[4:]):
            total = 0.0
            for inputs, targets in group:
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    outputs = model(inputs, mems=mems)
                mems = outputs.mems.to(dtype=torch.float32)
                loss = F.cross_entropy(outputs.logits.float().transpose(1, 2), targets) / len(group)
                loss.backward()
                total += loss.item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            expected.append(total)
            if len(expected) % 2 == 0 or len(expected) == 9:
                evaluations.append(evaluate_by_hand(model, held_out, bf16))
    found = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    tolerance = 2e-3 if bf16 else 1e-4  # rounding to eight bits, which Adam amplifies
    torch.testing.assert_close(losses(trainer), torch.tensor(expected), atol=tolerance, rtol=0)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(evaluations), atol=tolerance, rtol=0)
    torch.testing.assert_close(flat(trainer.model), flat(model), atol=5e-3 if bf16 else 1e-5, rtol=1e-4)


def evaluate_by_hand(model, ids: np.ndarray, bf16: bool = False) -> float:
    mems, found = None, []
    model.eval()
    for inputs, targets in segments(ids):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            outputs = model(inputs, mems=mems)
        mems = outputs.mems
        found.append(F.cross_entropy(outputs.logits.float().transpose(1, 2), targets).item())
    model.train()
    return sum(found) / len(found)


def test_smoothing_is_of_shifted_labels_and_of_training_only(tmp_path):
    ids, held_out = text(LANES * SEGMENT * 4 + 1), text(LANES * SEGMENT * 2 + 1, seed=1)
    stream = TextStream(held_out, SEGMENT, LANES)
    trainer = train(tmp_path, TextStream(ids, SEGMENT, LANES), stream, label_smoothing_factor=0.2, num_train_epochs=1)
    model, mems, expected = small_model(), None, []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, targets in segments(ids):
        outputs = model(inputs, mems=mems)
        mems = outputs.mems
        logs = outputs.logits.log_softmax(-1)
        nats = -logs.gather(-1, targets[..., None]).mean()
        loss = 0.8 * nats - 0.2 * logs.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    torch.testing.assert_close(losses(trainer), torch.tensor(expected), atol=1e-4, rtol=0)
    torch.testing.assert_close(flat(trainer.model), flat(model), atol=1e-6, rtol=1e-5)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(evaluate_by_hand(model, held_out), abs=1e-5)


def test_smoothing_leaves_a_model_its_other_terms(tmp_path):
    def span_model(weight: float):
        set_seed(0)
        config = AdaptiveSpanConfig(
            vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, mem_len=8,
            span_loss_coef=weight, initial_span=0.5, dropout=0.0,
        )  # fmt: skip
        return AdaptiveSpanForCausalLM(config)

    stream = TextStream(text(LANES * SEGMENT + 1), SEGMENT, LANES)
    without, with_spans = (
        losses(train(tmp_path, stream, model=span_model(weight), label_smoothing_factor=0.2, max_steps=1))[0]
        for weight in (0.0, 1.0)
    )
    assert with_spans - without == pytest.approx(8.0, abs=1e-3)  # 2 layers x 1.0 x 4 positions


def test_an_epoch_begins_without_memory_whatever_the_dataset_says(tmp_path):
    ids = text(LANES * SEGMENT * 3 + 1)
    trainer = train(tmp_path, Bare(TextStream(ids, SEGMENT, LANES)), num_train_epochs=3)
    expected = by_hand(small_model(), ids, epochs=3)
    torch.testing.assert_close(losses(trainer), torch.tensor(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize("iterable", [False, True])
def test_a_last_batch_may_be_smaller(tmp_path, iterable: bool):
    """Its rows go on from the first rows of the batch before."""
    ids = text(LANES * SEGMENT * 3 + 1)
    bare = Bare(TextStream(ids, SEGMENT, LANES), count=2 * LANES + 1)
    trainer = train(tmp_path, Flowing(bare) if iterable else bare, bare, max_steps=3, dataloader_drop_last=False)
    model, mems, expected = small_model(), None, []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    cut = [(inputs[:rows], targets[:rows]) for (inputs, targets), rows in zip(segments(ids), (3, 3, 1), strict=True)]
    for inputs, targets in cut:
        outputs = model(inputs, mems=None if mems is None else mems.rows(slice(len(inputs))))
        mems = outputs.mems
        loss = F.cross_entropy(outputs.logits.transpose(1, 2), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    torch.testing.assert_close(losses(trainer), torch.tensor(expected), atol=1e-4, rtol=0)
    assert trainer.memory["train"].batch_size == 1


@pytest.mark.parametrize("iterable", [False, True])
def test_training_drops_a_smaller_batch_by_default_and_evaluation_never(tmp_path, iterable: bool):
    bare = Bare(TextStream(text(LANES * SEGMENT * 3 + 1), SEGMENT, LANES), count=2 * LANES + 1)
    dataset = Flowing(bare) if iterable else bare
    trainer = train(tmp_path, dataset, max_steps=2)
    assert trainer.memory["train"].batch_size == LANES
    assert len(trainer.predict(dataset).predictions) == 2 * LANES + 1
    assert trainer.args.dataloader_drop_last


def test_predictions_remember_with_and_without_labels(tmp_path):
    ids = text(LANES * SEGMENT * 3 + 1)
    stream = TextStream(ids, SEGMENT, LANES)
    trainer = MemoryTrainer(small_model(), arguments(tmp_path, use_cpu=True))
    model, mems, expected = small_model().eval(), None, []
    for inputs, _ in segments(ids):
        with torch.no_grad():
            outputs = model(inputs, mems=mems)
        mems = outputs.mems
        expected.append(outputs.logits)
    for dataset in (stream, Bare(stream), Bare(stream, labels=False)):
        output = trainer.predict(dataset)
        torch.testing.assert_close(torch.from_numpy(output.predictions), torch.cat(expected), atol=1e-5, rtol=1e-4)
    assert output.label_ids is None
    assert "test_loss" not in output.metrics


def test_metrics_compare_predictions_with_what_follows(tmp_path):
    ids = text(LANES * SEGMENT * 3 + 1)
    seen = {}

    def compute_metrics(prediction) -> dict[str, float]:
        seen["labels"] = prediction.label_ids
        nats = F.cross_entropy(
            torch.from_numpy(prediction.predictions).transpose(1, 2), torch.from_numpy(seen["labels"])
        )
        return {"nats": nats.item()}

    trainer = MemoryTrainer(small_model(), arguments(tmp_path, use_cpu=True), compute_metrics=compute_metrics)
    metrics = trainer.evaluate(TextStream(ids, SEGMENT, LANES))
    assert np.array_equal(seen["labels"], torch.cat([targets for _, targets in segments(ids)]).numpy())
    assert metrics["eval_nats"] == pytest.approx(metrics["eval_loss"], abs=1e-5)


def test_a_loss_of_ones_own_keeps_the_memory(tmp_path):
    ids = text(LANES * SEGMENT * 3 + 1)

    def next_tokens(outputs, labels, num_items_in_batch=None):
        return F.cross_entropy(outputs.logits[:, :-1].transpose(1, 2), labels[:, 1:])

    trainer = MemoryTrainer(
        small_model(), arguments(tmp_path, use_cpu=True, max_steps=2), compute_loss_func=next_tokens,
        train_dataset=TextStream(ids, SEGMENT, LANES),
    )  # fmt: skip
    trainer.train()
    assert trainer.memory["train"].num_columns == 8


def test_evaluation_takes_nothing_from_the_random_numbers_of_training(tmp_path):
    stream = TextStream(text(LANES * SEGMENT * 4 + 1), SEGMENT, LANES)
    found = []
    for strategy in ("no", "steps"):
        model = small_model()
        model.config.dropout = 0.5
        for module in model.modules():
            if type(module).__name__ == "Dropout":
                module.p = 0.5
        found.append(
            flat(train(tmp_path, stream, stream, model, eval_strategy=strategy, eval_steps=1, max_steps=4).model)
        )
    assert torch.equal(*found)


class Events(TrainerCallback):
    def __init__(self):
        self.steps, self.evaluations, self.ends = 0, [], 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.evaluations.append(metrics["eval_loss"])

    def on_train_end(self, args, state, control, **kwargs):
        self.ends += 1


def test_callbacks_are_called_and_early_stopping_stops(tmp_path):
    ids = text(LANES * SEGMENT * 4 + 1)
    events = Events()
    stopping = {
        "learning_rate": 0.0, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1,
        "metric_for_best_model": "loss", "load_best_model_at_end": True,
    }  # fmt: skip
    trainer = train(
        tmp_path, TextStream(ids, SEGMENT, LANES), TextStream(ids, SEGMENT, LANES), num_train_epochs=5,
        callbacks=[events, EarlyStoppingCallback(2)], **stopping,
    )  # fmt: skip
    assert (events.steps, events.ends, len(events.evaluations)) == (3, 1, 3)
    assert trainer.state.best_global_step == 1
    # what was stopped stays stopped when it is resumed, and goes on where that is asked for
    for restored, steps in ((True, 3), (False, 4)):
        events = Events()
        again = MemoryTrainer(
            small_model(),
            arguments(
                tmp_path, use_cpu=True, num_train_epochs=1, restore_callback_states_from_checkpoint=restored, **stopping
            ),
            train_dataset=TextStream(ids, SEGMENT, LANES), eval_dataset=TextStream(ids, SEGMENT, LANES),
            callbacks=[events, EarlyStoppingCallback(2)],
        )  # fmt: skip
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
        assert again.state.global_step == steps
        assert events.ends == 1


def test_a_search_begins_every_trial_without_memory(tmp_path):
    """Trials of equal parameters end with the same loss, and the batch size cannot leave the lanes."""
    needs("optuna")
    stream = TextStream(text(LANES * SEGMENT * 4 + 1), SEGMENT, LANES)
    trainer = MemoryTrainer(
        model_init=lambda: small_model(), args=arguments(tmp_path, use_cpu=True, num_train_epochs=1, eval_strategy="epoch"),
        train_dataset=stream, eval_dataset=stream,
    )  # fmt: skip
    rates, found = iter([0.05, 0.2, 0.05]), []

    def objective(metrics: dict[str, float]) -> float:
        found.append(metrics["eval_loss"])
        return found[-1]

    best = trainer.hyperparameter_search(lambda trial: {"learning_rate": next(rates)}, objective, 3, backend="optuna")
    assert found[0] == found[2] != found[1]
    assert best.objective == min(found)
    with pytest.raises(ValueError, match="lanes"):
        trainer.hyperparameter_search(
            lambda trial: {"per_device_train_batch_size": LANES + 1}, objective, 1, backend="optuna"
        )


def test_memory_is_carried_in_every_epoch(tmp_path):
    """Losses of an epoch differ from those of segments read alone: else the tests above would prove nothing."""
    ids = text(LANES * SEGMENT * 4 + 1)
    model = small_model()
    carried = by_hand(model, ids, epochs=1, lr=0.0)
    alone = [
        F.cross_entropy(model(inputs).logits.transpose(1, 2), targets).item() for inputs, targets in segments(ids)
    ]
    assert carried[0] == pytest.approx(alone[0], abs=1e-6)
    assert all(abs(a - b) > 1e-4 for (a, b) in list(zip(carried, alone, strict=True))[1:])
    assert all(a != b for a, b in pairwise(carried))
