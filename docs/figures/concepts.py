"""Draw the figures of docs/concepts: `python docs/figures/concepts.py` writes docs/images/concepts/*.svg.

`tests/test_docs.py` checks that the files are what this draws.
"""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parents[1] / "images" / "concepts"
MEMORY, SEGMENT, SEEN, BLANK, LINE = "#f2b84b", "#4b7bd1", "#9fc0f5", "#ffffff", "#555555"
# the same bytes on every machine: text stays text, and names of clip paths are no random numbers
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "transformers-xl", "font.family": "sans-serif", "font.size": 11}


def canvas(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = [figure.add_subplot(1, columns, number + 1) for number in range(columns)]
    for ax in axes:
        ax.set_aspect("equal")
        ax.axis("off")
    figure.subplots_adjust(left=0.02, right=0.98, bottom=0.02, top=0.9, wspace=0.08)
    return figure, axes


def cell(ax: Axes, x: float, y: float, color: str, text: str = "", size: float = 0.9) -> None:
    ax.add_patch(matplotlib.patches.Rectangle((x, y), size, size, facecolor=color, edgecolor=LINE, linewidth=0.8))
    if text:
        ax.text(x + size / 2, y + size / 2, text, ha="center", va="center", fontsize=9)


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], color: str = LINE) -> None:
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 1.1})


def limits(ax: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    ax.set_xlim(*x)
    ax.set_ylim(*y)


def recurrence() -> Figure:
    """Three layers, a memory of four positions, a segment of four: what one token reads, layer by layer."""
    figure, (ax,) = canvas(8, 3.6)
    for layer in range(3):
        y = layer * 2
        ax.text(-0.4, y + 0.45, f"input of layer {layer + 1}", ha="right", va="center")
        for column in range(8):
            cell(ax, column, y, MEMORY if column < 4 else SEGMENT)
    for y in (0, 2):
        for source in range(8):
            arrow(ax, (source + 0.45, y + 0.95), (7.45, y + 1.95), MEMORY if source < 4 else SEGMENT)
    ax.text(1.95, 5.3, "memory: the segment before", ha="center")
    ax.text(5.95, 5.3, "this segment", ha="center")
    limits(ax, (-3.2, 8.2), (-0.2, 5.8))
    return figure


def relative_shift() -> Figure:
    """Scores by distance, and the same scores where the keys stand."""
    figure, (left, right) = canvas(8, 3.3, columns=2)
    shades = ["#08306b", "#2171b5", "#6baed6", "#c6dbef", "#eff3ff"]
    for query in range(3):
        y = 2 - query
        for column in range(5):
            distance = 4 - column
            cell(left, column, y, shades[distance])
            color = "white" if distance < 2 else "black"
            left.text(column + 0.45, y + 0.45, str(distance), ha="center", va="center", color=color)
        for key in range(5):
            distance = query + 2 - key
            if distance < 0:
                cell(right, key, y, BLANK)
                continue
            cell(right, key, y, shades[distance])
            color = "white" if distance < 2 else "black"
            right.text(key + 0.45, y + 0.45, str(distance), ha="center", va="center", color=color)
        for ax in (left, right):
            ax.text(-0.2, y + 0.45, f"query {query}", ha="right", va="center")
    for key in range(5):
        right.text(key + 0.45, -0.25, f"key\n{key - 2}", ha="center", va="top", fontsize=9)
    left.text(2.45, -0.25, "one column per distance", ha="center", va="top", fontsize=9)
    left.set_title("queries x distances", fontsize=11)
    right.set_title("shifted: queries x keys", fontsize=11)
    for ax in (left, right):
        limits(ax, (-1.6, 5.1), (-1.2, 3))
    return figure


def window() -> Figure:
    """What each token of a segment of four sees of a memory of four, by `same_length`."""
    figure, axes = canvas(8, 2.9, columns=2)
    for ax, same_length in zip(axes, (True, False), strict=True):
        for query in range(4):
            y = 3 - query
            ax.text(-0.2, y + 0.45, f"token {query}", ha="right", va="center")
            for key in range(8):
                seen = key <= query + 4 and (not same_length or key > query)
                cell(ax, key, y, (MEMORY if key < 4 else SEGMENT) if seen else BLANK)
        ax.text(1.95, -0.2, "memory", ha="center", va="top")
        ax.text(5.95, -0.2, "segment", ha="center", va="top")
        ax.set_title(f"same_length={same_length}", fontsize=11)
        limits(ax, (-1.8, 8.1), (-0.9, 4))
    return figure


def one_value() -> Figure:
    """Columns are inputs of layers, which every call projects again, or what was projected."""
    figure, axes = canvas(8, 3.1, columns=2)
    titles = ("model(ids)", "model(ids, use_cache=True)")
    for ax, title, kept in zip(axes, titles, ("inputs", "keys, values"), strict=True):
        for column in range(4):
            cell(ax, column, 0, MEMORY)
        for column in range(5, 7):
            cell(ax, column, 0, SEGMENT)
        ax.text(1.95, -0.2, f"kept: {kept}", ha="center", va="top")
        ax.text(5.95, -0.2, "new inputs", ha="center", va="top")
        for column in range(7):
            if column != 4:
                cell(ax, column, 2.4, SEEN)
        ax.text(3.45, 3.5, "keys and values that the attention reads", ha="center")
        for column in (0, 1, 2, 3, 5, 6):
            projected = column > 4 or kept == "inputs"
            arrow(ax, (column + 0.45, 1), (column + 0.45, 2.35), SEGMENT if projected else MEMORY)
        ax.text(1.95, 1.65, "project again" if kept == "inputs" else "as they are", ha="center", va="center").set_bbox(
            {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        )
        ax.text(5.95, 1.65, "project", ha="center", va="center").set_bbox(
            {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        )
        ax.set_title(title, fontsize=11)
        limits(ax, (-0.2, 7.2), (-0.9, 4.1))
    return figure


def padding_and_resets() -> Figure:
    """A segment of three rows, and the memory of four positions after it."""
    figure, (left, right) = canvas(8, 2.6, columns=2)
    segment = (("a5", "a6", "a7", "a8"), ("pad", "pad", "b3", "b4"), ("c9", "d1", "d2", "d3"))
    memory = (("a5", "a6", "a7", "a8"), ("b1", "b2", "b3", "b4"), ("", "d1", "d2", "d3"))
    names = ("row 0", "row 1: padding", "row 2: reset at d1")
    for row in range(3):
        y = 2 - row
        left.text(-0.2, y + 0.45, names[row], ha="right", va="center")
        for column in range(4):
            text = segment[row][column]
            cell(left, column, y, BLANK if text == "pad" else SEEN, text)
            cell(right, column, y, MEMORY if memory[row][column] else BLANK, memory[row][column])
    left.set_title("segment", fontsize=11)
    right.set_title("memory after it (mem_len=4)", fontsize=11)
    limits(left, (-3.6, 4.1), (-0.2, 3.1))
    limits(right, (-1.8, 5.9), (-0.2, 3.1))
    return figure


FIGURES: tuple[Callable[[], Figure], ...] = (recurrence, relative_shift, window, one_value, padding_and_resets)


def svg(draw: Callable[[], Figure]) -> str:
    buffer = BytesIO()
    with matplotlib.rc_context(STYLE):
        draw().savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    lines = (line.rstrip() for line in buffer.getvalue().decode("utf-8").splitlines())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for draw in FIGURES:
        (FOLDER / f"{draw.__name__}.svg").write_text(svg(draw), encoding="utf-8")
