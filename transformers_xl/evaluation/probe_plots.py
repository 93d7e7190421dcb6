"""The picture of the memory probe: accuracy by model and distance, in one map."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from transformers_xl.evaluation.plots import HEAT_MAP, figure, styled


@styled
def draw_probe(panels: dict[str, list[dict[str, Any]]], task: str, chance: float) -> Figure:
    """A row for each name, a column for each bin of distances: accuracy, the mean of the seeds; white where nothing was
    asked. Bold: the lower end of the 95 % interval is above chance in every seed. A line ends what one layer sees.
    `panels` holds rows of `transformers-xl probe --json`."""
    bins = next(iter(panels.values()))[0]["bins"]
    means = np.array([_mean_of_seeds(runs) for runs in panels.values()])
    picture, ((axes,),) = figure(width=1.8 + 0.55 * len(bins), height=0.9 + 0.24 * len(panels))
    shown = axes.imshow(means, cmap=HEAT_MAP, vmin=chance, vmax=1, aspect="auto")
    for row, runs in enumerate(panels.values()):
        for column, value in enumerate(means[row]):
            if np.isnan(value):
                continue
            is_sure = all(run["intervals"][column] and run["intervals"][column][0] > chance for run in runs)
            color = "black" if value > (1 + chance) / 2 else "white"
            weight = "bold" if is_sure else "normal"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color, weight=weight, size=7)
        reach = runs[0]["reach"]["direct"]
        if reach is not None and reach < bins[-1][1]:
            axes.plot([_column_after(bins, reach)] * 2, [row - 0.5, row + 0.5], color="white", linewidth=1.5)
    axes.grid(visible=False)
    axes.set_yticks(range(len(panels)), panels)
    axes.set_xticks(range(len(bins)), [f"{first}-{last}" for first, last in bins], rotation=30)
    axes.set_xlabel("distance of the answer (tokens)")
    axes.set_title(f"{task}: accuracy, chance {chance:.3f}", fontsize="medium")
    picture.colorbar(shown, ax=axes, label="from chance to 1", fraction=0.05)
    return picture


def _mean_of_seeds(runs: list[dict[str, Any]]) -> list[float]:
    by_bin = zip(*(run["accuracy"] for run in runs), strict=True)
    return [float("nan") if None in seeds else float(np.mean(seeds)) for seeds in by_bin]


def _column_after(bins: list[list[int]], tokens: int) -> float:
    """Where a distance stands among columns that each go by one unit, from -0.5 on."""
    for column, (first, last) in enumerate(bins):
        if tokens <= last:
            return column - 0.5 + max(tokens - first + 1, 0) / (last - first + 1)
    return len(bins) - 0.5


__all__ = ["draw_probe"]
