"""The table and the picture of a comparison, from runs whose numbers are known."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from transformers_xl.evaluation.recl import recl
from transformers_xl.runs.comparison import (
    read_runs,
    read_speeds,
    recl_of,
    spread,
    summary,
    table,
    write_json,
)
from transformers_xl.runs.comparison_plots import draw_comparison

CONTEXTS = [4, 8, 12]
SETTINGS = {"steps": 5, "recl": {"contexts": CONTEXTS}}
SPEEDS = {"near": {"training_tokens_per_second": 1234.5, "seconds_per_generated_token": 0.00125}}


def nats(useful: int, seed: int) -> np.ndarray:
    """Losses that fall with context up to `useful` tokens."""
    noise = np.random.default_rng(seed).random(50)
    return np.stack([2 + noise - 0.3 * min(context, useful) / 4 for context in CONTEXTS]).astype("<f2")


def run(model: str, seed: int, bits: float, useful: int) -> dict:
    return {
        "model": model, "seed": seed, "settings": SETTINGS, "parameters": 1000, "peak_memory": 5 * 2**20 * (seed + 1),
        "memory_before": 2**20, "bits_per_byte": {"with_context": bits, "without_context": bits + 1},
        "recl_losses": base64.b64encode(nats(useful, seed).tobytes()).decode(),
    }  # fmt: skip


RUNS = [run("far", 0, 2.5, 12), run("far", 1, 2.7, 12), run("near", 0, 2.0, 8), run("near", 1, 2.1, 4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for each in RUNS:
        write_json(tmp_path / "runs" / f"{each['model']}-{each['seed']}.json", each)
    return tmp_path


def test_means_and_spreads():
    rows = summary(RUNS, SPEEDS)
    assert list(rows) == ["near", "far"]  # the best first
    assert rows["far"]["with_context"] == [2.5, 2.7]
    assert rows["far"]["without_context"] == [3.5, 3.7]
    assert rows["near"]["memory"] == [4, 9]
    assert spread([2.5, 2.7], 3) == "2.600 +- 0.141"
    assert spread([2.5], 3) == "2.500"
    assert spread([], 3) == "-"


def test_models_of_a_seed_are_a_group():
    rows = summary(RUNS, {})
    for seed in (0, 1):
        useful = {"far": 12, "near": 8 - 4 * seed}
        group = recl({name: dict(zip(CONTEXTS, nats(far, seed), strict=True)) for name, far in useful.items()})
        assert {name: row["recl"][seed] for name, row in rows.items()} == {
            name: row.length for name, row in group.items()
        }
    assert rows["near"]["recl"] == [8, 4]
    assert rows["far"]["recl_is_bound"]
    assert not rows["near"]["recl_is_bound"]


def test_the_table():
    header, _, near, far = table(summary(RUNS, SPEEDS)).splitlines()
    assert "| `generate()`, ms per token |" in header
    assert near == "| `near` | 2 | 2.050 +- 0.071 | 3.050 +- 0.071 | <= 6 +- 3 | 1,000 | 1,234 | 1.25 | 6 +- 4 |"
    assert far == "| `far` | 2 | 2.600 +- 0.141 | 3.600 +- 0.141 | at least 12 +- 0 | 1,000 | - | - | 6 +- 4 |"


def with_curve(run: dict, seconds: list[float], machine: str = "one") -> dict:
    """A run that was scored after these seconds, half a bit better each time."""
    curve = [{"step": i, "seconds": s, "bits_per_byte": 4 - i / 2} for i, s in enumerate(seconds)]
    return run | {"curve": curve, "learning_rate": 0.003, "versions": {"device": "cpu", "machine": machine}}


def test_scores_at_equal_time():
    slow, fast, late = with_curve(RUNS[0], [10, 20]), with_curve(RUNS[2], [6, 12]), with_curve(RUNS[1], [13, 26])
    rows = summary([slow, fast, late], {})
    assert rows["near"]["at_equal_time"] == [3.5]  # its end
    assert rows["far"]["at_equal_time"] == [pytest.approx(4 - 0.5 * 2 / 10)]  # nothing of the run that began later
    header, _, near, far = table(rows).splitlines()
    assert header.startswith("| model | seeds | bits per byte | after 12 s | segments alone |")
    assert "| 3.500 |" in near
    assert far.startswith("| `far` | 2 | 2.600 +- 0.141 | 3.900 | 3.600 +- 0.141 |")
    assert "| 0.003 | 23 +- 4 |" in far
    other = with_curve(RUNS[1], [10, 20], "another")
    assert summary([slow, other], {})["far"]["equal_seconds"] is None
    assert summary([slow, RUNS[1]], {})["far"]["at_equal_time"] == []


def test_the_picture_of_learning_curves():
    """Bits against seconds: the mean of the seeds after the same steps, and their range."""
    seeds = [with_curve(RUNS[0], [10, 20]), with_curve(RUNS[1], [14, 24])]
    seeds[1]["curve"][1]["bits_per_byte"] = 3.1
    (axes,) = draw_comparison(summary([*seeds, with_curve(RUNS[2], [6, 12])], {})).axes
    lines = {each.get_label(): [*zip(*each.get_data(), strict=True)] for each in axes.lines}
    assert lines == {"near": [(6, 4), (12, 3.5)], "far": [(12, 4), (22, pytest.approx(3.3))]}
    assert axes.get_xlabel() == "seconds of training (log scale)"
    several = [with_curve(RUNS[0], [10, 20]), with_curve(RUNS[2], [6, 12], "another")]
    assert len(draw_comparison(summary(several, {})).axes) > 1  # seconds of two machines are not compared


def test_no_context_is_shorter_than_one_token():
    rows = summary(RUNS, {})
    assert recl_of(rows["near"]) == "<= 6 +- 3"
    assert recl_of(rows["near"] | {"recl": [1, 9], "recl_floor": 1}) == "5 +- 6"


def test_the_picture_has_what_was_measured():
    with_speeds, without = draw_comparison(summary(RUNS, SPEEDS)), draw_comparison(summary(RUNS, {}))
    assert [axes.get_xlabel() for axes in without.axes] == ["bits per byte", "peak of training (MiB)"]
    assert len(with_speeds.axes) == 4
    axes = with_speeds.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["near", "far"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the best on top
    marks = {tuple(line.get_xdata()) for line in axes.lines}
    assert {(2.5, 2.7), (3.5, 3.7), (2.0, 2.1)} <= marks
    assert (pytest.approx(2.6),) in [tuple(line.get_xdata()) for line in axes.lines]


def test_files(folder: Path):
    assert read_runs(folder) == RUNS
    assert read_runs(folder, models=["near"]) == RUNS[2:]
    with pytest.raises(ValueError, match="`variant`='gpt2' has no run in .* those of far, near"):
        read_runs(folder, models=["gpt2", "near"])
    assert read_speeds(folder, SETTINGS) == {}
    write_json(folder / "speeds.json", {"settings": SETTINGS, "models": SPEEDS})
    assert read_speeds(folder, SETTINGS) == SPEEDS
    with pytest.raises(ValueError, match="`steps`=6"):
        read_speeds(folder, SETTINGS | {"steps": 6})


def test_what_is_refused(folder: Path):
    file = folder / "runs/near-1.json"
    for content, message in (
        (json.dumps(RUNS[3] | {"settings": SETTINGS | {"steps": 6}}), "`steps`=5 differs from that of"),
        (json.dumps(RUNS[3] | {"settings": SETTINGS | {"more": 1}}), "`more`=None differs from that of"),
        (json.dumps({"settings": SETTINGS}), "has no `bits_per_byte`"),
        ("[]", "holds a list"),
        ("{", "is not JSON"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=re.escape(message)) as error:
            read_runs(folder)
        assert "near-1.json" in str(error.value)


ROOT = Path(__file__).parents[2]


SIX = ["transformer_xl", "compressive_transformer", "memorizing_transformer", "block_recurrent",
       "recurrent_memory_transformer", "lstm"]  # fmt: skip


@pytest.mark.parametrize(("name", "models"), [("comparison", None), ("comparison_library", SIX)])
def test_the_tables_of_the_docs_are_those_of_the_runs(name: str, models: list[str] | None):
    folder = ROOT / "benchmarks/results" / name
    runs = read_runs(folder, models=models)
    assert table(summary(runs, read_speeds(folder, runs[0]["settings"]))) in (ROOT / "docs/comparison.md").read_text()
