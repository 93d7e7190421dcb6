"""The memory probe: its scores against loops, and what it reads with readers whose reach is known."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from optional_packages import needs
from tiny import tiny_config
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from transformers_xl import ShaRNNForCausalLM, TransformerXLForCausalLM
from transformers_xl.configuration.configuration_lstm import LSTMConfig
from transformers_xl.evaluation.probe import (
    ProbeScore,
    Reach,
    distance_edges,
    probe,
    reach,
    score_answers,
    wilson_interval,
)
from transformers_xl.evaluation.probe_options import ProbeOptions
from transformers_xl.evaluation.probe_plots import draw_probe
from transformers_xl.evaluation.probe_tasks import NO_ANSWER, TASKS, generate_text
from transformers_xl.modeling.modeling_lstm import LSTMForCausalLM

NEEDLE = TASKS["needle"]
SMALL = ProbeOptions(segment_length=8, max_distance=48, lanes=4, tokens=400)


def xl(**fields) -> TransformerXLForCausalLM:
    """Untrained, but for its choice of a value as every answer."""
    torch.manual_seed(0)
    model = TransformerXLForCausalLM(tiny_config("transformer_xl", vocab_size=NEEDLE.vocab_size, **fields)).eval()
    with torch.no_grad():
        model.lm_head.bias[65:73] += 100
    return model


@pytest.mark.parametrize(("right", "asked"), [(0, 7), (7, 7), (8, 10), (130, 400)])
def test_wilson_s_bounds_are_the_shares_that_the_count_is_just_compatible_with(right: int, asked: int):
    share = right / asked
    for bound in wilson_interval(right, asked, quantile=2.0):
        assert (share - bound) ** 2 == pytest.approx(4.0 * bound * (1 - bound) / asked, abs=1e-12)
    low, high = wilson_interval(right, asked)
    assert low <= share <= high
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_answers_are_counted_by_distance():
    generator = np.random.default_rng(0)
    answers = generator.integers(0, 4, (3, 50))
    answers[generator.random((3, 50)) < 0.5] = NO_ANSWER
    distances = np.where(answers == NO_ANSWER, 0, generator.integers(1, 13, (3, 50)))
    predicted = generator.integers(0, 4, (3, 50))
    score = score_answers(predicted, answers, distances, (2, 3, 10), 0.25)
    for (first, last), asked, right in zip(score.bins, score.asked, score.right, strict=True):
        here = [place for place in np.ndindex(3, 50) if first <= distances[place] <= last]
        assert asked == len(here) > 0
        assert right == sum(answers[place] == predicted[place] for place in here)
    assert score.bins == [(1, 2), (3, 3), (4, 10)]  # 11 and 12 are not counted


@pytest.mark.parametrize(
    ("right", "half"),
    [
        ((90, 90, 90, 90), 40),
        ((90, 80, 12, 10), 20),
        ((30, 90, 60, 10), 30),  # from the best bin on: what is nearer does not matter
        ((90, 10, 90, 10), 10),  # as far as it holds without a gap
        ((12, 14, 11, 12), None),  # a guess
        ((12, 20, 11, 12), None),  # the best of four bins of guesses: 20 of 100 would be certain in a single one
        ((12, 22, 11, 12), 20),
    ],
)
def test_half_is_the_distance_up_to_which_half_is_kept(right: tuple[int, ...], half: int | None):
    assert ProbeScore((10, 20, 30, 40), (100,) * 4, right, 0.125).half == half


def test_a_bin_without_questions_is_passed_over():
    score = ProbeScore((10, 20, 30), (100, 0, 100), (90, 0, 80), 0.125)
    assert score.accuracy == [0.9, None, 0.8]
    assert score.half == 30
    assert ProbeScore((10,), (0,), (0,), 0.125).half is None


class NeedleReader(nn.Module):
    """Answers by the last setting of the needle in what it is given, and with the question where there is none."""

    def __init__(self):
        super().__init__()
        self.device = torch.device("cpu")
        self.config = SimpleNamespace(model_type="reader", vocab_size=NEEDLE.vocab_size, num_hidden_layers=1)
        self.config.get_text_config = lambda: self.config

    def forward(self, ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        predicted = torch.full_like(ids, 64)
        for row, tokens in enumerate(ids.tolist()):
            for position, token in enumerate(tokens):
                before = predicted[row, position - 1] if position else 64
                predicted[row, position] = 65 + token if token < 8 else before
        return SimpleNamespace(logits=nn.functional.one_hot(predicted, NEEDLE.vocab_size))


@pytest.mark.parametrize("context", [0, 12, 24])
def test_a_reader_of_windows_is_right_as_far_as_they_reach(context: int):
    options = ProbeOptions(length=context, segment_length=12, max_distance=96, lanes=4, tokens=600)
    score = probe(NeedleReader(), NEEDLE, options)
    far = reach(NeedleReader(), options)
    assert far == Reach(context + 11, context + 11)
    for (first, last), accuracy in zip(score.bins, score.accuracy, strict=True):
        if last <= context:  # seen from every position of a segment
            assert accuracy == 1
        elif first > far.direct:
            assert accuracy == 0
    assert 0 in score.accuracy


def test_a_memory_is_carried_over_segments():
    """Exact memory: the same answers however the streams are cut, and others with another memory."""
    model = xl(mem_len=20)
    cut = [probe(model, NEEDLE, ProbeOptions(None, length, 48, 4, 400)) for length in (8, 32)]
    assert cut[0] == cut[1]
    shorter = ProbeOptions(2, 8, 48, 4, 400)
    assert probe(model, NEEDLE, shorter) == probe(xl(mem_len=2), NEEDLE, SMALL) != cut[0]
    assert model.config.mem_len == 20
    text = generate_text(NEEDLE, 4, 448, 48, SMALL.seed)
    with torch.no_grad():
        predicted = xl(mem_len=20)(torch.from_numpy(text.tokens)).logits.argmax(-1).numpy()
    counted = (each[:, 48:] for each in (predicted, text.answers, text.distances))
    assert score_answers(*counted, distance_edges(48), NEEDLE.chance) == cut[0]


def test_how_far_a_token_sees():
    assert reach(xl(mem_len=20), SMALL) == Reach(19, 38)
    sizes = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8, "pad_token_id": None}
    assert reach(LSTMForCausalLM(LSTMConfig(**sizes)), SMALL) == Reach(None, None)
    assert reach(xl(mem_len=20), ProbeOptions(length=30)) == Reach(29, 58)
    assert reach(xl(mem_len=0, same_length=False), SMALL) == Reach(7, 7)
    assert reach(ShaRNNForCausalLM(tiny_config("sha_rnn")), SMALL) == Reach(None, None)
    sizes = {"vocab_size": 96, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1}
    window = MistralConfig(**sizes, num_key_value_heads=1, intermediate_size=8, sliding_window=16)
    mistral = MistralForCausalLM(window)
    assert reach(mistral, SMALL) == Reach(15, 30)
    assert reach(mistral, ProbeOptions(length=10, segment_length=8)) == Reach(15, 17)


def test_a_model_that_cannot_be_asked_is_refused():
    with pytest.raises(ValueError, match="vocabulary of 5 tokens, needle one of 89"):
        probe(TransformerXLForCausalLM(tiny_config("transformer_xl", vocab_size=5)), NEEDLE, SMALL)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=20, n_embd=8, n_layer=1, n_head=1))
    assert reach(gpt2, SMALL) == Reach(19, 19)  # what its positions allow
    with pytest.raises(ValueError, match="`length`=13 with `segment_length`=8 .* 20 tokens .* at most 12"):
        probe(gpt2, NEEDLE, ProbeOptions(length=13, segment_length=8))
    for field in ("length", "segment_length", "max_distance", "lanes", "tokens", "seed"):
        with pytest.raises(ValueError, match=f"`{field}`=-1"):
            ProbeOptions(**{field: -1})
    with pytest.raises(ValueError, match="shape"):
        score_answers(np.zeros(3), np.zeros(3), np.zeros(2), (1,), 0.5)
    with pytest.raises(ValueError, match="`edges`"):
        score_answers(np.zeros(3), np.zeros(3), np.zeros(3), (4, 2), 0.5)


def test_the_module_of_evaluate_equals_the_function():
    evaluate = needs("evaluate")
    folder = Path(__file__).parent.parent.parent / "transformers_xl" / "evaluation" / "metrics" / "memory_probe"
    metric = evaluate.load(str(folder), keep_in_memory=True)
    generator = np.random.default_rng(1)
    columns = {"predictions": generator.integers(0, 3, 60), "references": generator.integers(0, 3, 60)}
    columns["distances"] = generator.integers(1, 20, 60)
    for half in (slice(0, 30), slice(30, 60)):
        metric.add_batch(**{name: values[half].tolist() for name, values in columns.items()})
    found = metric.compute(edges=[4, 16], chance=1 / 3)
    expected = score_answers(*columns.values(), (4, 16), 1 / 3)
    assert found["asked"] == list(expected.asked)
    assert found["accuracy"] == pytest.approx(expected.accuracy)
    assert [list(each) for each in found["intervals"]] == [pytest.approx(each) for each in expected.intervals]
    assert found["half"] == expected.half
    assert math.isclose(sum(found["asked"]), np.sum(columns["distances"] <= 16))


def test_the_picture_is_a_map_of_means():
    """A row for each model, means of its seeds; bold where each seed is above chance; a line where its reach ends."""
    bins = [[1, 8], [9, 16], [17, 32]]

    def seed(accuracy: list, low: float, direct: int | None) -> dict:
        intervals = [None if value is None else [low, 1.0] for value in accuracy]
        return {
            "accuracy": accuracy,
            "intervals": intervals,
            "bins": bins,
            "reach": {"direct": direct, "layers": None},
        }

    rows = {
        "near": [seed([1.0, 0.2, None], 0.1, 12), seed([0.8, 0.1, None], 0.3, 12)],
        "far": [seed([0.9] * 3, 0.5, None)],
    }
    axes = draw_probe(rows, "copy", 0.125).axes[0]
    texts = {text.get_position(): (text.get_text(), text.get_weight()) for text in axes.texts}
    assert texts[0, 0] == ("0.90", "normal")
    assert texts[1, 0] == ("0.15", "normal")
    assert (2, 0) not in texts  # nothing was asked
    assert texts[2, 1] == ("0.90", "bold")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["near", "far"]
    assert [line.get_xdata()[0] for line in axes.lines] == [1.0]  # half of the second bin
