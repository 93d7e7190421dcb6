"""The pictures: what they say on their axes, that they survive grey print, and how they are written."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from transformers_xl.evaluation import attention_plots as plots
from transformers_xl.evaluation.attention_maps import AttentionAtlas, TokenMaps
from transformers_xl.evaluation.plots import png_bytes
from transformers_xl.modeling.layers.product_key_memory import KeyUsage

RANDOM = np.random.default_rng(0)


def atlas() -> AttentionAtlas:
    weights = RANDOM.dirichlet(np.ones(12), size=(2, 3))
    return AttentionAtlas(["layer 1", "layer 2"], weights, RANDOM.random((2, 3)), np.array([9, 9]))


def maps() -> TokenMaps:
    return TokenMaps(["layer 1, head 2"], np.arange(5, 8), np.arange(8), RANDOM.random((1, 3, 8)))


# a picture, and the words and units that its axes must show
PICTURES = {
    "atlas": (lambda: plots.draw_atlas(atlas()), ("distance (positions", "layer 2", "weight (share of 1")),
    "heads": (lambda: plots.draw_heads(atlas()), ("mean distance (positions)", "entropy (nats)", "head")),
    "terms": (
        lambda: plots.draw_terms({name: atlas() for name in "abcd"}, {name: f"term {name}" for name in "abcd"}),
        ("term d", "distance (positions", "share of 1"),
    ),
    "tokens": (lambda: plots.draw_token_maps(maps(), ["a", "$", "$"]), ("(tokens)", r"\$", "layer 1, head 2")),
    "bits": (lambda: plots.draw_bits({"with memory": np.ones(4)}), ("bits per byte", "(tokens)", "with memory")),
    "spans": (lambda: plots.draw_spans(np.arange(6).reshape(2, 3)), ("positions before the token", "layer 2", "5")),
    "depths": (
        lambda: plots.draw_depths(np.array([1, 3, 3, 2]), 3, "steps", ["a", "b"]),
        ("share of tokens", "steps", "mean 2.25"),
    ),
    "usage": (
        lambda: plots.draw_usage({2: KeyUsage(torch.tensor([3.0, 3, 0, 0]))}),
        ("layer 2: 50.0% of 4 slots read, KL 0.69 nats", "share of all read weights"),
    ),
    "gates": (lambda: plots.draw_gates(RANDOM.random((2, 2, 8))), ("openness (0 shut, 1 open)", "layer")),
    "ring": (lambda: plots.draw_ring(RANDOM.random((2, 2, 5))), ("relay", "layer 2, head 2", "share of 1")),
    "pairs": (lambda: plots.draw_pairs(RANDOM.random((5, 2, 4, 4))), ("layer 5", "key (positions)", "share")),
}


def words(figure: Figure) -> str:
    """All that is written in a picture."""
    figure.draw_without_rendering()
    return "\n".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_names_what_it_shows_and_its_units(name: str):
    """Painted and written: test_plots.py, and those of a report in tests/cli/test_report.py."""
    draw, expected = PICTURES[name]
    written = words(draw())
    for word in expected:
        assert word in written


@pytest.mark.parametrize("name", [plots.HEAT, plots.INK])
def test_colours_survive_grey_print(name: str):
    """Lightness falls steadily from the least value to the largest."""
    red, green, blue, _ = matplotlib.colormaps[name](np.linspace(0, 1, 64)).T
    grey = 0.299 * red + 0.587 * green + 0.114 * blue
    assert (np.diff(grey) < 0).all()
    assert grey[0] - grey[-1] > 0.5


def test_a_head_that_looked_at_nothing_is_drawn():
    empty = AttentionAtlas(["step 1", "step 2"], np.zeros((2, 3, 4)), np.zeros((2, 3)), np.array([0, 0]))
    assert np.isnan(empty.mean_distance).all()
    assert "-" in words(plots.draw_heads(empty))
    png_bytes(plots.draw_atlas(empty))
