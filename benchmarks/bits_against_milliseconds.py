"""Bits against milliseconds: a memory, and windows that are read again, at the same cost.

    MODELS=benchmarks/results/comparison_memory/models    # of `compare benchmarks/comparison_memory.yaml --keep-models`
    OMP_NUM_THREADS=1 python benchmarks/bits_against_milliseconds.py --windows $MODELS/twin-0 $MODELS/memory-0
    python benchmarks/bits_against_milliseconds.py    # draw what the JSON holds

Models are folders of byte models, trained on the split of Python's library (examples/library_corpus.py). That of
`--windows` was trained without a memory: it reads windows as long as its segments, which move on by 1 to 256 bytes, and
predicts the new ones. The others read segments of 1 to 256 bytes with their memory. All predict the beginnings of the same
modules of the test, as many rows side by side. Milliseconds are of the processor, a byte; the ways take turns, and the
median of the turns counts.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from transformers_xl.evaluation.context_curve import score_windows
from transformers_xl.evaluation.document_losses import document_losses
from transformers_xl.evaluation.plots import figure, line, save
from transformers_xl.files.atomic_write import atomic_write
from transformers_xl.files.processor import processor
from transformers_xl.hub.measurements import library_versions
from transformers_xl.runs.loading import load_model

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "examples"))
from library_corpus import library_split  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "bits_against_milliseconds.json"
STEPS = [1, 2, 4, 8, 16, 32, 64, 128, 256]  # bytes that are predicted at a time


def windows_nats(model: PreTrainedModel, documents: list[np.ndarray], rows: int, step: int) -> float:
    """Of all documents, by windows as long as a segment, of which the last `step` bytes are predicted."""
    context = max(0, model.config.segment_length - step)
    return sum(score_windows(model, ids, context, step, rows).nats for ids in documents)


def memory_nats(model: PreTrainedModel, documents: list[np.ndarray], rows: int, step: int) -> float:
    """Of all documents, in segments of `step` bytes with memory."""
    losses = document_losses(model, documents, step, lanes=min(rows, len(documents)))
    return sum(float(np.nansum(nats)) for nats in losses)


def measure(
    ways: dict[str, Callable[[int], float]], steps: list[int], turns: int, size: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Bits per byte and milliseconds a byte of each way at each step."""
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in ways}
    for step in steps:
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        nats = {}
        for _ in range(turns):
            for name, way in ways.items():
                start = time.process_time()
                nats[name] = way(step)
                seconds[name].append(time.process_time() - start)
        for name in ways:
            bits = nats[name] / math.log(2) / size
            milliseconds = 1000 * statistics.median(seconds[name]) / size
            found[name][str(step)] = {"bits": round(bits, 4), "milliseconds": round(milliseconds, 4)}
            print(f"{name}, {step} at a time: {bits:.3f} bits, {milliseconds:.3f} ms a byte", flush=True)
    return found


def read() -> dict[str, Any]:
    """What was measured."""
    return json.loads(RESULT.read_text(encoding="utf-8"))


def draw(result: dict[str, Any]) -> None:
    """A line for each way, whose points are numbered with the bytes that are predicted at a time."""
    picture, ((axes,),) = figure(width=6.5)
    for index, (name, steps) in enumerate(result["models"].items()):
        points = [(row["milliseconds"], row["bits"]) for row in steps.values()]
        axes.plot(*zip(*points, strict=True), label=result["labels"][name], **line(index, len(result["models"])))
        labelled = 1e-9  # milliseconds of the last point with a number: none yet
        for step, point in zip(steps, points, strict=True):  # above the first line, below the second
            if abs(math.log(point[0] / labelled)) > 0.2:  # not over one another
                axes.annotate(step, point, xytext=(0, -10 if index else 5), textcoords="offset points", fontsize=7)
                labelled = point[0]
    axes.set_xscale("log")
    axes.set(xlabel="milliseconds of the processor a byte", ylabel="bits per byte (axis not from 0)")
    axes.set_title("Numbers: bytes that are predicted at a time")
    axes.legend()
    save(picture, RESULT.with_suffix(".png"))


def load(folder: Path, texts: list[bytes], is_window: bool) -> tuple[PreTrainedModel, list[np.ndarray]]:
    """A byte model, and what it reads of texts; `is_window`: one without memory.

    Raises:
        ValueError: it has other tokens than bytes, or a memory where it should have none, or the other way round.
    """
    model, tokenizer = load_model(folder)
    if not hasattr(tokenizer, "encode_bytes"):
        raise ValueError(f"{str(folder)!r}: give a model of bytes.")
    if bool(model.config.mem_len) == is_window:
        raise ValueError(
            f"{str(folder)!r} has `mem_len`={model.config.mem_len}: --windows takes a model without memory, the others "
            "have one."
        )
    return model, [np.array(tokenizer.encode_bytes(text)) for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*", help="folders of models with memory")
    parser.add_argument("--windows", type=Path, help="the folder of a model without memory")
    parser.add_argument("--bytes", type=int, default=2048, help="the beginning of each module that is read")
    parser.add_argument("--modules", type=int, default=16)
    parser.add_argument("--rows", type=int, default=16, help="windows or modules that are read side by side")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, nargs="*", default=STEPS)
    parser.add_argument("--try", dest="is_trial", action="store_true", help="write no result")
    args = parser.parse_args()
    if not args.models or args.windows is None:
        if args.models or args.windows or not RESULT.exists():
            parser.error("give --windows and a folder with memory; without either, the result that is there is drawn.")
        draw(read())
        return
    # spread over the test
    modules = [*library_split().test.items()]
    modules = [modules[index * len(modules) // args.modules] for index in range(args.modules)]
    texts = [text[: args.bytes] for _, text in modules]
    ways: dict[str, Callable[[int], float]] = {}
    labels = {}
    for folder in (args.windows, *args.models):
        is_window = folder == args.windows
        model, documents = load(folder, texts, is_window)
        ways[folder.name] = partial(windows_nats if is_window else memory_nats, model, documents, args.rows)
        length = model.config.segment_length if is_window else model.config.mem_len
        labels[folder.name] = f"{'windows' if is_window else 'a memory'} of {length}"
    size = sum(len(text) - 1 for text in texts)
    found = measure(ways, args.steps, args.turns, size)
    if not args.is_trial:
        machine = library_versions() | {"processor": str(processor()), "threads": str(torch.get_num_threads())}
        text = {
            "modules": [name for name, _ in modules],
            "bytes": args.bytes,
            "side_by_side": args.rows,
            "turns": args.turns,
        }
        with atomic_write(RESULT) as new:
            Path(new).write_text(
                json.dumps({"machine": machine, **text, "labels": labels, "models": found}, indent=1) + "\n",
                encoding="utf-8",
            )
        draw(read())


if __name__ == "__main__":
    main()
