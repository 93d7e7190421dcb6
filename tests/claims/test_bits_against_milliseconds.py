"""Windows and memory predict the same bytes, whatever is predicted at a time."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_config

from transformers_xl import ByteTokenizer, TransformerXLForCausalLM
from transformers_xl.evaluation.bits_per_byte import score_moving_window, score_text

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import bits_against_milliseconds as bench

TEXTS = [b"one two three four five six", b"seven eight nine ten"]


@pytest.fixture
def folders(tmp_path):
    for name, mem_len in (("with", 9), ("without", 0)):
        config = tiny_config(
            "transformer_xl",
            vocab_size=259,
            mem_len=mem_len,
            same_length=mem_len > 0,
            segment_length=8,
            initializer_range=0.4,
        )
        TransformerXLForCausalLM(config).save_pretrained(tmp_path / name)
        ByteTokenizer().save_pretrained(tmp_path / name)
    return tmp_path


def test_ways_are_windows_and_memory(folders):
    model, documents = bench.load(folders / "without", TEXTS, True)
    expected = sum(score_moving_window(model, ids, 8).nats for ids in documents)
    assert bench.windows_nats(model, documents, 4, 1) == pytest.approx(expected, rel=1e-5)
    model, documents = bench.load(folders / "with", TEXTS, False)
    expected = sum(score_text(model, ids, 5).nats for ids in documents)
    for step in (1, 5, 16):  # a memory of one length for every token: cuts change nothing
        assert bench.memory_nats(model, documents, 2, step) == pytest.approx(expected, rel=1e-5)


def test_measurement_and_picture(monkeypatch, tmp_path):
    ways = {"windows": lambda step: 80 * math.log(2), "memory": lambda step: 40.0 * step * math.log(2)}
    found = bench.measure(ways, [1, 2], 2, 40)
    bits = {name: {step: row["bits"] for step, row in steps.items()} for name, steps in found.items()}
    assert bits == {"windows": {"1": 2.0, "2": 2.0}, "memory": {"1": 1.0, "2": 2.0}}
    monkeypatch.setattr(bench, "RESULT", tmp_path / "bits.json")
    for steps in found.values():
        for step, row in steps.items():
            row["milliseconds"] = 0.5 * int(step)
    bench.draw({"labels": {"windows": "windows of 8", "memory": "a memory of 9"}, "models": found})
    assert (tmp_path / "bits.png").stat().st_size > 5_000


def test_models_that_do_not_fit_their_way_are_refused(folders):
    for name, is_window in (("with", True), ("without", False)):
        with pytest.raises(ValueError, match="--windows takes a model without memory"):
            bench.load(folders / name, TEXTS, is_window)
    assert np.array_equal(bench.load(folders / "with", TEXTS, False)[1][1], [*TEXTS[1]])
