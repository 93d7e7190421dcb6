"""What `transformers-xl compare` found, from its files: means and spreads over seeds, RECL, a table.

A folder of a comparison holds `runs/MODEL-SEED.json`, and `speeds.json` where speeds were measured.
"""

import base64
import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from transformers_xl.evaluation.recl import RECL, recl
from transformers_xl.files.atomic_write import write_text
from transformers_xl.files.json_files import read_json

MEASURES = ("with_context", "at_equal_time", "without_context", "recl", "seconds", "training", "generation", "memory")
RUN_FIELDS = {
    "model", "seed", "settings", "parameters", "bits_per_byte", "recl_losses", "peak_memory", "memory_before",
}  # fmt: skip


def read_runs(folder: Path, any_rates: bool = False, models: list[str] | None = None) -> list[dict[str, Any]]:
    """The runs in a folder, or those of some models; with `any_rates`, whatever learning rates each was chosen from.

    Raises:
        ValueError: there are none, none of one of the models, a file is none, or settings differ from run to run.
    """
    files = sorted((folder / "runs").glob("*.json"))
    if not files:
        raise ValueError(
            f"`from`={str(folder)!r} has no runs/*.json: give a folder that `transformers-xl compare` wrote."
        )
    runs = [_read(file, RUN_FIELDS) for file in files]
    for file, run in zip(files, runs, strict=True):
        check_settings(file, run["settings"], runs[0]["settings"], any_rates)
    there = {run["model"] for run in runs}
    if models is not None and not set(models) <= there:
        missing = min(set(models) - there)
        raise ValueError(
            f"`variant`={missing!r} has no run in {str(folder)!r}: it has those of {', '.join(sorted(there))}."
        )
    return [run for run in runs if models is None or run["model"] in models]


