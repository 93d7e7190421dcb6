"""What a text begins with is context of every score, wherever nothing is remembered; it is never predicted."""

import numpy as np
import pytest
import torch
from tiny import VOCAB_SIZE, tiny_model
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.bits_per_byte import score_moving_window, score_stream, score_text
from transformers_xl.evaluation.context_curve import context_curve, score_windows
from transformers_xl.evaluation.context_losses import token_losses_with_context
from transformers_xl.evaluation.distant_context import distant_context
from transformers_xl.evaluation.html_report import report_sections
from transformers_xl.evaluation.score_ways import score_ways
from transformers_xl.evaluation.text_scores import score_texts

SEGMENT = 6
BEGINNINGS = pytest.mark.parametrize("beginning", [[1], [1, 2]], ids=str)


@pytest.fixture(scope="module")
def model():
    return tiny_model("transformer_xl", "causal_lm", segment_length=SEGMENT)


@pytest.fixture(scope="module")
def forgets():
    return tiny_model("transformer_xl", "causal_lm", segment_length=SEGMENT, mem_len=0, same_length=False)


@pytest.fixture(scope="module")
def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCAB_SIZE, n_positions=24, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3)
    return GPT2LMHeadModel(config).eval()


def text(length: int = 23) -> np.ndarray:
    return np.random.default_rng(0).integers(3, VOCAB_SIZE, length)


@torch.no_grad()
def nats(model, context, target) -> float:
    """Of a token behind a context that is read in one call."""
    logits = model(torch.tensor([[int(token) for token in context]])).logits[0, -1]
    return F.cross_entropy(logits.float(), torch.tensor(int(target))).item()


@BEGINNINGS
@pytest.mark.parametrize("length", [1, 5, 23])
def test_with_memory_the_text_follows_its_beginning(model, beginning: list[int], length: int):
    ids = text(length)
    whole = np.array([*beginning, *ids])
    score = score_text(model, ids, beginning=beginning)
    assert score.tokens == score.bytes == length  # all of it is predicted
    expected = score_text(model, whole)  # which predicts the end of the beginning, too
    more = sum(nats(model, whole[:place], whole[place]) for place in range(1, len(beginning)))
    assert score.nats == pytest.approx(expected.nats - more, rel=1e-5)
    assert score_text(model, whole, beginning=beginning).nats == score.nats  # no second


@BEGINNINGS
def test_without_memory_every_segment_begins(model, beginning: list[int]):
    ids, new = text(), SEGMENT - len(beginning)
    score = score_text(model, ids, memory=False, beginning=beginning)
    expected = nats(model, beginning, ids[0])
    for start in range(0, len(ids), new):
        for place in range(start, min(start + new, len(ids) - 1)):
            expected += nats(model, [*beginning, *ids[start : place + 1]], ids[place + 1])
    assert score.tokens == len(ids)
    assert score.nats == pytest.approx(expected, rel=1e-5)
    assert np.flatnonzero(score.tokens_by_position)[0] == len(beginning) - 1
    ways = score_ways(model, ids, SEGMENT, beginning=beginning)
    assert ways["memory taken away"].nats == score.nats
    assert ways["with memory"].nats == score_text(model, ids, beginning=beginning).nats
    stream = TextStream(ids, SEGMENT, keep_tail=True, beginning=beginning, memory=False)
    assert score_stream(model, stream, memory=False).nats == score.nats
    with pytest.raises(ValueError, match="`stream` was made with `memory`=False"):
        score_stream(model, stream)


def test_a_model_without_memory_begins_with_every_segment(forgets):
    ids = text()
    expected = score_text(forgets, ids, memory=False, beginning=[1]).nats
    assert score_text(forgets, ids, beginning=[1]).nats == expected
    assert score_ways(forgets, ids, SEGMENT, beginning=[1])["in segments"].nats == expected
    overlapping = score_ways(forgets, ids, SEGMENT, beginning=[1], overlap=2)["in segments"]
    assert overlapping.tokens == len(ids)


@BEGINNINGS
def test_lanes_begin_too(model, beginning: list[int]):
    ids = text(24)
    score = score_text(model, ids, lanes=2, beginning=beginning)
    assert score.tokens == len(ids)
    # the second lane begins in mid-text, where its first token is predicted by the first lane
    alone = [score_text(model, lane, beginning=beginning).nats for lane in (ids[:13], ids[12:])]
    second = score_text(model, ids[12:], beginning=beginning)
    first_token = nats(model, beginning, ids[12])
    assert second.tokens == 12
    assert score.nats == pytest.approx(alone[0] + second.nats - first_token, rel=1e-5)


