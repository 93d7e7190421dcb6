"""Pictures: lines that grey print tells apart, files that are whole and the same each time."""

from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from transformers_xl.evaluation.plots import HEAT_MAP, figure, line, picture_files, save


def grey(color) -> float:
    return float(np.dot(matplotlib.colors.to_rgb(color), [0.299, 0.587, 0.114]))


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_lines_differ_in_grey_print(count: int):
    styles = [line(index, count) for index in range(count)]
    shades = [grey(style["color"]) for style in styles]
    assert all(later - earlier > 0.5 / count for earlier, later in pairwise(shades))
    assert max(shades) < 0.8  # still seen on white
    assert len({(style["linestyle"], style["marker"]) for style in styles}) == count


def test_the_heat_map_grows_evenly_in_lightness():
    shades = [grey(color) for color in matplotlib.colormaps[HEAT_MAP](np.linspace(0, 1, 20))]
    assert all(0.01 < step < 0.1 for step in np.diff(shades))


def draw():
    picture, axes = figure(columns=2)
    assert axes.shape == (1, 2)
    axes[0, 0].plot([1, 2, 3], [3, 1, 2], **line(0, 1))
    axes[0, 1].imshow(np.eye(3), cmap=HEAT_MAP)
    return picture


def test_png_and_svg_and_the_same_each_time(tmp_path: Path):
    first = {file.name: file.read_bytes() for file in save(draw(), tmp_path / "picture")}
    assert set(first) == {"picture.png", "picture.svg"}
    assert first["picture.png"].startswith(b"\x89PNG")
    assert b"<svg" in first["picture.svg"]
    assert first == {file.name: file.read_bytes() for file in save(draw(), tmp_path / "picture")}
    assert save(draw(), tmp_path / "one.svg") == [tmp_path / "one.svg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.svg", "picture.png", "picture.svg"]


def test_settings_of_others_stay(tmp_path: Path):
    before = dict(matplotlib.rcParams)
    save(draw(), tmp_path / "picture.png")
    assert dict(matplotlib.rcParams) == before


def test_endings(tmp_path: Path):
    with pytest.raises(ValueError, match="`picture`=.*pdf"):
        picture_files(tmp_path / "picture.pdf")
    with pytest.raises(ValueError, match="does not exist"):
        picture_files(tmp_path / "missing" / "picture.png")
