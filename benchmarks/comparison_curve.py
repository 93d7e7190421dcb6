"""What models of a comparison cost on the test documents, by how much they have read: the mean of their seeds, and from the
least to the most.

    python benchmarks/comparison_curve.py benchmarks/results/comparison_memory docs/images/memory_curve.png \\
        --title "..." memory="with a memory of 128" twin="without: blocks of 256"

The points are those of the plan. Where the learning rate falls, the end of a shorter training would be lower than a point
before the last.
"""

import argparse
from pathlib import Path

import numpy as np

from transformers_xl.evaluation.plots import figure, line, save
from transformers_xl.runs.comparison import ComparisonResults, read_comparison


def draw(found: ComparisonResults, labels: dict[str, str], title: str, path: Path) -> None:
    """A line for each of the models that have a label."""
    picture, ((axes,),) = figure(width=6.5)
    models = {model.name: model for model in found.models}
    for index, (name, label) in enumerate(labels.items()):
        model = models[name]
        settings = model.first["settings"]
        read = np.array(sorted(model.bits)) * settings["batch_size"] * settings["segment_length"] / 1e6
        bits = np.array([model.per_byte(model.bits[step]) for step in sorted(model.bits)])
        style = line(index, len(labels))
        axes.plot(read, bits.mean(1), label=f"{label}: {bits[-1].mean():.2f}", **style)
        axes.fill_between(read, bits.min(1), bits.max(1), color=style["color"], alpha=0.2, linewidth=0)
    axes.set(xlabel="million bytes read in training", ylabel="bits per byte", title=title)
    axes.legend(title=f"{len(found.reference.num_bytes)} documents, {found.seeds} seeds")
    save(picture, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what `transformers-xl compare` wrote")
    parser.add_argument("picture", type=Path, help="file to write")
    parser.add_argument("labels", nargs="+", help="NAME=LABEL of each model that is drawn")
    parser.add_argument("--title", default="")
    args = parser.parse_args()
    labels = dict(each.split("=", 1) for each in args.labels)
    draw(read_comparison(args.folder), labels, args.title, args.picture)


if __name__ == "__main__":
    main()
