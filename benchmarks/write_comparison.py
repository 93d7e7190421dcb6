"""Write table, picture and verdicts of a comparison into docs/comparison.md, from its files.

    python benchmarks/write_comparison.py            # of benchmarks/results/comparison
    python benchmarks/write_comparison.py FOLDER     # of another one
    python benchmarks/write_comparison.py --summary FOLDER    # its summary.json alone: bits per byte after each point

`tests/runs/test_comparison_docs.py` checks that the page is what this writes.
"""

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers_xl.evaluation.plots import save
from transformers_xl.files.atomic_write import write_text
from transformers_xl.runs.comparison import (
    ComparisonResults,
    ModelRuns,
    read_comparison,
    table,
    told,
    values,
    write_json,
)
from transformers_xl.runs.comparison_plots import draw_comparison
from transformers_xl.runs.comparison_statistics import difference

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs/comparison.md", ROOT / "docs/images/comparison.png"
FOUND = ROOT / "benchmarks/results/comparison"
PART = re.compile(r"(<!-- comparison(?:: (\S+))? -->\n).*?(<!-- end of comparison -->)", flags=re.DOTALL)
NOT_YET = "These runs are not finished: there is no table yet.\n"


def is_finished(folder: Path) -> bool:
    """Whether all runs of a folder are there, and their steps timed."""
    if not (folder / "plan.json").is_file() or not (folder / "speeds.json").is_file():
        return False
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    files = [folder / "runs" / f"{name}-{seed}.json" for name in plan["models"] for seed in range(plan["seeds"])]
    return all(file.is_file() for file in files)


def section(folder: Path) -> str:
    """What the page says of a finished comparison."""
    found, name = read_comparison(folder), folder.relative_to(ROOT).as_posix()
    first, where = found.reference.first, found.speeds["versions"]
    settings = first["settings"]
    read = settings["batch_size"] * settings["segment_length"] * max(found.reference.bits)
    documents = f"{len(found.reference.num_bytes)} documents, {found.reference.num_bytes.sum():,} bytes scored"
    told_terms = (
        f"{found.seeds} seeds, {settings['steps']:,} steps, {read:,} bytes each; {documents}. Seconds of "
        f"{found.speeds['clock']} on {where['machine']}, torch {where['torch']}. Results: [{name}](../{name})."
    )
    verdicts = "\n".join(_verdict(found, model) for model in found.models if model is not found.reference)
    picture = "![Bits per byte against seconds of training](images/comparison.png)\n"
    source = f"<!-- source: {name}\n     command: {command(folder)} -->"
    return f"\n{source}\n\n{told_terms}\n\n{table(found)}\n{picture}\n{verdicts}\n\n{_trials(folder, found)}\n"


def command(folder: Path) -> str:
    """What made the folder."""
    name = folder.relative_to(ROOT).as_posix()
    return f"transformers-xl compare benchmarks/{folder.name}.yaml -o {name}"


def _verdict(found: ComparisonResults, model: ModelRuns) -> str:
    """What is said of a model beside the reference, in one line."""
    words = [f"after all steps {told(found.difference(model))}"]
    if (at_equal_time := found.difference_at_equal_time(model)) is not None:
        words.append(f"after {found.equal_seconds:,.0f} s {told(at_equal_time)}")
    return f"- **`{model.name}` minus `{found.reference.name}`**: {'; '.join(words)}."


def _trials(folder: Path, found: ComparisonResults) -> str:
    """What was tried for each model."""
    lines = ["| trials (validation documents) | bits per byte by start, rate and schedule |", "|---|---|"]
    for model in found.models:
        trials = [json.loads(file.read_text(encoding="utf-8")) for file in sorted((folder / "trials").glob("*.json"))]
        tried = [_trial(trial) for trial in trials if trial["model"] == model.name]
        lines.append(f"| `{model.name}` | {'; '.join(tried)} |")
    return "\n".join(lines)


def _trial(trial: dict[str, Any]) -> str:
    bits, setting = trial["bits_per_byte"], trial["setting"]
    result = "diverged" if bits is None else f"{bits:.3f}"
    return f"{setting['start']:.3g}, {setting['rate']:g}, {setting['schedule']}: {result}"


def page(text: str, folder: Path) -> str:
    """The page with the section of a folder between its marks."""
    inner = section(folder) if is_finished(folder) else NOT_YET
    mark = f"<!-- comparison: {folder.relative_to(ROOT).as_posix()} -->\n"
    return PART.sub(lambda match: f"{mark}{inner}{match[3]}", text)


def folder_of(text: str) -> Path:
    """Where the section of the page is from."""
    match = PART.search(text)
    assert match is not None, f"{PAGE} has no marks of a comparison"
    return ROOT / match[2] if match[2] else FOUND


def summary(found: ComparisonResults) -> dict[str, Any]:
    """A comparison for programs, with what all models were after each point."""
    after: dict[str, dict[str, Any]] = {}
    for step in sorted(found.reference.bits):
        for model in found.models:
            bits, others = model.bits[step], found.reference.bits[step]
            apart = None if model is found.reference else asdict(difference(bits, others, model.num_bytes))
            after.setdefault(str(step), {})[model.name] = {"bits_per_byte": model.per_byte(bits), "difference": apart}
    return {"equal_seconds": found.equal_seconds, "models": values(found), "after": after}


def main(folder: Path) -> None:
    write_text(PAGE, page(PAGE.read_text(encoding="utf-8"), folder))
    if is_finished(folder):
        found = read_comparison(folder)
        write_json(folder / "summary.json", summary(found))
        save(draw_comparison(found), PICTURE)
    print(f"wrote {PAGE}" + ("" if is_finished(folder) else f"; {folder} is not finished"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--summary"]:
        write_json(Path(sys.argv[2]) / "summary.json", summary(read_comparison(Path(sys.argv[2]))))
    else:
        main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else FOUND)
