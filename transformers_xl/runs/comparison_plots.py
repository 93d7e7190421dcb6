"""The picture of a comparison: learning curves against the time of training, or a row for each model."""

import math
import statistics
from typing import Any

from matplotlib.figure import Figure

from transformers_xl.evaluation.plots import figure, line, styled

COLUMNS = {
    "with_context": "bits per byte",
    "seconds": "training (s)",
    "training": "training (1,000 tokens/s)",
    "generation": "generate() (ms per token)",
    "memory": "peak of training (MiB)",
}


@styled
def draw_comparison(rows: dict[str, dict[str, Any]]) -> Figure:
    """Where all runs have learning curves and come from one machine, bits against seconds; else a row for each model.
    `rows` is a summary of [`~transformers_xl.runs.comparison.summary`]."""
    return _draw_rows(rows) if next(iter(rows.values()))["equal_seconds"] is None else _draw_curves(rows)


def _draw_curves(rows: dict[str, dict[str, Any]]) -> Figure:
    """A line for each model, through the means of its seeds after the same steps, and the range of the seeds."""
    picture, ((axes,),) = figure(width=7.5, height=4.2)
    ends = []
    for index, (name, row) in enumerate(rows.items()):
        points = list(zip(*row["curves"], strict=True))  # the same steps in every seed
        bits = [[point["bits_per_byte"] for point in seeds] for seeds in points]
        seconds = [statistics.mean(point["seconds"] for point in seeds) for seeds in points]
        style = line(index, len(rows))
        axes.plot(seconds, list(map(statistics.mean, bits)), label=name, **style)
        axes.fill_between(seconds, list(map(min, bits)), list(map(max, bits)), color=style["color"], alpha=0.15, lw=0)
        ends.append(seconds[-1])
    axes.set(xscale="log", xlabel="seconds of training (log scale)", ylabel="bits per byte (not from 0)")
    low, high = math.floor(math.log2(min(ends) / 8)), math.ceil(math.log2(max(ends)))
    axes.set_xticks(
        [2.0**power for power in range(low, high + 1)], [f"{2**power:g}" for power in range(low, high + 1)]
    )
    axes.minorticks_off()
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_title("held-out text, means and ranges of the seeds; a line ends after the last step", fontsize="small")
    return picture


def _draw_rows(rows: dict[str, dict[str, Any]]) -> Figure:
    """Small marks are seeds, large ones their mean; the best model on top. Columns without a value are left out."""
    columns = {name: label for name, label in COLUMNS.items() if any(row[name] for row in rows.values())}
    picture, grid = figure(columns=len(columns), width=2.6, height=0.9 + 0.26 * len(rows))
    full, hollow = line(0, 2), line(1, 2)
    for axes, (measure, label) in zip(grid[0], columns.items(), strict=True):
        for height, row in enumerate(rows.values()):
            if measure == "with_context":
                _marks(axes, row["without_context"], height, hollow["color"], "s", "none")
            scale = 1000 if measure == "training" else 1
            _marks(axes, [value / scale for value in row[measure]], height, full["color"], "o", full["color"])
        axes.set(xlabel=label, ylim=(len(rows) - 0.5, -0.5))
        axes.set_yticks(range(len(rows)), rows if axes is grid[0][0] else [""] * len(rows))
    grid[0][0].set_title(
        "dots: with memory or context\nsquares: each segment alone\nno axis begins at 0", fontsize="small"
    )
    return picture


def _marks(axes, values: list[float], height: int, color: Any, marker: str, face: Any) -> None:
    style = {"linestyle": "none", "marker": marker, "color": color, "markerfacecolor": face}
    if len(values) > 1:
        axes.plot([min(values), max(values)], [height, height], color=color, linewidth=0.8)
        axes.plot(values, [height] * len(values), **style, markersize=2)
    if values:
        axes.plot([statistics.mean(values)], [height], **style, markersize=6)


__all__ = ["draw_comparison"]
