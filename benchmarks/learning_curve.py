"""The learning curve of a model that `transformers-xl train` wrote, as JSON and as a picture.

    python benchmarks/learning_curve.py library-model
    python benchmarks/learning_curve.py    # draw what the JSON holds, beside the scores of the same model without memory

The figures are those of its training_metrics.json: bits of the training text at every logged step, the mean since the
one before, and of the held-out text at every evaluation.
"""

import argparse
import json
import math
from pathlib import Path

from transformers_xl.evaluation.plots import figure, line, save

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "library_run.json"
TWINS = RESULT.with_name("library_without_memory.json")
TEST = 2  # which evaluation is that of the test text, with memory
PICTURE = ROOT / "docs" / "images" / "library_run.png"
KEPT = ("variant", "parameters", "versions", "training", "evaluations")


def curve_of(folder: Path) -> dict:
    """What the folder says of its training, with losses in bits per token."""
    measured = json.loads((folder / "training_metrics.json").read_text(encoding="utf-8"))
    training, held_out = (
        [[row["step"], row[name] / math.log(2)] for row in measured["log"] if name in row]
        for name in ("loss", "eval_loss")
    )
    return {name: measured[name] for name in KEPT} | {"training_bits": training, "held_out_bits": held_out}


def twins() -> dict[str, float]:
    """Bits per byte of the test text, of the same model that was trained without memory, by the way to read it."""
    (first, *_) = json.loads(TWINS.read_text(encoding="utf-8")).values()
    return {f"without, {way}": bits["test, 200,000 bytes"] for way, bits in first["bits_per_byte"].items()}


def draw(curve: dict) -> None:
    picture, ((axes,),) = figure(width=6.5)
    axes.plot(*zip(*curve["training_bits"], strict=True), label="training text", **line(0, 4) | {"marker": None})
    last = curve["evaluations"][TEST]["bits_per_byte"]
    scores = {"test text: with a memory of 128": last} | twins()
    for index, (label, bits) in enumerate(scores.items(), start=1):
        axes.plot(
            [curve["training"]["steps"]], [bits], label=f"{label}, {bits:.2f}", **line(index, 4) | {"linestyle": ""}
        )
    axes.set(xlabel="training step", ylabel="bits per byte (log scale)", yscale="log")
    axes.set_title("A byte model of Python's library, one seed")
    axes.set_yticks([1, 1.5, 2, 3, 4, 6], ["1", "1.5", "2", "3", "4", "6"])
    axes.minorticks_off()
    axes.legend()
    save(picture, PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    folder = parser.parse_args().folder
    if folder is not None:
        RESULT.write_text(json.dumps(curve_of(folder), indent=1) + "\n", encoding="utf-8")
    draw(json.loads(RESULT.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
