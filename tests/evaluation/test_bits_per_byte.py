"""Bits per byte against a loop written by hand."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import set_seed

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.evaluation.bits_per_byte import bits_per_byte, score_moving_window, score_text
from transformers_xl.evaluation.score_ways import score_ways

VOCAB, SEGMENT = 23, 6


@pytest.fixture(scope="module")
def model() -> TransformerXLForCausalLM:
    set_seed(0)
    config = TransformerXLConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, mem_len=9, segment_length=SEGMENT,
        initializer_range=0.3,
    )  # fmt: skip
    return TransformerXLForCausalLM(config)


def text(length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCAB, length)


@torch.no_grad()
def by_hand(model, ids: np.ndarray, memory: bool) -> torch.Tensor:
    """Nats of every token but the first, one segment after the other."""
    model.eval()
    tokens, mems, nats = torch.from_numpy(ids)[None], None, []
    for start in range(0, len(ids), SEGMENT):
        outputs = model(tokens[:, start : start + SEGMENT], mems=mems if memory else None)
        mems = outputs.mems
        targets = tokens[0, start + 1 : start + SEGMENT + 1]
        nats.append(F.cross_entropy(outputs.logits[0, : len(targets)], targets, reduction="none"))
    return torch.cat(nats)


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("length", [2, SEGMENT, 5 * SEGMENT, 5 * SEGMENT + 4])
def test_equals_a_loop_by_hand(model, memory: bool, length: int):
    ids = text(length)
    expected = by_hand(model, ids, memory)
    score = score_text(model, ids, memory=memory)
    assert score.tokens == score.bytes == length - 1
    assert score.nats == pytest.approx(expected.sum().item(), rel=1e-5)
    assert score.bits_per_byte == pytest.approx(expected.mean().item() / math.log(2), rel=1e-5)
    assert bits_per_byte(model, ids, memory=memory) == score.bits_per_byte
    for position in range(min(SEGMENT, length - 1)):
        at_position = expected[position::SEGMENT].mean().item() / math.log(2)
        assert score.bits_per_byte_by_position[position] == pytest.approx(at_position, rel=1e-5)


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_segment_that_is_longer_than_the_text(model, lanes: int):
    """It takes no more than one as long as the text."""
    ids = text(41)
    for name, score in score_ways(model, ids, 10**13, lanes).items():
        assert score.nats == pytest.approx(score_text(model, ids, 41, lanes, name == "with memory").nats)
        assert len(score.losses_by_position) == 41


def test_lanes_are_texts_of_their_own(model):
    ids = text(41)
    # as `TextStream` cuts two lanes of 41 tokens; the last token of the first lane predicts the first of the second
    alone = [score_text(model, lane) for lane in (ids[:21], ids[20:])]
    assert score_text(model, ids, lanes=2).nats == pytest.approx(sum(score.nats for score in alone), rel=1e-5)


def test_leaves_the_mode_alone(model):
    for mode in (True, False):
        model.train(mode)
        score_text(model, text(20))
        assert model.training is mode


def test_bytes_may_be_given(model):
    ids = text(20)
    assert score_text(model, ids, num_bytes=38).bits_per_byte == pytest.approx(
        score_text(model, ids).bits_per_byte / 2
    )
    with pytest.raises(ValueError, match="num_bytes"):
        score_text(model, ids, num_bytes=0)
    with pytest.raises(ValueError, match="too short"):
        score_text(model, text(1))
    with pytest.raises(ValueError, match="too short"):  # and not that it has no bytes
        score_text(model, text(1), num_bytes=0)


@pytest.mark.parametrize("length", [2, SEGMENT, 3 * SEGMENT + 1])
@pytest.mark.parametrize("batch_size", [1, 4, 99])
def test_a_window_moves_one_token_at_a_time(model, length: int, batch_size: int):
    """Each token is predicted from the window before it, read alone."""
    ids = text(length)
    tokens, nats = torch.from_numpy(ids), 0.0
    model.eval()
    for position in range(1, length):
        context = tokens[max(0, position - SEGMENT) : position]
        with torch.no_grad():
            nats -= model(context[None]).logits[0, -1].log_softmax(-1)[tokens[position]].item()
    score = score_moving_window(model, ids, batch_size=batch_size)
    assert score.tokens == score.bytes == length - 1
    assert score.nats == pytest.approx(nats, rel=1e-5)
    assert score_moving_window(model, ids, window=length, batch_size=batch_size).nats == pytest.approx(
        score_text(model, ids, segment_length=length, memory=False).nats, rel=1e-5
    )
    assert score_moving_window(model, ids, num_bytes=3).bytes == 3


def test_a_moving_window_that_cannot_be_meant(model):
    for arguments, name in (
        ({"window": 0}, "window"),
        ({"batch_size": 0}, "batch_size"),
        ({"num_bytes": 0}, "num_bytes"),
    ):
        with pytest.raises(ValueError, match=f"`{name}`=0"):
            score_moving_window(model, text(20), **arguments)
    with pytest.raises(ValueError, match="too short"):
        score_moving_window(model, text(1))
