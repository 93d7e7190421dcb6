"""What `transformers-xl compare` found, from its files: bits per byte, what they differ by, and a table (no torch)."""

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transformers_xl.files.atomic_write import write_text
from transformers_xl.files.json_files import read_json
from transformers_xl.runs.comparison_search import Setting, edge
from transformers_xl.runs.comparison_statistics import Interval, bits_after, difference

RUN_FIELDS = {"model", "seed", "settings", "setting", "parameters", "bytes", "bits", "peak_memory", "memory_before"}


def check_settings(file: Path, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raise a `ValueError` that names the first field in which the settings of a file are not those expected."""
    for name in expected | found:
        ours, theirs, field = expected.get(name), found.get(name), name
        while ours != theirs and isinstance(ours, dict) and isinstance(theirs, dict):
            part = next(each for each in ours | theirs if ours.get(each) != theirs.get(each))
            ours, theirs, field = ours.get(part), theirs.get(part), f"{field}.{part}"
        if ours != theirs:
            raise ValueError(
                f"`{field}`={ours} differs from that of {str(file)!r}, {theirs}: give the same value, or another folder."
            )


def write_json(path: Path, value: dict[str, Any]) -> None:
    """A file that is there whole or not at all."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def read_speeds(folder: Path) -> dict[str, Any]:
    """What speeds.json holds; nothing where steps were not timed."""
    file = folder / "speeds.json"
    return _read(file, {"settings", "seconds_per_step"}) if file.is_file() else {}


@dataclass(frozen=True)
class ModelRuns:
    """The runs of a model, in the order of their seeds.

    Attributes:
        name: of the model.
        seeds: their seeds.
        bits: of each document after some steps `(seeds, documents)`, by steps.
        num_bytes: that are predicted of each document `(documents,)`.
        first: what the file of the first run holds.
        edge: `"highest"` or `"lowest"`, where no higher or lower rate than the best was tried; otherwise nothing.
        seconds_per_step: None where steps were not timed.
    """

    name: str
    seeds: list[int]
    bits: dict[int, np.ndarray]
    num_bytes: np.ndarray
    first: dict[str, Any]
    edge: str
    seconds_per_step: float | None

    @property
    def steps(self) -> int:
        return max(self.bits)

    @property
    def seconds(self) -> float | None:
        """Of the training; None where steps were not timed."""
        return None if self.seconds_per_step is None else self.steps * self.seconds_per_step

    @property
    def rate(self) -> str:
        """Of learning, as the table shows it."""
        rate = f"{self.first['setting']['rate']:g}"
        return f"{rate}, the {self.edge} tried" if self.edge else rate

    @property
    def memory(self) -> float:
        """MiB that training takes at its peak beside the libraries."""
        return (self.first["peak_memory"] - self.first["memory_before"]) / 2**20

    def per_byte(self, bits: np.ndarray) -> list[float]:
        """Bits per byte of each seed."""
        return [float(each) for each in bits.sum(1) / self.num_bytes.sum()]

    def after(self, seconds: float) -> np.ndarray | None:
        """Bits of each document `(seeds, documents)` after so many seconds of training. Before its end a run with a rate
        that falls is none that a shorter training would have given: None."""
        if self.seconds_per_step is None:
            return None
        step = min(self.steps, round(seconds / self.seconds_per_step, 6))
        if step < self.steps and self.first["setting"]["schedule"] != "constant":
            return None
        return bits_after(self.bits, step)


@dataclass(frozen=True)
class ComparisonResults:
    """The runs of a folder: models in the order of their bits per byte, the reference among them, and `equal_seconds`, the
    time of the shortest training, None where steps were not timed. `seeds`: of each model, when all is done."""

    models: list[ModelRuns]
    reference: ModelRuns
    equal_seconds: float | None
    seeds: int
    speeds: dict[str, Any]

    def difference(self, model: ModelRuns) -> Interval | None:
        """To the reference, after all steps; None of the reference."""
        if model is self.reference:
            return None
        ours, other = (each.bits[each.steps] for each in (model, self.reference))
        return difference(ours, other, model.num_bytes)

    def difference_at_equal_time(self, model: ModelRuns) -> Interval | None:
        """To the reference, after `equal_seconds`; None of the reference, and where a score is missing."""
        if model is self.reference or self.equal_seconds is None:
            return None
        found = [each.after(self.equal_seconds) for each in (model, self.reference)]
        if found[0] is None or found[1] is None:
            return None
        return difference(found[0], found[1], model.num_bytes)


def read_comparison(folder: Path) -> ComparisonResults:
    """What a folder holds.

    Raises:
        ValueError: it holds no comparison or no run of the reference, or runs of one model have other settings.
    """
    plan_file = folder / "plan.json"
    if not plan_file.is_file() or not (folder / "runs").is_dir():
        raise ValueError(f"`from`={str(folder)!r} has no plan.json and runs/: give a folder that `compare` wrote.")
    plan, speeds = _read(plan_file, {"models", "seeds", "reference"}), read_speeds(folder)
    if not isinstance(plan["models"], dict) or not isinstance(plan["seeds"], int):
        raise ValueError(f"`from`: {str(plan_file)!r} is no plan: give the command with -o again, which writes it.")
    models, tried = [], _read_settings(folder)
    for name in plan["models"]:
        runs = [folder / "runs" / f"{name}-{seed}.json" for seed in range(plan["seeds"])]
        found = [(file, _read(file, RUN_FIELDS)) for file in runs if file.is_file()]
        for file, each in found:
            check_settings(file, each["settings"], found[0][1]["settings"])
        if found:
            models.append(_model_runs(name, [each for _, each in found], speeds, tried.get(name, [])))
    reference = next((each for each in models if each.name == plan["reference"]), None)
    if reference is None:
        raise ValueError(
            f"`from`={str(folder)!r} has no run of the reference {plan['reference']}: finish its runs first."
        )
    models.sort(key=lambda each: statistics.mean(each.per_byte(each.bits[each.steps])))
    seconds = [each.seconds for each in models if each.seconds is not None]
    fastest = min(seconds) if len(seconds) == len(models) else None
    return ComparisonResults(models, reference, fastest, plan["seeds"], speeds)


def _model_runs(name: str, runs: list[dict[str, Any]], speeds: dict[str, Any], tried: list[Setting]) -> ModelRuns:
    bits = {int(step): np.array([run["bits"][step] for run in runs]) for step in runs[0]["bits"]}
    at_edge = edge([*tried, chosen := Setting(**runs[0]["setting"])], chosen)
    timed = speeds.get("seconds_per_step", {}).get(name)
    return ModelRuns(name, [run["seed"] for run in runs], bits, np.array(runs[0]["bytes"]), runs[0], at_edge, timed)


def _read_settings(folder: Path) -> dict[str, list[Setting]]:
    """What was tried, by model."""
    tried: dict[str, list[Setting]] = {}
    for file in sorted((folder / "trials").glob("*.json")):
        trial = _read(file, {"model", "setting"})
        tried.setdefault(trial["model"], []).append(Setting(**trial["setting"]))
    return tried


def _read(file: Path, fields: set[str]) -> dict[str, Any]:
    try:
        found = read_json(file)
    except ValueError as error:
        raise ValueError(f"`from`: {error} It is not a file of a comparison: remove it.") from error
    missing = fields - found.keys()
    if missing:
        raise ValueError(
            f"`from`: {str(file)!r} has no `{min(missing)}`: it is not a file of a comparison, remove it."
        )
    return found


def spread(values: list[float] | None, digits: int = 3) -> str:
    """Mean, and standard deviation where there are several values."""
    if not values:
        return "-"
    mean = f"{statistics.mean(values):,.{digits}f}"
    return mean if len(values) == 1 else f"{mean} +- {statistics.stdev(values):.{digits}f}"


def told(found: Interval | None) -> str:
    """A difference, its interval and its verdict."""
    if found is None:
        return "-"
    numbers = [f"{round(each, 3) + 0:+.3f}" for each in (found.mean, found.low, found.high)]
    return f"{numbers[0]} ({numbers[1]} to {numbers[2]}), {found.verdict}"


def table_cells(found: ComparisonResults) -> list[list[str]]:
    """A comparison as a heading and rows; what was not measured has no column."""
    seconds = found.equal_seconds

    def at_equal_time(model: ModelRuns) -> str:
        bits = None if seconds is None else model.after(seconds)
        return "-" if bits is None else spread(model.per_byte(bits))

    columns: dict[str, Callable[[ModelRuns], str]] = {
        "seeds": lambda model: str(len(model.seeds)),
        "bits per byte": lambda model: spread(model.per_byte(model.bits[model.steps])),
        f"minus {found.reference.name}": lambda model: told(found.difference(model)),
        f"after {seconds or 0:,.0f} s": at_equal_time,
        f"minus {found.reference.name}, after {seconds or 0:,.0f} s": lambda model: told(
            found.difference_at_equal_time(model)
        ),
        "s a step": lambda model: "-" if model.seconds_per_step is None else f"{model.seconds_per_step:.3f}",
        "peak of training, MiB": lambda model: f"{model.memory:,.0f}",
        "parameters": lambda model: f"{model.first['parameters']:,}",
        "start": lambda model: f"{model.first['setting']['start']:.3g}",
        "rate": lambda model: model.rate,
        "schedule": lambda model: model.first["setting"]["schedule"],
    }
    cells = {title: [cell(model) for model in found.models] for title, cell in columns.items()}
    shown = {title: column for title, column in cells.items() if set(column) != {"-"}}
    names = [model.name for model in found.models]
    return [["model", *shown], *([name, *row] for name, *row in zip(names, *shown.values(), strict=True))]


def table(found: ComparisonResults) -> str:
    """A comparison as a Markdown table."""
    header, *cells = table_cells(found)
    lines = [f"| {' | '.join(row)} |" for row in (header, *([f"`{name}`", *row] for name, *row in cells))]
    lines.insert(1, f"|---|{'---:|' * (len(header) - 1)}")
    return "\n".join(lines) + "\n"


def values(found: ComparisonResults) -> dict[str, dict[str, Any]]:
    """A comparison for programs, by model."""

    def plain(each: Interval | None) -> dict[str, Any] | None:
        if each is None:
            return None
        return {"mean": each.mean, "low": each.low, "high": each.high, "verdict": each.verdict}

    return {
        model.name: {
            "bits_per_byte": model.per_byte(model.bits[model.steps]),
            "difference": plain(found.difference(model)),
            "difference_at_equal_time": plain(found.difference_at_equal_time(model)),
            "seconds_per_step": model.seconds_per_step,
            "peak_memory_mib": model.memory,
            "parameters": model.first["parameters"],
            "setting": model.first["setting"],
        }
        for model in found.models
    }


__all__ = [
    "ComparisonResults",
    "ModelRuns",
    "check_settings",
    "read_comparison",
    "read_speeds",
    "spread",
    "table",
    "table_cells",
    "told",
    "values",
    "write_json",
]
