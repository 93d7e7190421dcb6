"""What the models of the memory probe are trained on, and that any causal language model can be."""

import dataclasses
import tempfile
from pathlib import Path

import pytest
import torch

from transformers_xl.evaluation.probe_tasks import NO_ANSWER, TASKS, generate_text
from transformers_xl.runs.probe_models import build_probe_model
from transformers_xl.runs.probe_terms import LANES, ProbeTerms
from transformers_xl.runs.probe_training import MemorySegments, WindowSegments, answer_loss, fit_probe

LENGTH, SEGMENT = 60, 12
TEXT = generate_text(TASKS["needle"], 3, LENGTH, 16, seed=0)


def test_segments_follow_each_other_in_every_lane():
    stream = MemorySegments(TEXT, SEGMENT, 0)
    assert len(stream) == 15
    items = [stream[index] for index in range(15)]
    for lane in range(3):
        mine = items[lane::3]
        assert torch.cat([item["input_ids"] for item in mine]).tolist() == TEXT.tokens[lane].tolist()
        assert torch.cat([item["shift_labels"] for item in mine]).tolist() == TEXT.answers[lane].tolist()
        assert [bool(item["reset"]) for item in mine] == [True, False, False, False, False]


@pytest.mark.parametrize("context", [0, 5, 30])
def test_windows_are_the_segments_behind_their_context(context: int):
    alone, windows = MemorySegments(TEXT, SEGMENT, 0), WindowSegments(TEXT, SEGMENT, context)
    for index in range(len(windows)):
        item, start = windows[index], index // 3 * SEGMENT
        before = min(start, context)
        assert item["input_ids"].tolist() == TEXT.tokens[index % 3, start - before : start + SEGMENT].tolist()
        assert item["labels"][:before].tolist() == [NO_ANSWER] * before
        assert item["labels"][before:].tolist() == alone[index]["shift_labels"].tolist()


@pytest.mark.parametrize("model_type", ["transformer_xl", "vanilla_transformer", "gpt2", "mistral", "mamba2"])
def test_answers_alone_are_learned_beside_their_questions(model_type: str):
    """The first loss of a training is that of the untrained model, reckoned by hand."""
    terms = ProbeTerms("needle", model_type, steps=1, mem_len=16, segment_length=8, max_distance=6)
    model = build_probe_model(terms)
    text = generate_text(TASKS["needle"], LANES, 8, 6, seed=0)
    with torch.no_grad():
        log_probabilities = model.eval()(torch.from_numpy(text.tokens)).logits.log_softmax(-1)
    asked = text.answers != NO_ANSWER
    expected = -log_probabilities[torch.from_numpy(asked), torch.from_numpy(text.answers[asked])].mean()
    with tempfile.TemporaryDirectory() as folder:
        (first, *_) = fit_probe(model.train(), terms, Path(folder)).state.log_history
    assert first["loss"] == pytest.approx(expected.item(), rel=1e-3)


def test_a_window_without_a_question_has_no_loss_that_is_nan():
    outputs = type("Outputs", (), {"logits": torch.zeros(1, 3, 5)})
    assert answer_loss(outputs, torch.full((1, 3), NO_ANSWER)) == 0


def test_what_is_no_causal_language_model_is_refused():
    for model_type in ("star_transformer", "vit", "nothing", "segment_memory"):
        with pytest.raises(ValueError, match=f"`model_type`='{model_type}'"):
            build_probe_model(ProbeTerms("needle", model_type))
    for field, value in (("steps", 0), ("mem_len", -1), ("learning_rate", 0.0)):
        with pytest.raises(ValueError, match=f"`{field}`={value}"):
            dataclasses.replace(ProbeTerms("needle", "gpt2"), **{field: value})
