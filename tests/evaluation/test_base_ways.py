"""The ways in which a base reads a text, each against a loop by hand that makes all logits."""

import math

import pytest
import torch
from tiny_bases import VOCAB_SIZE, read_with_band, tiny_base

from transformers_xl import add_memory
from transformers_xl.evaluation.base_ways import cache_tensors, score_base_ways

SEGMENT, MEM_LEN, BEGIN, TOKENS = 6, 10, 1, 40
TEXT = torch.randint(3, VOCAB_SIZE, (TOKENS,), generator=torch.Generator().manual_seed(0))


def nats_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -logits.double().log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)


def read_again(base, before: int) -> torch.Tensor:
    """Each segment behind a begin and the tokens before it."""
    found = [nats_of(base(torch.tensor([[BEGIN]])).logits[0], TEXT[:1])]
    for start in range(0, TOKENS - 1, SEGMENT):
        first, stop = max(0, start - before), min(start + SEGMENT, TOKENS - 1)
        ids = torch.cat([torch.tensor([BEGIN]), TEXT[first:stop]])[None]
        found.append(nats_of(base(ids).logits[0, -(stop - start) :], TEXT[start + 1 : stop + 1]))
    return torch.cat(found)


def whole(logits: torch.Tensor) -> torch.Tensor:
    """Of a call that reads the begin and all but the last token."""
    return nats_of(logits[0], TEXT)


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("has_memory", [True, False])
def test_every_way_is_a_loop_by_hand(family: str, has_memory: bool):
    base = tiny_base(family)
    given = add_memory(base, mem_len=MEM_LEN, segment_length=SEGMENT) if has_memory else base
    scores = score_base_ways(given, TEXT.numpy(), [BEGIN], SEGMENT, MEM_LEN, num_bytes=100)
    ids = torch.cat([torch.tensor([BEGIN]), TEXT[:-1]])[None]
    sinks = add_memory(base, mem_len=MEM_LEN, num_sinks=4)
    expected = {
        "base, segments of 6": read_again(base, 0),
        "base, windows of 12 read again": read_again(base, SEGMENT),
        "base, its own cache": whole(base(ids).logits),
        "window of 10, no sinks": whole(read_with_band(base, ids, MEM_LEN)),
        "window of 10, 4 sinks": whole(sinks(ids).logits),
    }
    assert [*scores] == [*expected]
    for name, nats in expected.items():
        score = scores[name]
        assert score.tokens == TOKENS
        assert score.nats == pytest.approx(nats.sum().item(), rel=1e-6), name
        assert score.late_nats == pytest.approx(nats[MEM_LEN:].sum().item(), rel=1e-6), name
        assert score.perplexity == pytest.approx(math.exp(nats.mean().item()), rel=1e-6)
        assert score.bits_per_byte == pytest.approx(nats.sum().item() / math.log(2) / 100, rel=1e-6)
        assert score.milliseconds > 0


def test_what_is_kept_is_counted():
    base = tiny_base("llama")
    scores = score_base_ways(base, TEXT.numpy(), [BEGIN], SEGMENT, MEM_LEN)
    a_token = 2 * base.config.num_hidden_layers * base.config.num_key_value_heads * base.config.head_dim * 8
    kept = [score.kept_bytes for score in scores.values()]
    assert kept[:3] == [0, 0, TOKENS * a_token]  # the begin in place of the last token, which is only predicted
    assert (MEM_LEN - 1) * a_token <= kept[3] < MEM_LEN * a_token
    assert (MEM_LEN - 1 + 4) * a_token <= kept[4]


def test_states_are_kept_too():
    """A hybrid's cache holds keys and values in one layer, and the states of a recurrence in another."""
    base = tiny_base("qwen3_next")
    cache = base(TEXT[None], use_cache=True).past_key_values
    recurrent, full = cache.layers
    states = [*recurrent.conv_states.values(), *recurrent.recurrent_states.values()]
    assert len(states) == 2
    expected = [id(each) for each in (*states, full.keys, full.values)]
    assert [id(each) for each in cache_tensors(cache)] == expected


def test_a_base_begins_a_text_again_behind_its_last_position():
    base = tiny_base("llama", max_position_embeddings=2 * SEGMENT + 1)
    score = score_base_ways(base, TEXT.numpy(), [BEGIN], SEGMENT, SEGMENT)["base, its own cache"]
    nats = []
    with torch.no_grad():
        for start in range(0, TOKENS - 1, 2 * SEGMENT):
            stop = min(start + 2 * SEGMENT, TOKENS - 1)
            ids = torch.cat([torch.tensor([BEGIN]), TEXT[start:stop]])[None]
            skipped = int(start > 0)  # what a begin in mid-text would predict, the text before it has
            nats.append(nats_of(base(ids).logits[0, skipped:], TEXT[start + skipped : stop + 1]))
    assert score.nats == pytest.approx(torch.cat(nats).sum().item(), rel=1e-6)


def test_memory_tokens_have_a_way_of_their_own():
    model = add_memory(tiny_base("llama"), kind="tokens", num_memory_tokens=3, segment_length=SEGMENT)
    scores = score_base_ways(model, TEXT.numpy(), [BEGIN])
    ids = torch.cat([torch.tensor([BEGIN]), TEXT[:-1]])[None]
    with torch.no_grad():
        expected = whole(model(ids).logits).sum().item()
    assert [*scores][3:] == ["3 memory tokens"]
    assert scores["3 memory tokens"].nats == pytest.approx(expected, rel=1e-6)
    assert scores["3 memory tokens"].late_perplexity is None  # of a text that is shorter than any window


def test_a_text_without_a_begin():
    scores = score_base_ways(tiny_base("llama"), TEXT.numpy(), [], SEGMENT, MEM_LEN)
    assert {score.tokens for score in scores.values()} == {TOKENS - 1}


@torch.no_grad()
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_no_more_is_read_again_than_a_base_has_positions(family: str):
    """GPT-2 has no others; a rotary base was trained for no others."""
    base = tiny_base(family, max_position_embeddings=TOKENS)
    model = add_memory(base, kind="tokens", num_memory_tokens=1, segment_length=SEGMENT)
    score = score_base_ways(model, TEXT.numpy(), [BEGIN], SEGMENT, 60)["base, windows of 39 read again"]
    assert score.nats == pytest.approx(read_again(base, 39 - SEGMENT).sum().item(), rel=1e-6)
    with pytest.raises(ValueError, match=r"`segment_length`=40: the base was trained for 40 positions"):
        score_base_ways(model, TEXT.numpy(), [BEGIN], TOKENS, 60)
