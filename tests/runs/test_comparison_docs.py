"""docs/comparison.md is what benchmarks/write_comparison.py writes from the files of the comparison."""

import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import memory_picture
import write_comparison as writer

from transformers_xl.evaluation.plots import figure
from transformers_xl.runs.comparison import read_comparison

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_its_files_say():
    text = writer.PAGE.read_text(encoding="utf-8")
    assert writer.page(text, writer.folder_of(text)) == text


@pytest.mark.parametrize(
    "folder", [path.parent for path in sorted((ROOT / "benchmarks/results").glob("*/summary.json"))]
)
def test_summaries_are_those_of_the_runs(folder: Path):
    """Documents take numbers from them. Processors differ in the last digits of a sum."""
    made = json.dumps(writer.summary(writer.read_comparison(folder)))
    texts = (folder / "summary.json").read_text(encoding="utf-8"), made
    found, expected = (json.loads(each, parse_float=lambda digits: round(float(digits), 6)) for each in texts)
    assert found == expected


def test_plans_of_the_page_are_plans():
    """Those in benchmarks/, whose models can be built as large as they say, and the one that the page shows."""
    import yaml

    from transformers_xl.runs.comparison_plan import plan_of, read_plan

    text = writer.PAGE.read_text(encoding="utf-8")
    shown = plan_of(yaml.safe_load(text.split("```yaml\n")[1].split("```")[0]))
    for plan in (shown, *map(read_plan, sorted((ROOT / "benchmarks").glob("comparison*.yaml")))):
        assert plan.reference in plan.models
        assert plan.seeds == 3


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small comparison that is finished."""
    monkeypatch.setattr(writer, "ROOT", tmp_path)
    folder, settings = tmp_path / "found", {"batch_size": 2, "segment_length": 4, "steps": 2}
    for part in ("runs", "trials"):
        (folder / part).mkdir(parents=True)
    plan = {"models": {"ours": {}, "other": {}}, "seeds": 2, "reference": "ours"}
    versions = {"machine": "a machine", "torch": "2.13"}
    speeds = {
        "settings": {},
        "seconds_per_step": {"ours": 1.0, "other": 2.0},
        "clock": "the processor",
        "versions": versions,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "speeds.json").write_text(json.dumps(speeds))
    setting = {"start": 0.05, "rate": 0.002, "schedule": "constant"}
    for name, bits in (("ours", 2.0), ("other", 2.5)):
        trial = {"model": name, "setting": setting, "bits_per_byte": None if name == "other" else 3.25}
        (folder / f"trials/{name}-x.json").write_text(json.dumps(trial))
        for seed in range(2):
            run = {
                "model": name, "seed": seed, "settings": settings, "setting": setting, "parameters": 100,
                "bytes": [500, 600], "peak_memory": 2**21, "memory_before": 2**20,
                "bits": {"1": [1500 * bits, 1800 * bits], "2": [500 * bits, 600 * bits + seed]},
            }  # fmt: skip
            (folder / f"runs/{name}-{seed}.json").write_text(json.dumps(run))
    return folder


def test_what_the_section_says(finished: Path):
    page = writer.page("before\n<!-- comparison -->\nold\n<!-- end of comparison -->\nafter\n", finished)
    assert page.startswith("before\n<!-- comparison: found -->\n")
    assert page.endswith("<!-- end of comparison -->\nafter\n")
    assert "old" not in page
    assert "2 seeds, 2 steps, 16 bytes each; 2 documents, 1,100 bytes scored." in page
    assert "on a machine, torch 2.13. Results: [found](../found)." in page
    assert "- **`other` minus `ours`**: after all steps +0.500 (+0.49" in page
    assert "worse; after 2 s +" in page
    assert "| `ours` | 0.05, 0.002, constant: 3.250 |" in page
    assert "| `other` | 0.05, 0.002, constant: diverged |" in page
    assert writer.page(page, finished) == page


def test_a_comparison_that_is_not_finished_has_no_table(finished: Path):
    (finished / "runs/other-1.json").unlink()
    text = "<!-- comparison -->\nold\n<!-- end of comparison -->\n"
    assert writer.page(text, finished).splitlines()[1] == writer.NOT_YET.strip()
    shutil.rmtree(finished)
    assert writer.NOT_YET in writer.page(text, finished)


def test_the_curve_is_bits_by_bytes_read(finished: Path):
    _, ((axes,),) = figure()
    memory_picture.draw_curve(axes, read_comparison(finished), {"ours": "with", "other": "without"})
    assert [each.get_label() for each in axes.lines] == ["with: 2.000", "without: 2.500"]
    assert axes.lines[0].get_xydata().tolist() == [[8e-6, 6.0], [16e-6, pytest.approx(1100.5 / 550, rel=1e-3)]]


def test_the_time_of_reading_by_the_bytes_at_a_time():
    _, ((axes,),) = figure()
    steps = {"1": {"bits": 2.0211, "milliseconds": 8.0}, "64": {"bits": 2.056, "milliseconds": 0.5}}
    memory_picture.draw_cost(axes, {"labels": {"twin-0": "windows of 64"}, "models": {"twin-0": steps}})
    (drawn,) = axes.lines
    assert drawn.get_label() == "windows of 64: 2.02 to 2.06 bits per byte"
    assert drawn.get_xydata().tolist() == [[1, 8.0], [64, 0.5]]
