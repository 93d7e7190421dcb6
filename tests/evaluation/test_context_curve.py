"""Bits per byte against the length of the memory, and of a window that is read anew."""

import math

import numpy as np
import pytest
import torch
from tiny import MEM_LEN, VOCAB_SIZE, one_of_each_kind, tiny_config, tiny_model, variants
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from transformers_xl.evaluation.bits_per_byte import score_text
from transformers_xl.evaluation.context_curve import context_curve, curve_lengths, memory_length, score_windows
from transformers_xl.evaluation.speed import evaluation_speed
from transformers_xl.modeling.auto import VARIANTS

SEGMENT = 6


def text(length: int = 45) -> np.ndarray:
    return np.random.default_rng(0).integers(3, VOCAB_SIZE, length)


def gpt2(positions: int = 24) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB_SIZE, n_positions=positions, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3
    )
    return GPT2LMHeadModel(config).eval()


@torch.no_grad()
def windows_by_hand(model, ids: np.ndarray, context: int) -> torch.Tensor:
    """Nats of every token but the first: its segment is read behind the `context` tokens before it, in its own call."""
    tokens, nats = torch.from_numpy(ids), []
    for start in range(0, len(ids) - 1, SEGMENT):
        first = max(0, start - context)
        window, targets = tokens[first : start + SEGMENT], tokens[start + 1 : start + SEGMENT + 1]
        logits = model(window[None]).logits[0, start - first :][: len(targets)]
        nats.append(F.cross_entropy(logits.float(), targets, reduction="none"))
    return torch.cat(nats)


@pytest.mark.parametrize("context", [0, 4, 6, 15])
@pytest.mark.parametrize("length", [2, 13, 45])
def test_windows_equal_a_loop(context: int, length: int):
    model, ids = gpt2(), text(length)
    expected = windows_by_hand(model, ids, context)
    score = score_windows(model, ids, context, SEGMENT, batch_size=3)
    assert score.tokens == score.bytes == length - 1
    assert score.nats == pytest.approx(expected.sum().item(), rel=1e-5)
    for position in range(min(SEGMENT, length - 1)):
        at_position = expected[position::SEGMENT].mean().item() / math.log(2)
        assert score.bits_per_byte_by_position[position] == pytest.approx(at_position, rel=1e-5)


# every variant is resized in tests/modeling/test_resize_memory.py: one of each memory, and those with windows of their own
REMEMBERING = one_of_each_kind(variants(causal_lm=True, memory=("exact", "own")))
REMEMBERING += ["adaptive_span", "tensorized_transformer"]


