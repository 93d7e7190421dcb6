"""The picture of a comparison: a row for each model, a column for each measure."""

import statistics
from typing import Any

from matplotlib.figure import Figure

from transformers_xl.evaluation.plots import figure, line, styled

COLUMNS = {
    "with_context": "bits per byte",
    "at_equal_time": "bits per byte",
    "recl": "RECL (bytes)",
    "seconds": "training (s)",
    "training": "training (1,000 tokens/s)",
    "generation": "generate() (ms per token)",
    "memory": "peak of training (MiB)",
}


@styled
def draw_comparison(rows: dict[str, dict[str, Any]]) -> Figure:
    """Small marks are seeds, large ones their mean; the best model on top. `rows` is a summary of
    [`~transformers_xl.runs.comparison.summary`]. Columns without a value are left out."""
    columns = {name: label for name, label in COLUMNS.items() if any(row[name] for row in rows.values())}
    picture, grid = figure(columns=len(columns), width=2.6, height=0.9 + 0.26 * len(rows))
    full, hollow = line(0, 2), line(1, 2)
    for axes, (measure, label) in zip(grid[0], columns.items(), strict=True):
        for height, row in enumerate(rows.values()):
            if measure == "with_context":
                _marks(axes, row["without_context"], height, hollow["color"], "s", "none")
            scale = 1000 if measure == "training" else 1
            _marks(axes, [value / scale for value in row[measure]], height, full["color"], "o", full["color"])
        if measure == "recl":
            _tick_the_floor(axes, min(row["recl_floor"] for row in rows.values()))
        if measure == "at_equal_time":
            label = f"{label}, after {next(iter(rows.values()))['equal_seconds']:.0f} s"
        axes.set(xlabel=label, ylim=(len(rows) - 0.5, -0.5))
        axes.set_yticks(range(len(rows)), rows if axes is grid[0][0] else [""] * len(rows))
    grid[0][0].set_title(
        "dots: with memory or context\nsquares: each segment alone\nno axis begins at 0", fontsize="small"
    )
    return picture


def _tick_the_floor(axes, floor: int) -> None:
    """A RECL of the shortest context that was tried is that or less; nothing is below one token."""
    if floor > 1:
        above = [tick for tick in axes.get_xticks() if 1.5 * floor < tick <= axes.get_xlim()[1]]
        axes.set_xticks([floor, *above], [f"<= {floor:g}", *(f"{tick:g}" for tick in above)])


def _marks(axes, values: list[float], height: int, color: Any, marker: str, face: Any) -> None:
    style = {"linestyle": "none", "marker": marker, "color": color, "markerfacecolor": face}
    if len(values) > 1:
        axes.plot([min(values), max(values)], [height, height], color=color, linewidth=0.8)
        axes.plot(values, [height] * len(values), **style, markersize=2)
    if values:
        axes.plot([statistics.mean(values)], [height], **style, markersize=6)


__all__ = ["draw_comparison"]
