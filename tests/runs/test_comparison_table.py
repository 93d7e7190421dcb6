"""The table, the figures and the picture of a comparison, from runs whose numbers are known."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from transformers_xl.runs.comparison import read_comparison, spread, table, told, values, write_json
from transformers_xl.runs.comparison_plots import draw_comparison
from transformers_xl.runs.comparison_statistics import Interval

DOCUMENTS, BYTES, STEPS = 8, 1000, 8
PLAN = {
    "texts": {"train": "a", "validation": "b", "test": "c"},
    "models": {"ours": {}, "slow": {"type": "gpt2"}, "far": {"type": "mistral"}},
    "reference": "ours",
    "steps": STEPS,
    "points": [2, 4],
    "seeds": 2,
}
LEVELS = {"ours": 2.0, "slow": 1.9, "far": 2.5}  # bits per byte in the end; twice as many at step 2
SPEEDS = {"settings": {}, "seconds_per_step": {"ours": 1.0, "slow": 2.0, "far": 1.5}, "clock": "the processor"}


def run(model: str, seed: int, schedule: str = "constant") -> dict:
    hard = np.random.default_rng(0).normal(0, 0.3, DOCUMENTS)
    hard -= hard.mean()
    levels = {2: 2.0, 4: 1.5, STEPS: 1.0}
    level = LEVELS[model] + 0.01 * seed
    return {
        "model": model, "seed": seed, "settings": {"steps": STEPS}, "parameters": 1000, "bytes": [BYTES] * DOCUMENTS,
        "setting": {"start": 0.05, "rate": 0.002, "schedule": schedule}, "peak_memory": 5 * 2**20, "memory_before": 2**20,
        "bits": {str(step): (BYTES * (level * times + hard)).tolist() for step, times in levels.items()},
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_json(tmp_path / "plan.json", PLAN)
    for name in LEVELS:
        for seed in (0, 1):
            write_json(tmp_path / "runs" / f"{name}-{seed}.json", run(name, seed))
    return tmp_path


def test_bits_and_differences(folder: Path):
    found = read_comparison(folder)
    assert [model.name for model in found.models] == ["slow", "ours", "far"]  # the best first
    rows = values(found)
    assert rows["ours"]["bits_per_byte"] == pytest.approx([2.0, 2.01])
    assert rows["ours"]["difference"] is None
    assert rows["slow"]["difference"]["mean"] == pytest.approx(-0.1)
    assert (rows["slow"]["difference"]["verdict"], rows["far"]["difference"]["verdict"]) == ("better", "worse")
    assert rows["slow"]["seconds_per_step"] is None
    assert found.equal_seconds is None
    assert "after" not in table(found)


def test_scores_at_equal_time(folder: Path):
    """After the 8 s of the fastest model, the one that takes 2 s a step has come to step 4."""
    write_json(folder / "speeds.json", SPEEDS)
    found = read_comparison(folder)
    assert found.equal_seconds == 8
    rows = {model.name: model for model in found.models}
    assert rows["slow"].per_byte(rows["slow"].after(8)) == pytest.approx([1.9 * 1.5, 1.91 * 1.5])
    assert rows["slow"].after(1) is None  # before its first score
    assert values(found)["slow"]["difference_at_equal_time"]["verdict"] == "worse"
    lines = table(found).splitlines()
    assert lines[0].startswith(
        "| model | seeds | bits per byte | minus ours | after 8 s | minus ours, after 8 s | s a step |"
    )
    assert lines[2].startswith("| `slow` | 2 | 1.905 +- 0.007 | -0.100 (")
    assert ", better | 2.857 +- 0.011 | +0.852 (" in lines[2]
    assert lines[3].startswith(
        "| `ours` | 2 | 2.005 +- 0.007 | - | 2.005 +- 0.007 | - | 1.000 | 4 | 1,000 | 0.05 | 0.002 |"
    )


def test_a_falling_rate_has_no_score_before_its_end(folder: Path):
    write_json(folder / "speeds.json", SPEEDS)
    for seed in (0, 1):
        write_json(folder / f"runs/slow-{seed}.json", run("slow", seed, "cosine"))
    slow = next(model for model in read_comparison(folder).models if model.name == "slow")
    assert slow.after(8) is None
    assert slow.after(16) is not None
    (errorbar, *_) = draw_comparison(read_comparison(folder)).axes[0].containers
    assert list(errorbar[0].get_xdata()) == [16]


def test_a_rate_whose_search_ended_at_the_highest_is_marked(folder: Path):
    rates = {"ours": (0.001, 0.002), "slow": (0.001, 0.002, 0.004), "far": (0.002,)}
    for name, tried in rates.items():
        for rate in tried:
            setting = {"start": 0.05, "rate": rate, "schedule": "constant"}
            write_json(folder / "trials" / f"{name}-{rate}.json", {"model": name, "setting": setting})
    cells = {
        name: rate
        for name, *_, rate, _ in (
            row.strip("| ").split(" | ") for row in table(read_comparison(folder)).splitlines()[2:]
        )
    }
    assert cells == {"`ours`": "0.002, the highest tried", "`slow`": "0.002", "`far`": "0.002"}


def test_a_comparison_that_is_not_finished(folder: Path):
    (folder / "runs/slow-0.json").unlink()
    (folder / "runs/far-0.json").unlink()
    (folder / "runs/far-1.json").unlink()
    rows = values(read_comparison(folder))
    assert list(rows) == ["slow", "ours"]
    assert rows["slow"]["difference"]["verdict"] == "out of reach here"  # one seed
    (folder / "runs/ours-0.json").unlink()
    (folder / "runs/ours-1.json").unlink()
    with pytest.raises(ValueError, match="no run of the reference ours"):
        read_comparison(folder)


def test_the_picture_is_bits_against_seconds(folder: Path):
    axes = draw_comparison(read_comparison(folder)).axes[0]
    assert axes.get_xlabel() == "training steps"
    write_json(folder / "speeds.json", SPEEDS)
    axes = draw_comparison(read_comparison(folder)).axes[0]
    assert axes.get_xlabel() == "training (seconds of the processor)"
    lines = {bar.get_label(): bar[0] for bar in axes.containers}
    assert list(lines) == ["slow", "ours", "far"]
    assert lines["slow"].get_xdata().tolist() == [4, 8, 16]
    assert lines["slow"].get_ydata() == pytest.approx([3.81, 2.8575, 1.905])


def test_numbers_as_they_are_told():
    assert spread([2.5, 2.7]) == "2.600 +- 0.141"
    assert spread([2.5]) == "2.500"
    assert spread([]) == "-"
    assert told(Interval(-0.1234, -0.2, 0.01)) == "-0.123 (-0.200 to +0.010), out of reach here"
    assert told(None) == "-"


def test_what_is_refused(folder: Path):
    file = folder / "runs/far-1.json"
    for content, message in (
        (json.dumps(run("far", 1) | {"settings": {"steps": 9}}), "`steps`=8 differs from that of"),
        (json.dumps({"settings": {}}), "has no `bits`"),
        ("[]", "holds a list"),
        ("{", "is not JSON"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=re.escape(message)) as error:
            read_comparison(folder)
        assert "far-1.json" in str(error.value)
