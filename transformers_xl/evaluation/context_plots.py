"""Pictures of how far back models look, from what the commands write as JSON."""

from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from transformers_xl.evaluation.plots import figure, line, styled


@styled
def draw_recl(result: dict) -> Figure:
    """Left: mean loss of all measured tokens against their context. Right: the gain of a longer context, with the RECL and
    its interval. `result` is that of `transformers-xl recl --json`."""
    picture, axes = figure(columns=2, width=5.2)
    loss, gain = axes[0]
    arguments, models = result["arguments"], result["models"]
    for index, (name, row) in enumerate(models.items()):
        style = line(index, len(models))
        contexts = np.array([int(context) for context in row["nats"]])
        bits = np.array(list(row["nats"].values())) / np.log(2)
        loss.plot(contexts, bits, label=name, markevery=max(1, len(contexts) // 10), **style)
        low, high = row["interval"]
        bound = "at least " if row["is_bound"] else ""
        label = f"{name}: {bound}{row['recl']} ({low} to {high})"
        shares = 100 * np.array(list(row["gains"].values()))
        gain.plot(contexts[:-1], shares, label=label, markevery=max(1, len(contexts) // 10), **style)
        # below the curves, one line of the picture for each model
        height = -0.06 * (index + 1) * max(100 * max(each["gains"].values()) for each in models.values())
        whisker = {"color": style["color"], "marker": style["marker"], "capsize": 3, "clip_on": False}
        gain.errorbar(row["recl"], height, xerr=[[max(0, row["recl"] - low)], [max(0, high - row["recl"])]], **whisker)
    gain.axhline(100 * arguments["threshold"], color="black", linewidth=0.8, linestyle=(0, (1, 2)))
    gain.axhline(0, color="black", linewidth=0.8)
    loss.set(xlabel="context (tokens)", ylabel="loss (bits per token, axis not from 0)", title="All measured tokens")
    gain.set(xlabel="context c (tokens)", ylabel=f"gain of {arguments['delta']} more tokens (% of perplexity)")
    gain.set_title(f"The hardest {100 * arguments['r']:g} % of them, relative to the group")
    gain.set_yticks([tick for tick in gain.get_yticks() if tick >= 0])  # below zero stand the intervals
    loss.legend()
    gain.legend(title="RECL in tokens (interval)", title_fontsize="small")
    return picture


@styled
def draw_context_curve(result: dict) -> Figure:
    """Left: bits per byte against the length of memory or context. Right: for the first model, against the position in a
    segment. `result` is that of `transformers-xl context-curve --json`."""
    picture, axes = figure(columns=2, width=5.2)
    by_length, by_position = axes[0]
    models = result["models"]
    for index, (name, row) in enumerate(models.items()):
        lengths = [int(length) for length in row["bits_per_byte"]]
        kind = "memory" if row["remembers"] else "context read again"
        style = line(index, len(models))
        by_length.plot(lengths, list(row["bits_per_byte"].values()), label=f"{name} ({kind})", **style)
        if row["remembers"] and row["trained_length"] in lengths:
            place = (row["trained_length"], row["bits_per_byte"][str(row["trained_length"])])
            by_length.plot(*place, "o", markersize=11, markerfacecolor="none", color=style["color"])
    by_length.set(xlabel="memory or context before a segment (tokens)", ylabel="bits per byte (axis not from 0)")
    by_length.set_title("Rings: memory in training")
    by_length.set_xscale("symlog", linthresh=max(1, min(_lengths(models))), base=2)
    by_length.xaxis.set_major_formatter("{x:.0f}")
    by_length.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15))

    name, row = next(iter(models.items()))
    curves = row["bits_per_byte_by_position"]
    for index, (length, values) in enumerate(curves.items()):
        edges = _bins(len(values))
        means = [np.nanmean(np.array(values[start:stop], dtype=float)) for start, stop in pairwise(edges)]
        middles = [(start + stop - 1) / 2 for start, stop in pairwise(edges)]
        by_position.plot(middles, means, label=length, **line(index, len(curves)))
    by_position.set(xlabel="position in the segment (tokens before it)", ylabel="bits per byte (axis not from 0)")
    by_position.set_title(name)
    by_position.set_xscale("symlog", linthresh=1, base=2)
    by_position.xaxis.set_major_formatter("{x:.0f}")
    by_position.legend(title="memory (tokens)" if row["remembers"] else "context (tokens)", title_fontsize="small")
    return picture


@styled
def draw_distant_context(result: dict) -> Figure:
    """A panel for each model: bits that a token loses where the text further away is dropped, shuffled or replaced, with
    95 % intervals. `result` is that of `transformers-xl distant-context --json`."""
    models = result["models"]
    picture, axes = figure(columns=len(models), width=3.4, height=3.0, sharey=True)
    for panel, (name, row) in zip(axes[0], models.items(), strict=True):
        for index, (kind, added) in enumerate(row["added"].items()):
            distances = [int(distance) for distance in added]
            bits = np.array(list(added.values())) / np.log(2)
            margins = np.array(list(row["margin"][kind].values())) / np.log(2)
            beside = np.array(distances) * 1.04 ** (index - 1)  # whiskers do not hide each other
            panel.errorbar(beside, bits, yerr=margins, capsize=2, label=kind, **line(index, len(row["added"])))
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set_xscale("log", base=2)
        panel.set_xticks(distances, [str(distance) for distance in distances])
        panel.set(xlabel="nearest tokens, unchanged", title=f"{name}: {row['nats'] / np.log(2):.2f} bits per token")
    axes[0, 0].set_ylabel("loss added (bits per token)")
    axes[0, -1].legend(title="distant text", title_fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return picture


def _lengths(models: dict) -> list[int]:
    """All lengths above 0, or 1 where there are none."""
    return [int(length) for row in models.values() for length in row["bits_per_byte"] if int(length)] or [1]


def _bins(positions: int, count: int = 16) -> list[int]:
    """Edges of bins of positions: single tokens at the start, where much happens, and wider ones after."""
    return sorted({0, *(round(positions ** (step / count)) for step in range(1, count + 1))})


__all__ = ["draw_context_curve", "draw_distant_context", "draw_recl"]
