"""Pictures of attention and of what variants have learned, in colours that survive grey print. `plots.save` writes them."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from transformers_xl.evaluation.attention_maps import AttentionAtlas, TokenMaps
from transformers_xl.evaluation.inspection import GATED, RING
from transformers_xl.evaluation.plots import HEAT_MAP, figure, line, styled
from transformers_xl.modeling.layers.product_key_memory import KeyUsage

# light to dark, as in the paper, with a lightness that falls steadily: printed in grey they say the same
HEAT, INK = f"{HEAT_MAP}_r", "Greys"


@styled
def draw_atlas(atlas: AttentionAtlas) -> Figure:
    """Layers x heads against distance, as one heat map: the paper's figure 4."""
    rows, heads, _ = atlas.mean_weight.shape
    picture, ((axes,),) = figure(width=9.5, height=1.3 + min(9.0, max(2.2, 0.12 * rows * heads)))
    image = _heat(axes, atlas, _log_scale([atlas]))
    axes.set(xlabel="distance (positions before the token)", ylabel=f"heads ({heads} in each)")
    picture.colorbar(image, ax=axes, label="mean attention weight (share of 1, log scale)", pad=0.02)
    return picture


@styled
def draw_terms(terms: dict[str, AttentionAtlas], titles: dict[str, str]) -> Figure:
    """The heat map of each term of the score, on one scale: the paper's figure 6."""
    rows, heads, _ = next(iter(terms.values())).mean_weight.shape
    height = 0.5 + min(6.0, max(2.0, 0.08 * rows * heads))
    picture, grid = figure(columns=2, rows=2, height=height, sharex=True, sharey=True)
    scale = _log_scale(terms.values())
    for axes, (term, atlas) in zip(grid.flat, terms.items(), strict=True):
        image = _heat(axes, atlas, scale)
        axes.set_title(titles[term])
    for axes in grid[-1]:
        axes.set_xlabel("distance (positions before the token)")
    for axes in grid[:, 0]:
        axes.set_ylabel(f"heads ({heads} in each)")
    picture.colorbar(image, ax=grid, label="mean weight (share of 1, log scale)", pad=0.02)
    return picture


@styled
def draw_heads(atlas: AttentionAtlas) -> Figure:
    """Mean distance and entropy of every head, layers x heads."""
    rows, heads = atlas.entropy.shape
    width, height = max(3.0, 1.1 + 0.55 * heads), max(2.4, 0.9 + 0.4 * rows)
    picture, grid = figure(columns=2, width=width, height=height, sharey=True)
    for axes, values, title, unit in zip(
        grid[0],
        (atlas.mean_distance, atlas.entropy),
        ("How far back", "How spread out"),
        ("mean distance (positions)", "entropy (nats)"),
        strict=True,
    ):
        _table(axes, values, atlas.rows, [str(head + 1) for head in range(heads)])
        axes.set(xlabel="head")
        axes.set_title(f"{title}: {unit}")
    return picture


@styled
def draw_token_maps(maps: TokenMaps, labels: Sequence[str]) -> Figure:
    """For chosen heads, what each token looks at: the paper's figure 5. `labels` are those of the tokens, from the top."""
    count, tokens, _ = maps.weights.shape
    picture, grid = figure(rows=count, width=9.5, height=max(2.2, 0.6 + 0.15 * tokens))
    for axes, name, weights in zip(grid[:, 0], maps.names, maps.weights, strict=True):
        # the root brings out what is faint; a token's largest weight is often ten times the others
        norm = PowerNorm(0.5, 0.0, max(float(weights.max()), 1e-9))
        extent = (maps.keys[0] - 0.5, maps.keys[-1] + 0.5, tokens - 0.5, -0.5)
        image = _image(axes, weights, cmap=INK, norm=norm, extent=extent)
        axes.axvline(maps.queries[0] - 0.5, color="black", linewidth=0.8, linestyle=":")
        axes.set_yticks(range(tokens), [_plain(label) for label in labels], fontsize=7)
        axes.set(xlabel="position in the text (tokens); dotted: where these tokens begin", ylabel="token")
        axes.set_title(name)
        picture.colorbar(image, ax=axes, label="attention weight (share of 1)", pad=0.02)
    return picture


