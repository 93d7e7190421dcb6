"""What the models of a comparison are: as large as each other, and given what the comparison says that they see."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import AROUND_BASES, variants
from torch.nn import functional as F

from transformers_xl.data.text_stream import TextStream
from transformers_xl.runs import comparison_runs
from transformers_xl.runs.baselines import WindowStream
from transformers_xl.runs.comparison_speeds import TokenTimes, training_step, writer
from transformers_xl.runs.comparison_terms import ComparisonTerms

TERMS = ComparisonTerms(hidden_size=16, layers=2, heads=2, mem_len=12, segment_length=8, batch_size=3)
LANES, SEGMENT, MEMORY = 3, 8, 12
IDS = np.random.default_rng(0).integers(3, 259, 203)


def build(name: str):
    torch.manual_seed(0)
    return comparison_runs.builders()[name](TERMS, 0, 32).eval()


def test_all_models_are_equally_large():
    names = list(comparison_runs.builders())
    from_nothing = [each for each in variants(causal_lm=True) if each not in AROUND_BASES]
    assert sorted(names) == sorted([*from_nothing, "gpt2", "lstm", "mamba2", "mistral"])
    for terms in (TERMS, replace(TERMS, hidden_size=32, layers=3)):
        names = names if terms is TERMS else ["transformer_xl", "gpt2", "lstm"]
        widths, target = comparison_runs.inner_widths(terms, names)
        for name in names:
            model = comparison_runs.builders()[name](terms, 0, widths[name])
            if hasattr(model, "prepare_for_inference"):
                model.prepare_for_inference()
            assert abs(sum(p.numel() for p in model.parameters()) / target - 1) < 0.03, name
    assert comparison_runs.inner_widths(terms, ["gpt2"]) == ({"gpt2": widths["gpt2"]}, target)


def test_a_model_that_cannot_take_part_is_in_nobodys_way():
    one_layer = replace(TERMS, layers=1)
    widths, _ = comparison_runs.inner_widths(one_layer, ["gpt2", "macaron"])
    assert set(widths) == {"gpt2", "macaron"}
    with pytest.raises(ValueError, match="num_hidden_layers"):
        comparison_runs.inner_widths(one_layer, ["gpt2", "sha_rnn"])


def test_no_way_to_equal_parameters_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparison_runs, "TOLERANCE", 1e-6)
    with pytest.raises(ValueError, match="`hidden_size`=16: gpt2 has"):
        comparison_runs.inner_widths(TERMS, ["gpt2"])


@pytest.mark.parametrize("context", [0, 5, 12])
def test_windows_are_the_segments_behind_their_context(context: int):
    stream = TextStream(IDS, SEGMENT, LANES)
    windows = WindowStream(stream, context)
    lane_length = stream.segments * SEGMENT
    assert len(windows) == len(stream) == stream.segments * LANES
    for index in range(len(windows)):
        segment, lane = index // LANES, index % LANES
        begin = lane * lane_length
        start = begin + segment * SEGMENT
        first = max(begin, start - context)
        item = windows[index]
        assert item["input_ids"].tolist() == IDS[first : start + SEGMENT].tolist()
        assert (
            item["shift_labels"].tolist() == [-100] * (start - first) + IDS[start + 1 : start + SEGMENT + 1].tolist()
        )
        assert item["shift_labels"][start - first :].equal(stream[index]["shift_labels"])
        assert item["labels"].tolist() == [-100] * (start - first) + IDS[start : start + SEGMENT].tolist()


def test_what_the_models_are_trained_on():
    stream = TextStream(IDS, SEGMENT, LANES)
    assert comparison_runs.stream_for(build("transformer_xl"), stream, TERMS) is stream
    assert comparison_runs.stream_for(build("vanilla_transformer"), stream, TERMS) is stream
    assert comparison_runs.stream_for(build("lstm"), stream, TERMS) is stream
    assert comparison_runs.stream_for(build("gpt2"), stream, TERMS).context == 0
    mistral = build("mistral")
    for each in (mistral, build("mamba2")):
        assert comparison_runs.stream_for(each, stream, TERMS).context == MEMORY
    changed = torch.from_numpy(IDS[None, :30].copy())
    changed[0, 0] += 1
    with torch.no_grad():
        differs = (mistral(torch.from_numpy(IDS[None, :30].copy())).logits != mistral(changed).logits).any(-1)[0]
    # two layers with a window of 12 see 2 * 11 tokens back: further than that nothing arrives
    assert differs[22].item()
    assert not differs[23:].any()


def test_scores_by_hand():
    text = IDS[:61]
    ends = range(0, 60, SEGMENT)
    windows = [
        ("mistral", MEMORY, SEGMENT),
        ("mamba2", MEMORY, SEGMENT),
        ("gpt2", 4, 4),
        ("vanilla_transformer", 4, 4),
    ]
    for name, context, step in windows:
        model = build(name)
        found = comparison_runs.scores(model, text, 1, TERMS)
        alone = bits_by_hand(model, text, [(start, start, start + SEGMENT) for start in ends])
        window = bits_by_hand(model, text, [(max(0, at - context), at, at + step) for at in range(0, 60, step)])
        assert found["without_context"] == pytest.approx(alone, rel=1e-5), name
        assert found["with_context"] == pytest.approx(window, rel=1e-5), name
        assert alone != window


def bits_by_hand(model, text: np.ndarray, windows: list[tuple[int, int, int]]) -> float:
    """Bits per byte of a text, whose tokens from `start` to `stop` are read from `first` on."""
    total, ids = 0.0, torch.from_numpy(text.copy())
    with torch.no_grad():
        for first, start, stop in windows:
            stop = min(stop, len(ids) - 1)
            logits = model(ids[None, first:stop]).logits[0, start - first :]
            total += F.cross_entropy(logits, ids[start + 1 : stop + 1], reduction="sum").item()
    return total / math.log(2) / (len(ids) - 1)


@pytest.mark.parametrize("name", ["transformer_xl", "gpt2", "lstm", "mamba2", "mistral"])
def test_timed_steps_are_whole_and_alike(name: str):
    model = build(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    step = training_step(model, TextStream(IDS, SEGMENT, LANES), TERMS)
    seen: list[dict] = []
    model.register_forward_pre_hook(lambda module, args, kwargs: seen.append(kwargs), with_kwargs=True)
    with torch.inference_mode():
        step()
        step()
    first, second = seen
    assert first["input_ids"].shape == (LANES, SEGMENT + (MEMORY if name in ("mamba2", "mistral") else 0))
    assert first["input_ids"].equal(second["input_ids"])
    if name == "transformer_xl":
        assert [layer.columns[0].shape for layer in first["mems"].layers] == [(LANES, MEMORY, 16)] * 2
        assert first["mems"] is second["mems"]
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["transformer_xl", "gpt2", "mamba2", "mistral", "vanilla_transformer"])
def test_times_between_tokens(name: str):
    times = TokenTimes()
    write = writer(build(name), IDS, TERMS, times)
    with torch.inference_mode():
        write()
        write()
    assert len(times.seconds) == 2 * 3  # four tokens, the first of which waits for the prompt
    assert min(times.seconds) > 0


def test_settings_tell_texts_apart(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a")
    settings = comparison_runs.settings_of([tmp_path / "a.txt"], TERMS, [2e-3], 100)
    assert settings.recl.contexts == list(range(1, 21))
    (tmp_path / "a.txt").write_text("b")
    assert comparison_runs.settings_of([tmp_path / "a.txt"], TERMS, [2e-3], 100).texts != settings.texts
