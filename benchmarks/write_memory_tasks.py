"""Sum up the runs of `bench_memory_tasks.py`: `results/memory_tasks.json`, a picture, and the table of docs/agents.md.

    python benchmarks/write_memory_tasks.py

Of a task, the seeds count that every model has. The last value of a run that was solved stands for the rest.
"""

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from agent_tasks import TASKS
from bench_memory_tasks import LEARNED, MODELS, RATES, RESULT, SEEDS, learned, read
from matplotlib.axes import Axes

from transformers_xl.evaluation.plots import figure, line, save, styled
from transformers_xl.files.atomic_write import atomic_write

SUMMARY, PICTURE = RESULT.with_suffix(".json"), RESULT.with_suffix(".png")
PAGE = Path(__file__).parents[1] / "docs" / "agents.md"
PART = re.compile(r"(<!-- table: .*? -->\n).*?(<!-- end of table -->)", flags=re.DOTALL)
Run = dict[str, Any]


def cells(runs: list[Run]) -> dict[str, dict[str, list[Run]]]:
    """The runs of each task and model with the settings of today and the chosen learning rates, those of the seeds that all
    models of the task have; then models at other rates that have these seeds too. Tasks without a limit of seconds are
    for claims (`claims/steady_agents.py`)."""
    found: dict[str, dict[str, list[Run]]] = {}
    for task, limits in TASKS.items():
        of_task = [run for run in runs if run["task"] == task and run["settings"] == limits.limits()]
        models = {
            name: {run["seed"]: run for run in of_task if run["model"] == name and run["rate"] == RATES[name]}
            for name in limits.models or MODELS
        }
        seeds = [seed for seed in SEEDS if all(seed in each for each in models.values())]
        for run in of_task:
            if run["rate"] != RATES[run["model"]]:
                models.setdefault(f"{run['model']} at {run['rate']:g}", {})[run["seed"]] = run
        if seeds and limits.seconds:
            whole = {name: each for name, each in models.items() if each.keys() >= set(seeds)}
            found[task] = {name: [each[seed] for seed in seeds] for name, each in whole.items()}
    return found


def grows(settings: dict[str, Any]) -> bool:
    """Whether episodes of a task grow."""
    return len(settings["lengths"] or ()) > 1


def at(run: Run, axis: int, place: float) -> float:
    """Where a curve is after so many steps (`axis` 0) or seconds (1), by its nearest point: its success, or the length of
    its episodes; NaN before the first episode has ended."""
    _, _, length, success = min(run["curve"], key=lambda point: abs(point[axis] - place))
    return length if grows(run["settings"]) else math.nan if success is None else success


def first(run: Run, axis: int) -> float | None:
    """After how many steps (0) or seconds (1) it had learned; None where it did not."""
    points = [point for point in run["curve"] if learned(run | {"length": point[2], "success": point[3]})]
    return points[0][axis] if points else None


def summed(values: list[float]) -> dict[str, float] | None:
    """Of seeds, those that have a value."""
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return None
    return {"mean": round(statistics.mean(values), 4), "low": min(values), "high": max(values)}


def summary(runs: list[Run]) -> list[dict[str, Any]]:
    """A row for each task and model."""
    rows = []
    for task, models in cells(runs).items():
        for name, each in models.items():
            limits = each[0]["settings"]
            row: dict[str, Any] = {
                "task": task,
                "model": name,
                "parameters": each[0]["parameters"],
                "seeds": len(each),
            }
            row |= {"equal steps": limits["steps"], "equal seconds": limits["seconds"]}
            row |= {"grows": grows(limits), "learned": sum(map(learned, each))}
            row["at equal steps"] = summed([at(run, 0, limits["steps"]) for run in each])
            row["at equal seconds"] = summed([at(run, 1, limits["seconds"]) for run in each])
            row["ever"] = sum(first(run, 0) is not None for run in each)
            for axis, unit in enumerate(("steps", "seconds")):
                row[f"{unit} to learn"] = summed([place for run in each if (place := first(run, axis)) is not None])
            rows.append(row)
    return rows


def shown(value: dict[str, float] | None, form: str) -> str:
    if value is None:
        return ""
    mean, low, high = (format(value[name], form) for name in ("mean", "low", "high"))
    return mean if low == high == mean else f"{mean} ({low} to {high})"


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and range of seeds."""
    heads = (
        *("task", "agent", "learned at the end", "ever", "at equal steps", "at equal CPU time"),
        *("steps until first", "CPU s until first"),
    )
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    for row, before in zip(rows, [None, *rows], strict=False):
        form, begins = ",.0f" if row["grows"] else ".2f", before is None or before["task"] != row["task"]
        texts = [
            f"{row['task']}: {row['equal steps']:,} steps, {row['equal seconds']:g} s" if begins else "",
            row["model"], f"{row['learned']} of {row['seeds']}", f"{row['ever']}",
            shown(row["at equal steps"], form), shown(row["at equal seconds"], form),
            shown(row["steps to learn"], ",.0f"), shown(row["seconds to learn"], ".0f"),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def draw_curves(axes: Axes, runs: dict[str, list[Run]], axis: int) -> None:
    """A line for each model, the mean of its seeds, and a thin one for each seed."""
    for name, each in runs.items():
        if name not in MODELS:
            continue  # at another rate: the table has it
        style = line([*MODELS].index(name), len(MODELS))  # the same in all panels
        end = max(run["curve"][-1][axis] for run in each)
        places, scale = np.linspace(0, end, 100), (1000, 1)[axis]
        values = np.array([[at(run, axis, place) for place in places] for run in each], dtype=float)
        axes.plot(places / scale, values.mean(axis=0), label=name, markevery=12, **style)
        axes.plot(
            places / scale, values.T, color=style["color"], linestyle=style["linestyle"], linewidth=0.5, alpha=0.35
        )


@styled
def draw(runs: list[Run]) -> None:
    found = cells(runs)
    picture, panels = figure(columns=2, rows=len(found), width=4.2, height=2.3, sharey="row")
    for (left, right), (task, models) in zip(panels, found.items(), strict=True):
        limits = next(iter(models.values()))[0]["settings"]
        for axis, axes in enumerate((left, right)):
            draw_curves(axes, models, axis)
            axes.axvline((limits["steps"] / 1000, limits["seconds"])[axis], color="gray", linewidth=0.8)
            axes.set(xlabel=("thousand environment steps", "CPU seconds")[axis], xlim=(0, None))
        left.set(title=task, ylabel="episode length" if grows(limits) else "success")
        count = len(next(iter(models.values())))
        right.set_title("one seed" if count == 1 else f"{count} seeds")
    panels[0][1].legend(loc="lower right")
    save(picture, PICTURE)


def page(rows: list[dict[str, Any]]) -> str:
    """docs/agents.md with the table written again."""
    return PART.sub(lambda match: f"{match[1]}\n{table(rows)}\n\n{match[2]}", PAGE.read_text(encoding="utf-8"))


def main() -> None:
    runs = read(RESULT)
    rows = summary(runs)
    machines = sorted({f"{run['processor']}, torch {run['torch']}" for run in runs})
    result = {"machines": machines, "learned": LEARNED, "rows": rows}
    with atomic_write(SUMMARY) as new:
        new.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(runs)
    PAGE.write_text(page(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