@styled
def draw_bits(by_position: dict[str, np.ndarray]) -> Figure:
    """Bits per byte at each position of a segment, a line for each way to read."""
    picture, ((axes,),) = figure(width=9.5, height=3.4)
    for index, (name, bits) in enumerate(by_position.items()):
        every = max(1, len(bits) // 16)
        axes.plot(range(1, len(bits) + 1), bits, label=name, markevery=every, **line(index, len(by_position)))
    axes.set(xlabel="position in the segment (tokens)", ylabel="bits per byte", ylim=(0, None))
    axes.legend()
    return picture


@styled
def draw_spans(spans: np.ndarray) -> Figure:
    """Learned spans, layers x heads."""
    layers, heads = spans.shape
    picture, ((axes,),) = figure(width=2.4 + 0.7 * heads, height=max(2.4, 0.9 + 0.4 * layers))
    _table(axes, spans, _layers(layers), [str(head + 1) for head in range(heads)], digits=0)
    axes.set(xlabel="head")
    axes.set_title("span (positions before the token, ramp included)")
    return picture


@styled
def draw_depths(depths: np.ndarray, most: int, what: str, labels: Sequence[str]) -> Figure:
    """How many tokens stopped after each step or layer (`what`), 1..`most`, and where the last tokens of the text did."""
    picture, ((left, right),) = figure(columns=2, width=4.75, height=3.2, width_ratios=(1, 3))
    shares = np.bincount(depths, minlength=most + 1)[1:] / len(depths)
    left.bar(range(1, most + 1), shares, color="0.45", edgecolor="black")
    left.set(xlabel=what, ylabel="share of tokens", ylim=(0, 1))
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_title(f"mean {depths.mean():.2f}")
    shown = depths[-len(labels) :]
    right.bar(range(len(shown)), shown, color="0.45", width=1.0, edgecolor="black", linewidth=0.4)
    right.set_xticks(range(len(shown)), [_plain(label) for label in labels], fontsize=7)
    edges = (-0.5, len(shown) - 0.5)
    right.set(xlabel=f"the last {len(shown)} tokens of the text", ylabel=what, xlim=edges, ylim=(0, most))
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    return picture


@styled
def draw_usage(usage: dict[int, KeyUsage]) -> Figure:
    """Share of the read weights that fell on each slot, the most used slot first."""
    picture, ((axes,),) = figure(width=7.5, height=3.6)
    for index, (layer, slots) in enumerate(usage.items()):
        count = slots.shares.numel()
        label = f"layer {layer}: {slots.used:.1%} of {count:,} slots read, KL {slots.kl:.2f} nats"
        read = slots.shares[slots.shares > 0].sort(descending=True).values.numpy()
        every = max(1, len(read) // 16)
        axes.plot(np.arange(1, len(read) + 1), read, label=label, markevery=every, **line(index, len(usage)))
    axes.axhline(1 / count, color="0.6", linewidth=1, label="even use of all slots")
    axes.set(xlabel="slots, the most used first", ylabel="share of all read weights", xscale="log", yscale="log")
    axes.legend()
    return picture


@styled
def draw_gates(openness: np.ndarray) -> Figure:
    """Openness of the gates of each layer, over their features: the box holds the middle half of them."""
    layers = len(openness)
    picture, grid = figure(columns=2, width=4.75, height=3.2, sharey=True)
    for index, (axes, name) in enumerate(zip(grid[0], GATED, strict=True)):
        axes.boxplot(
            list(openness[:, index]), tick_labels=[str(layer + 1) for layer in range(layers)], patch_artist=True,
            boxprops={"facecolor": "0.85"}, medianprops={"color": "black"}, flierprops={"markersize": 2},
        )  # fmt: skip
        axes.set(xlabel="layer", ylim=(0, 1))
        axes.set_title(f"gate after the {name}")
    grid[0, 0].set_ylabel("openness (0 shut, 1 open)")
    return picture


@styled
def draw_ring(weights: np.ndarray) -> Figure:
    """What the satellites of a Star-Transformer read, layers x heads against their five keys."""
    layers, heads, _ = weights.shape
    names = [f"layer {layer + 1}, head {head + 1}" for layer in range(layers) for head in range(heads)]
    picture, ((axes,),) = figure(width=8.0, height=max(2.4, 1.2 + 0.26 * len(names)))
    _table(axes, weights.reshape(len(names), -1), names, list(RING), digits=2)
    axes.set_title("mean attention weight (share of 1)")
    return picture


@styled
def draw_pairs(weights: np.ndarray) -> Figure:
    """How much each layer of a Tensorized Transformer reads of each pair of distances, the sum of its heads."""
    layers, _, window, _ = weights.shape
    summed = weights.sum(1)
    shares = summed / summed.sum((1, 2), keepdims=True)
    columns = min(layers, 4)
    lines = -(-layers // columns)
    picture, grid = figure(columns, lines, width=2.9, height=2.8, sharex=True, sharey=True)
    norm = LogNorm(max(float(shares.min()), 1e-3 / window**2), float(shares.max()))
    for layer, axes in enumerate(grid.flat):
        if layer >= layers:
            axes.set_axis_off()
            continue
        image = _image(axes, shares[layer], norm=norm, origin="lower", aspect="equal")
        axes.set_title(f"layer {layer + 1}")
    for axes in grid[-1]:
        axes.set_xlabel("distance of the value (positions)")
    for axes in grid[:, 0]:
        axes.set_ylabel("distance of the key (positions)")
    picture.colorbar(image, ax=grid, label="share of all that is read")
    return picture


def _heat(axes: Axes, atlas: AttentionAtlas, scale: LogNorm) -> AxesImage:
    rows, heads, distances = atlas.mean_weight.shape
    weights = atlas.mean_weight.reshape(rows * heads, distances)
    weights = np.ma.masked_array(weights.clip(min=scale.vmin or 0.0), weights == 0)  # what is never seen stays white
    extent = (-0.5, distances - 0.5, rows * heads - 0.5, -0.5)
    image = _image(axes, weights, norm=scale, extent=extent)
    for row in range(1, rows):
        axes.axhline(row * heads - 0.5, color="black", linewidth=0.8)
    axes.set_yticks([row * heads + (heads - 1) / 2 for row in range(rows)], atlas.rows)
    return image


def _log_scale(atlases: Collection[AttentionAtlas]) -> LogNorm:
    """From a hundredth of an even share, below which there is nothing to see, to the largest mean weight."""
    floor = 0.01 / max(atlas.mean_weight.shape[-1] for atlas in atlases)
    return LogNorm(floor, max(2 * floor, *(float(atlas.mean_weight.max()) for atlas in atlases)))


def _image(axes: Axes, values: np.ndarray, **style: Any) -> AxesImage:
    axes.grid(False)
    return axes.imshow(values, **{"aspect": "auto", "interpolation": "nearest", "cmap": HEAT} | style)


def _layers(count: int) -> list[str]:
    return [f"layer {number}" for number in range(1, count + 1)]


def _table(axes: Axes, values: np.ndarray, rows: Sequence[str], columns: Sequence[str], digits: int = 1) -> None:
    """A heat map with its numbers in it, in black or white, whichever can be read."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    _image(axes, values, vmin=low, vmax=max(high, low + 1e-9))
    for (row, column), value in np.ndenumerate(values):
        is_dark = value > (low + high) / 2
        text = f"{value:.{digits}f}" if np.isfinite(value) else "-"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if is_dark else "black")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks(range(len(columns)), columns)


def _plain(label: str) -> str:
    return label.replace("$", r"\$")  # two of them would begin a formula


__all__ = [
    "draw_atlas",
    "draw_bits",
    "draw_depths",
    "draw_gates",
    "draw_heads",
    "draw_pairs",
    "draw_ring",
    "draw_spans",
    "draw_terms",
    "draw_token_maps",
    "draw_usage",
]
