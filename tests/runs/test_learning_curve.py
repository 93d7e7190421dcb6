"""The learning curve of a run: averages of the weights, scored on the way, leave the training as it is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from transformers_xl.data.text_stream import TextStream
from transformers_xl.runs import comparison_folder
from transformers_xl.runs.comparison import read_runs
from transformers_xl.runs.comparison_runs import builders, settings_of, trained, try_rate
from transformers_xl.runs.comparison_terms import ComparisonTerms
from transformers_xl.runs.learning_curve import LearningCurve

TERMS = ComparisonTerms(8, 1, 2, mem_len=4, segment_length=4, batch_size=2, steps=4, warmup_steps=1)
IDS = np.random.default_rng(0).integers(3, 259, 400)


def weights_after(steps: int, points: list[int]) -> tuple[list[torch.Tensor], LearningCurve]:
    """The embeddings that were scored at each of the points, the last of which are those of the model."""
    model = builders()["transformer_xl"](TERMS, 0, 16)
    seen: list[torch.Tensor] = []

    def score(scored: torch.nn.Module) -> float:
        assert not scored.training
        seen.append(scored.model.embed_tokens.weight.detach().clone())
        return float(len(seen))

    curve = LearningCurve(score, points)
    terms = replace(TERMS, steps=steps)
    trained(model, TextStream(IDS, 4, 2), terms, 0, curve)
    assert model.model.embed_tokens.weight.equal(seen[-1])
    return seen, curve


def test_a_point_is_the_end_of_a_shorter_training():
    long, curve = weights_after(4, [3, 4])
    assert [(point.step, point.bits_per_byte) for point in curve.points] == [(3, 1.0), (4, 2.0)]
    assert 0 <= curve.points[0].seconds <= curve.points[-1].seconds
    (short,), _ = weights_after(3, [3])
    assert short.equal(long[0])
    assert not short.equal(long[1])


def test_what_is_scored_is_an_average():
    """After steps with weights w1, w2 it has moved from w1 by 1 - 2/11 of the way."""
    model = torch.nn.Linear(1, 1, bias=False)
    curve = LearningCurve(lambda scored: scored.weight.item(), [1, 2])
    for step, weight in ((1, 3.0), (2, 5.0)):
        torch.nn.init.constant_(model.weight, weight)
        state = type("State", (), {"global_step": step})()
        curve.on_step_end(None, state, None, model=model)
    assert [point.bits_per_byte for point in curve.points] == [3.0, pytest.approx(3 + 2 * 9 / 11)]
    assert model.weight.item() == 5.0


def test_a_rate_is_chosen_on_text_that_is_not_held_out(tmp_path: Path):
    """What the runs hold out can change: a rate scores as before."""
    text = "".join(chr(97 + number % 23) for number in IDS)
    rates = []
    for name, end in (("a.txt", text[-40:]), ("b.txt", text[-40:][::-1])):
        (tmp_path / name).write_text(text[:-40] + end)
        terms = replace(TERMS, eval_fraction=0.1, steps=8)
        settings = settings_of([tmp_path / name], terms, [1e-3, 1e-2], 100)
        rates.append([try_rate("transformer_xl", 16, [tmp_path / name], settings, rate) for rate in (1e-3, 1e-2)])
    for before, after in zip(*rates, strict=True):
        assert before["bits_per_byte"] == after["bits_per_byte"]
        assert before["step"] == 2
    assert rates[0][0]["bits_per_byte"] != rates[0][1]["bits_per_byte"]


def test_the_best_rate_is_taken_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times. " * 400)
    bits, asked = {1e-3: 3.0, 1e-2: 2.0, 1e-1: 2.5}, []

    def in_this_process(function, name, width, texts, settings, rate):
        asked.append(rate)
        return {"settings": settings.to_dict(), "bits_per_byte": bits[rate]}

    monkeypatch.setattr(comparison_folder, "in_a_process", in_this_process)
    given = [text], tmp_path / "out", ["gpt2"], 1, TERMS
    assert comparison_folder.Comparison(*given, [1e-3]).learning_rate("gpt2") == 1e-3
    assert not asked
    for _ in range(2):
        assert comparison_folder.Comparison(*given, list(bits)).learning_rate("gpt2") == 1e-2
    assert asked == list(bits)
    assert comparison_folder.Comparison(*given, [1e-3, 1e-1]).learning_rate("gpt2") == 1e-1
    assert asked == list(bits)
    bits |= {0.2: 2.4, 0.3: 1.0}  # the second in a row that is worse than the best, and one behind it
    assert comparison_folder.Comparison(*given, [0.3, 0.2, *bits]).learning_rate("gpt2") == 1e-2
    assert asked == [1e-3, 1e-2, 1e-1, 0.2]


def test_more_rates_keep_the_runs_whose_rate_is_still_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times. " * 400)
    best, trained = {"gpt2": 1e-3, "lstm": 1e-2}, []

    def in_this_process(function, name, *given):
        if function is comparison_folder.try_rate:
            return {"settings": given[2].to_dict(), "bits_per_byte": abs(given[3] - best[name])}
        seed, _, _, settings, rate, _ = given
        trained.append((name, seed, rate))
        return {"model": name, "seed": seed, "settings": settings.to_dict(), "learning_rate": rate} | dict.fromkeys(
            ("parameters", "bits_per_byte", "recl_losses", "peak_memory", "memory_before")
        )

    def compare(rates: list[float]) -> comparison_folder.Comparison:
        comparison = comparison_folder.Comparison([text], tmp_path / "out", list(best), 2, TERMS, rates)
        for name, seed in comparison.missing:
            comparison.train(name, seed)
        return comparison

    monkeypatch.setattr(comparison_folder, "in_a_process", in_this_process)
    compare([1e-4, 1e-3])
    assert {rate for _, _, rate in trained} == {1e-3}
    trained.clear()
    assert len(compare([1e-4, 1e-3, 1e-2]).missing) == 4
    assert trained == [("lstm", 0, 1e-2), ("lstm", 1, 1e-2)]
    assert [run["settings"]["learning_rates"] for run in read_runs(tmp_path / "out")] == [[1e-4, 1e-3, 1e-2]] * 4
    assert compare([1e-4, 1e-3, 1e-2]).missing == []
    for fewer in ([1e-4, 1e-3], [1e-3, 1e-2, 1e-1]):
        with pytest.raises(ValueError, match="learning_rates"):
            compare(fewer)
