"""The speed of evaluation: what is timed is what it says, and it says how long it took."""

from types import SimpleNamespace

import pytest
import torch
from tiny import tiny_model, tokens
from transformers import GPT2Config, GPT2LMHeadModel

from transformers_xl.evaluation import speed
from transformers_xl.evaluation.context_curve import memory_length
from transformers_xl.evaluation.speed import evaluation_speed, segment_reader, take_turns, window_reader


def test_a_row_for_each_length(monkeypatch: pytest.MonkeyPatch):
    """By a clock on which each token that the model reads takes a second."""
    model, read = tiny_model("transformer_xl", "causal_lm", dtype=torch.float32).train(), [0]
    model.register_forward_pre_hook(lambda _, args: read.append(args[0].shape[1]))
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: sum(read)))
    rows = evaluation_speed(model, tokens(1, 140)[0], [40, 130], repeats=2)
    expected = [{"attention": length, "moving_window": length, "segments": 1, "ratio": length} for length in (40, 130)]
    assert rows == expected
    assert model.training
    assert model.config.mem_len == 8


def test_both_ways_predict_the_same():
    """One layer sees exactly `mem_len` tokens, and so does the window: the timed calls are two ways to one result."""
    model, ids = tiny_model("transformer_xl", "causal_lm", num_hidden_layers=1), tokens(1, 40)
    with memory_length(model, 30), torch.inference_mode():
        by_segments = segment_reader(model, ids[:, :30], ids[:, 30:36])().logits[0]
        for position in range(6):
            window = ids[:, position + 1 : position + 31]
            by_window = window_reader(model, window)().logits[0, -1]
            torch.testing.assert_close(by_segments[position], by_window, atol=1e-9, rtol=1e-9)


def test_turns_are_timed_one_by_one(monkeypatch):
    """By a clock that only the calls move: what else the machine does takes no part."""
    called, seconds = [], {"slow": 5, "fast": 1}
    clock = SimpleNamespace(perf_counter=lambda: sum(seconds[name] for name in called))
    monkeypatch.setattr(speed, "time", clock)
    runs = {name: lambda name=name: called.append(name) for name in seconds}
    times = take_turns(runs, repeats=2)
    assert called == ["slow", "fast"] * 3  # the first is not counted
    assert times == {"slow": [5, 5], "fast": [1, 1]}


def test_what_cannot_be_timed_is_refused():
    model, ids = tiny_model("transformer_xl", "causal_lm"), tokens(1, 40)[0]
    with pytest.raises(ValueError, match="needs 46"):
        evaluation_speed(model, ids, [40])
    with pytest.raises(ValueError, match="`repeats`"):
        evaluation_speed(model, ids, [10], repeats=0)
    with pytest.raises(ValueError, match="`attention_lengths`"):
        evaluation_speed(model, ids, [0])
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=64, n_embd=8, n_layer=1, n_head=1))
    for other in (tiny_model("vanilla_transformer", "causal_lm"), gpt2):
        with pytest.raises(ValueError, match="without memory"):
            evaluation_speed(other, ids, [10])
