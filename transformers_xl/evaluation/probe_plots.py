"""The picture of the memory probe: accuracy against distance, a panel for each kind of memory."""

import math
import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformers_xl.evaluation.plots import figure, line, styled

COLUMNS = 4


@styled
def draw_probe(panels: dict[str, list[dict[str, Any]]], task: str, chance: float) -> Figure:
    """A panel for each name; in it a line for each row, as for each seed, with its 95 % interval.

    Dashed: chance. Vertical lines: how far back one layer sees, and all layers together. `panels` holds rows of
    `transformers-xl probe --json`.
    """
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    picture, grid = figure(columns, rows, width=2.9, height=2.3, sharex=True, sharey=True)
    flat = grid.ravel()
    for axes, (name, runs) in zip(flat, panels.items(), strict=False):
        _draw_panel(axes, runs, chance)
        axes.set_title(name)
    for axes in flat[len(panels) :]:
        axes.set_visible(False)
    for column in range(columns):
        last = max(index for index in range(column, len(panels), columns))
        flat[last].set_xlabel("distance of the answer (tokens)")
        flat[last].tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy")
    told = (
        f"{task}: a line for each seed, with its 95 % interval; dashed across, chance; vertical, reach of one "
        "layer (solid) and of all (dotted)"
    )
    picture.suptitle(textwrap.fill(told, 42 * columns), fontsize="medium")
    return picture


def _draw_panel(axes: Axes, runs: list[dict[str, Any]], chance: float) -> None:
    for index, run in enumerate(runs):
        asked = [place for place, value in enumerate(run["accuracy"]) if value is not None]
        middles = [math.sqrt(first * last) for first, last in (run["bins"][place] for place in asked)]
        style = line(index, max(len(runs), 3))
        axes.plot(middles, [run["accuracy"][place] for place in asked], **style)
        low, high = zip(*(run["intervals"][place] for place in asked), strict=True)
        axes.fill_between(middles, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.axhline(chance, color="black", linewidth=0.8, linestyle="--")
    reach = runs[0]["reach"]
    largest = runs[0]["bins"][-1][1]
    for tokens, dashes in ((reach["direct"], "-"), (reach["layers"], ":")):
        if tokens is not None and tokens <= largest:
            axes.axvline(tokens, color="black", linewidth=0.8, linestyle=dashes)
    axes.set(ylim=(0, 1.06), xscale="log")  # marks at 1 are whole
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")


__all__ = ["draw_probe"]