@pytest.mark.parametrize("model_type", REMEMBERING)
def test_a_memory_of_another_length_is_that_of_a_model_made_so(model_type: str):
    """Weights do not know how long the memory is: each length is what a model with this config and these weights has."""
    # adaptive span and the Longformer have windows of their own, that a config made anew would take from its memory
    fields = {
        "adaptive_span": {"max_span": MEM_LEN},
        "causal_longformer": {"attention_window": MEM_LEN},
        "tensorized_transformer": {"attention_window": 3},
    }
    fields = fields.get(model_type, {})
    model = tiny_model(model_type, "causal_lm", dtype=torch.float32, **fields)
    scores = context_curve(model, text(), [0, MEM_LEN // 4, MEM_LEN, 4 * MEM_LEN])
    assert model.config.mem_len == MEM_LEN
    for length in (MEM_LEN // 4, 4 * MEM_LEN):
        config = tiny_config(model_type, **fields)
        other = VARIANTS[model_type].causal_lm_class(config).eval()
        other.resize_memory(length)
        other.load_state_dict(model.state_dict())
        expected = score_text(other, text())
        assert scores[length].nats == pytest.approx(expected.nats, rel=1e-5)
    assert scores[0].nats != pytest.approx(scores[MEM_LEN].nats, rel=1e-6)


def test_lengths_that_nobody_named():
    """None, and half and twice the length that the model has, twice each; none is a call without memory."""
    model = tiny_model("transformer_xl", "causal_lm", dtype=torch.float32)
    scores = context_curve(model, text())
    assert list(scores) == [0, MEM_LEN // 4, MEM_LEN // 2, MEM_LEN, 2 * MEM_LEN, 4 * MEM_LEN]
    for length, memory in ((0, False), (MEM_LEN, True)):
        assert scores[length].nats == pytest.approx(score_text(model, text(), memory=memory).nats, rel=1e-6)


def test_more_memory_is_more_context():
    """A Transformer-XL of one layer sees exactly the tokens that its memory holds."""
    model = tiny_model("transformer_xl", "causal_lm", num_hidden_layers=1)
    ids = text(60)
    for length, score in context_curve(model, ids, [3, 20, 59]).items():
        tokens, nats = torch.from_numpy(ids), 0.0
        with torch.no_grad(), memory_length(model, 60):
            for t in range(1, 60):
                nats -= model(tokens[None, max(0, t - length) : t]).logits[0, -1].log_softmax(-1)[tokens[t]].item()
        assert score.nats == pytest.approx(nats, rel=1e-6)


def test_lengths_of_models_without_memory():
    """What is left of the positions beside a segment; without bounds, segments; nothing that cannot be read."""
    assert list(context_curve(gpt2(16), text(), segment_length=4)) == [0, 3, 6, 12]
    assert list(context_curve(gpt2(16), text())) == [0, 2, 4, 8]  # segments of 8
    unbounded = tiny_model("transformer_xl", "causal_lm", mem_len=0, same_length=False, segment_length=8)
    scores = context_curve(unbounded, text())
    assert list(scores) == [0, 2, 4, 8, 16, 32]
    assert scores[0].nats == pytest.approx(score_text(unbounded, text()).nats, rel=1e-5)
    vanilla = tiny_model("vanilla_transformer", "causal_lm", segment_length=16)
    assert list(context_curve(vanilla, text())) == [0, 2, 4, 8]


def test_a_length_lasts_as_long_as_its_block():
    model = tiny_model("transformer_xl", "causal_lm")
    with memory_length(model, 3):
        assert model.model.config.mem_len == 3
    assert model.config.mem_len == MEM_LEN
    with pytest.raises(ValueError, match="too short"):
        context_curve(model, text(1), [3])
    assert model.config.mem_len == MEM_LEN


def test_lengths_that_a_model_cannot_run_with_are_refused_before_any_work_and_left_out_by_default(monkeypatch):
    model = tiny_model("causal_longformer", "causal_lm", num_hidden_layers=1, attention_dilation=4)
    with pytest.raises(ValueError, match="`attention_dilation`=4"), memory_length(model, 2):
        pass
    assert model.config.mem_len == MEM_LEN
    assert curve_lengths(model, SEGMENT) == [0, 4, 8, 16, 32]
    monkeypatch.setattr(model, "forward", None)
    with pytest.raises(ValueError, match="`attention_dilation`=4"):
        context_curve(model, text(), [0, 8, 2])
    with pytest.raises(ValueError, match="`attention_dilation`=4"):
        evaluation_speed(model, text(), [8, 2])


def test_what_cannot_be_meant_is_refused():
    model = tiny_model("transformer_xl", "causal_lm")
    with pytest.raises(ValueError, match="holds -1"):
        context_curve(model, text(), [-1])
    with pytest.raises(ValueError, match="above 18"):
        context_curve(gpt2(), text(), [19], segment_length=6)
    with pytest.raises(ValueError, match="without memory"), memory_length(gpt2(), 3):
        pass
    with pytest.raises(ValueError, match="`mem_len`=0"), memory_length(model, 0):
        pass
    for arguments, name in (
        ({"context": -1}, "context"),
        ({"batch_size": 0}, "batch_size"),
        ({"num_bytes": 0}, "num"),
    ):
        with pytest.raises(ValueError, match=f"`{name}"):
            score_windows(gpt2(), text(), **({"context": 2, "segment_length": 4} | arguments))
