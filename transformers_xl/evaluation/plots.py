"""The style of all pictures: readable in grey print, and written as PNG and SVG from one figure."""

import io
import os
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from transformers_xl.files.atomic_write import atomic_write

DPI = 120
HEAT_MAP = "cividis"  # grows evenly in lightness: one order for all eyes, and in grey print
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.fontsize": "small",
    "legend.framealpha": 0.7,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "svg.hashsalt": "transformers-xl",  # the same figure is the same file
}
styled = matplotlib.rc_context(STYLE)  # decorates what draws or saves


@styled
def figure(
    columns: int = 1, rows: int = 1, width: float = 5.5, height: float = 4.0, **kwargs: Any
) -> tuple[Figure, np.ndarray]:
    """A figure and its axes `(rows, columns)`, each of `width` x `height` inches. No window, no global state. `kwargs` are
    those of `Figure.subplots`."""
    new = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return new, new.subplots(rows, columns, squeeze=False, **kwargs)


def line(index: int, count: int) -> dict[str, Any]:
    """Colour, dashes and marker of line `index` of `count`: told apart by each of the three."""
    shade = 0.85 * index / max(count - 1, 1)  # the end of the map is too light for a line on white
    return {
        "color": matplotlib.colormaps[HEAT_MAP](shade),
        "linestyle": LINES[index % len(LINES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def picture_files(path: str | os.PathLike) -> list[Path]:
    """The files that [`save`] writes: `path` itself where it ends in .png or .svg, both where it has no ending.

    Raises:
        ValueError: another ending, or a folder that does not exist.
    """
    path = Path(path)
    if path.suffix not in ("", ".png", ".svg"):
        raise ValueError(f"`picture`={str(path)!r} must end in .png or .svg, or have no ending for both.")
    if not path.parent.is_dir():
        raise ValueError(f"`picture`={str(path)!r}: the folder {str(path.parent)!r} does not exist, make it first.")
    return [path] if path.suffix else [path.with_suffix(".png"), path.with_suffix(".svg")]


@styled
def save(picture: Figure, path: str | os.PathLike) -> list[Path]:
    """Write a figure, each file whole or not at all; the files. For errors see [`picture_files`]."""
    files = picture_files(path)
    for file in files:
        with atomic_write(file) as new:
            picture.savefig(new, dpi=DPI, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files


@styled
def png_bytes(picture: Figure) -> bytes:
    """What [`save`] writes as PNG."""
    stream = io.BytesIO()
    picture.savefig(stream, format="png", dpi=DPI)
    return stream.getvalue()


__all__ = ["HEAT_MAP", "figure", "line", "picture_files", "png_bytes", "save", "styled"]
