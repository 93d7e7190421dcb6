"""What a memory is worth, in one picture: bits of the test documents by how much was read in training, with and without it;
and how long the same models take to read a byte.

    python benchmarks/memory_picture.py    # of results/comparison_memory and results/bits_against_milliseconds.json

Lines are means of the seeds, with an area from the least to the most. The learning rate falls: the end of a shorter run
would be lower than a point before the last.
"""

from pathlib import Path
from typing import Any

import bits_against_milliseconds
import numpy as np
from matplotlib.axes import Axes

from transformers_xl.evaluation.plots import figure, line, save, styled
from transformers_xl.runs.comparison import ComparisonResults, read_comparison

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "results" / "comparison_memory"
PICTURE = ROOT / "docs" / "images" / "memory.png"
LABELS = {"twin": "blocks of 256, no memory", "memory": "segments of 128, memory of 128"}


@styled
def draw_curve(axes: Axes, found: ComparisonResults, labels: dict[str, str]) -> None:
    """A line for each of the models that have a label."""
    models = {model.name: model for model in found.models}
    for index, (name, label) in enumerate(labels.items()):
        model = models[name]
        settings = model.first["settings"]
        read = np.array(sorted(model.bits)) * settings["batch_size"] * settings["segment_length"] / 1e6
        bits = np.array([model.per_byte(model.bits[step]) for step in sorted(model.bits)])
        style = line(index, len(labels))
        axes.plot(read, bits.mean(1), label=f"{label}: {bits[-1].mean():.3f}", **style)
        axes.fill_between(read, bits.min(1), bits.max(1), color=style["color"], alpha=0.2, linewidth=0)
    documents = f"{len(found.reference.num_bytes)} modules, {found.seeds} seeds"
    axes.set(
        xlabel="million bytes read in training", ylabel="bits per byte", title=f"After equal training: {documents}"
    )
    axes.legend()


@styled
def draw_cost(axes: Axes, result: dict[str, Any]) -> None:
    """Milliseconds a byte by the bytes that are predicted at a time, and the range of the bits."""
    for index, (name, steps) in enumerate(result["models"].items()):
        bits = sorted({f"{row['bits']:.2f}" for row in steps.values()})
        label = f"{result['labels'][name]}: {' to '.join(bits)} bits per byte"
        times = [row["milliseconds"] for row in steps.values()]
        axes.plot([int(step) for step in steps], times, label=label, **line(index, len(result["models"])))
    ticks = [int(step) for step in next(iter(result["models"].values()))]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_yscale("log")
    axes.set(xlabel="bytes that are predicted at a time", ylabel="milliseconds of the processor a byte")
    axes.set_title("The time of reading")
    axes.legend()


def main() -> None:
    picture, ((curve, cost),) = figure(columns=2, width=5.0)
    draw_curve(curve, read_comparison(FOLDER), LABELS)
    draw_cost(cost, bits_against_milliseconds.read())
    save(picture, PICTURE)


if __name__ == "__main__":
    main()