@BEGINNINGS
def test_a_moving_window_begins_every_time(forgets, beginning: list[int]):
    ids, window = text(), 7
    room = window - len(beginning)
    score = score_moving_window(forgets, ids, window, batch_size=4, beginning=beginning)
    expected = [
        nats(forgets, [*beginning, *ids[max(0, place - room) : place]], ids[place]) for place in range(len(ids))
    ]
    assert score.tokens == len(ids)
    assert score.nats == pytest.approx(sum(expected), rel=1e-5)


@BEGINNINGS
@pytest.mark.parametrize("context", [0, 1, 9, 18])
def test_windows_that_are_read_again(gpt2, beginning: list[int], context: int):
    ids, new = text(), SEGMENT - len(beginning)
    score = score_windows(gpt2, ids, context, SEGMENT, batch_size=2, beginning=beginning)
    expected = nats(gpt2, beginning, ids[0])
    for start in range(0, len(ids), new):
        first = max(0, start - context)
        for place in range(start, min(start + new, len(ids) - 1)):
            expected += nats(gpt2, [*beginning, *ids[first : place + 1]], ids[place + 1])
    assert score.tokens == len(ids)
    assert score.nats == pytest.approx(expected, rel=1e-5)
    assert context_curve(gpt2, ids, [context], SEGMENT, beginning=beginning)[context].nats == pytest.approx(score.nats)


def test_a_curve_of_memories(model):
    scores = context_curve(model, text(), [0, 4], SEGMENT, beginning=[1])
    assert scores[0].nats == score_text(model, text(), memory=False, beginning=[1]).nats
    assert {score.tokens for score in scores.values()} == {23}


@BEGINNINGS
@pytest.mark.parametrize("name", ["model", "gpt2"])
def test_exactly_c_tokens_of_text_behind_the_beginning(request, name: str, beginning: list[int]):
    reader, ids, positions, lengths = request.getfixturevalue(name), text(60), [30, 34, 59], [1, 4, 15, 30]
    limit = 24 if name == "gpt2" else 10_000
    found = token_losses_with_context(reader, ids, lengths, np.array(positions), 2, beginning=beginning)
    for row, length in zip(found, lengths, strict=True):
        length = min(length, limit - len(beginning))
        expected = [nats(reader, [*beginning, *ids[place - length : place]], ids[place]) for place in positions]
        np.testing.assert_allclose(row, expected, atol=1e-5)


def test_the_beginning_is_no_distant_text(gpt2):
    ids, places = text(60), np.array([30, 45, 59])
    found = distant_context(gpt2, ids, [2], 23, places, beginning=[1])
    expected = [nats(gpt2, [1, *ids[place - 23 : place]], ids[place]) for place in places]
    np.testing.assert_allclose(found.whole, expected, atol=1e-5)
    # tokens that are all alike cannot be shuffled
    alike = distant_context(gpt2, np.full(60, 5), [2], 23, places, beginning=[1])
    np.testing.assert_allclose(alike.perturbed["shuffle"][2], alike.whole, atol=1e-6)
    with pytest.raises(ValueError, match="`context`=24 is more than the 23 tokens of a text"):
        distant_context(gpt2, ids, [2], 24, places, beginning=[1])


def test_texts_one_by_one(model):
    class Letters:
        """Symbols as ids, behind id 1."""

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict:
            return {"input_ids": [1] * add_special_tokens + [3 + ord(symbol) % 20 for symbol in text]}

    (one, other) = score_texts(["a", "b c"], model, Letters())
    assert (one.tokens, one.bytes, other.tokens, other.bytes, other.words) == (1, 1, 3, 3, 2)
    assert one.nats == pytest.approx(nats(model, [1], 3 + ord("a") % 20), rel=1e-5)
    with pytest.raises(ValueError, match="of 0 tokens: give texts of at least one"):
        score_texts([""], model, Letters())


@pytest.mark.parametrize("memory", [True, False])
def test_the_pictures_show_what_is_read(memory: bool, monkeypatch: pytest.MonkeyPatch):
    fields = {} if memory else {"mem_len": 0, "same_length": False}
    model, ids = tiny_model("transformer_xl", "causal_lm", segment_length=SEGMENT, **fields), text()

    class Spelled:
        def decode(self, ids) -> str:
            return f"{ids[0]} "

    rows: list[list[int]] = []
    model.model.embed_tokens.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0][0].tolist()))
    sections = list(report_sections(model, Spelled(), ids, beginning=[1]))
    assert len(sections) > 2
    begins = [row for row in rows if 1 in row]
    assert all(row.count(1) == 1 and row[0] == 1 for row in begins)
    assert len(begins) < len(rows) if memory else len(begins) == len(rows)