def read_speeds(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Speeds by model, none where they were not measured.

    Raises:
        ValueError: they were measured with other settings; learning rates change no speed.
    """
    file = folder / "speeds.json"
    if not file.is_file():
        return {}
    found = _read(file, {"settings", "models"})
    check_settings(file, found["settings"], settings, any_rates=True)
    return found["models"]


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


def check_settings(file: Path, found: dict[str, Any], expected: dict[str, Any], any_rates: bool = False) -> None:
    """Raise a `ValueError` that names the first field in which the settings of a file are not those expected; with
    `any_rates`, of those that are not `learning_rates`."""
    for name in expected | found:
        if found.get(name) != expected.get(name) and not (any_rates and name == "learning_rates"):
            raise ValueError(
                f"`{name}`={expected.get(name)} differs from that of {str(file)!r}, {found.get(name)}: give the same "
                "value, or another folder."
            )


def write_json(path: Path, value: dict[str, Any]) -> None:
    """A file that is there whole or not at all."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def summary(runs: Iterable[dict[str, Any]], speeds: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By model, best first: `parameters`, `recl_is_bound`, `recl_floor` (the shortest context that was tried: a RECL of it
    is that or less), and a list with a value per seed for each of `MEASURES`.

    `with_context` and `without_context` are bits per byte, `recl` tokens, `seconds` those of the training (on a CPU
    processor time), `training` tokens per second, `generation` milliseconds per token, `memory` the MiB that training takes
    at its peak beside the libraries. Speeds are one value, or none. `at_equal_time` are bits per byte with context after
    `equal_seconds` of training, the time of the shortest run: no value for a model that was not scored before, nor for runs
    without learning curves or from several machines. Runs without learning curves have no `seconds`. `curves` has the
    learning curve of each seed.
    """
    runs = list(runs)
    lengths, seconds = _recl(runs), equal_seconds(runs)
    rows: dict[str, dict[str, Any]] = {}
    for run in sorted(runs, key=lambda run: run["seed"]):
        name = run["model"]
        known = {"parameters": run["parameters"], "recl_is_bound": False, "equal_seconds": seconds}
        known["recl_floor"] = min(run["settings"]["recl"]["contexts"])
        known["learning_rate"] = run.get("learning_rate")
        row = rows.setdefault(name, known | {measure: [] for measure in (*MEASURES, "curves")})
        found = lengths[name, run["seed"]]
        for way in ("with_context", "without_context"):
            row[way].append(run["bits_per_byte"][way])
        if seconds is not None and (bits := bits_after(run["curve"], seconds)) is not None:
            row["at_equal_time"].append(bits)
        if "curve" in run:
            row["seconds"].append(run["curve"][-1]["seconds"])
            row["curves"].append(run["curve"])
        row["recl"].append(found.length)
        row["recl_is_bound"] |= found.is_bound
        row["memory"].append((run["peak_memory"] - run["memory_before"]) / 2**20)
    for name in rows.keys() & speeds.keys():
        rows[name]["training"] = [speeds[name]["training_tokens_per_second"]]
        rows[name]["generation"] = [1000 * speeds[name]["seconds_per_generated_token"]]
    return dict(sorted(rows.items(), key=lambda row: statistics.mean(row[1]["with_context"])))


def equal_seconds(runs: list[dict[str, Any]]) -> float | None:
    """The time of the shortest run, where all ran on one machine and have a learning curve."""
    machines = {(run["versions"]["device"], run["versions"]["machine"]) for run in runs if "curve" in run}
    if len(machines) != 1 or any("curve" not in run for run in runs):
        return None
    return min(run["curve"][-1]["seconds"] for run in runs)


def bits_after(curve: list[dict[str, float]], seconds: float) -> float | None:
    """Bits per byte after so many seconds, in a line between two points of a curve; None before the first."""
    if seconds < curve[0]["seconds"]:
        return None
    times, bits = ([point[name] for point in curve] for name in ("seconds", "bits_per_byte"))
    return float(np.interp(seconds, times, bits))


def _recl(runs: list[dict[str, Any]]) -> dict[tuple[str, int], RECL]:
    """RECL by model and seed; the models of one seed are a group."""
    lengths: dict[tuple[str, int], RECL] = {}
    for seed in {run["seed"] for run in runs}:
        group = {}
        for run in runs:
            if run["seed"] == seed:
                contexts = run["settings"]["recl"]["contexts"]
                losses = np.frombuffer(base64.b64decode(run["recl_losses"]), dtype="<f2").reshape(len(contexts), -1)
                group[run["model"]] = dict(zip(contexts, losses, strict=True))
        lengths |= {(name, seed): length for name, length in recl(group).items()}
    return lengths


def spread(values: list[float], digits: int) -> str:
    """Mean, and standard deviation where there are several values."""
    if not values:
        return "-"
    mean = f"{statistics.mean(values):,.{digits}f}"
    return mean if len(values) == 1 else f"{mean} +- {statistics.stdev(values):.{digits}f}"


def recl_of(row: dict[str, Any]) -> str:
    """RECL of a row of a summary: where a seed is at the floor, the mean is the most that it can be. Nothing is below one
    token."""
    values, floor = row["recl"], row["recl_floor"] if row["recl_floor"] > 1 else 0
    if set(values) == {floor}:
        return f"<= {floor}"
    bound = "at least " if row["recl_is_bound"] else "<= " if floor in values else ""
    return bound + spread(values, 0)


def table_cells(rows: dict[str, dict[str, Any]]) -> list[list[str]]:
    """A summary as a heading and rows; what was not measured has no column."""
    seconds = next(iter(rows.values()))["equal_seconds"]
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "seeds": lambda row: str(len(row["with_context"])),
        "bits per byte": lambda row: spread(row["with_context"], 3),
        f"after {seconds or 0:,.0f} s": lambda row: spread(row["at_equal_time"], 3),
        "segments alone": lambda row: spread(row["without_context"], 3),
        "RECL, bytes": recl_of,
        "parameters": lambda row: f"{row['parameters']:,}",
        "learning rate": lambda row: "-" if row["learning_rate"] is None else f"{row['learning_rate']:g}",
        "training, s": lambda row: spread(row["seconds"], 0),
        "training, tokens/s": lambda row: spread(row["training"], 0),
        "generate(), ms per token": lambda row: spread(row["generation"], 2),
        "peak of training, MiB": lambda row: spread(row["memory"], 0),
    }
    cells = {title: [cell(row) for row in rows.values()] for title, cell in columns.items()}
    shown = {title: column for title, column in cells.items() if set(column) != {"-"}}
    return [["model", *shown], *([name, *row] for name, *row in zip(rows, *shown.values(), strict=True))]


def table(rows: dict[str, dict[str, Any]]) -> str:
    """A summary as a Markdown table."""
    header, *cells = table_cells(rows)
    named = [[f"`{name}`", *row] for name, *row in cells]
    lines = [f"| {' | '.join(row)} |".replace("generate()", "`generate()`") for row in (header, *named)]
    lines.insert(1, f"|---|{'---:|' * (len(header) - 1)}")
    return "\n".join(lines) + "\n"


__all__ = [
    "bits_after",
    "check_settings",
    "equal_seconds",
    "read_runs",
    "read_speeds",
    "recl_of",
    "spread",
    "summary",
    "table",
    "table_cells",
    "write_json",
]
