"""Real names at a distance: what a name that training never had costs when it is used for the second time, by how far
back it was used first.

    python benchmarks/real_names.py --twin library-without library-model library-model-512
    python benchmarks/real_names.py    # draw what the JSON holds

Models are folders that `transformers-xl train` or the quickstart wrote, trained on the split of Python's library
(examples/library_corpus.py); `--twin` is one that was trained without memory. Names are identifiers of four letters or more
in the 40 modules of the test that stand nowhere in the training text, not within another name either: a model knows them
from the module alone. Scored are the bytes of the second use. The distance is that of the beginnings of both uses.

A model is read as it was trained. What it saves is the twin's bits less its own, a byte of a name; intervals (95 %) are
of a bootstrap over modules, and not over seeds.
"""

import argparse
import json
import math
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from transformers_xl.evaluation.document_losses import document_losses
from transformers_xl.evaluation.plots import figure, line, save
from transformers_xl.files.atomic_write import atomic_write
from transformers_xl.files.processor import processor
from transformers_xl.hub.measurements import library_versions
from transformers_xl.runs.comparison_statistics import interval
from transformers_xl.runs.loading import load_model

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "examples"))
from library_corpus import library_split  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "real_names.json"
NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{3,}")
EDGES = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]  # bytes
FEWEST = 5  # modules, for an interval over them


class Use(NamedTuple):
    """The second use of a name in a module: where it begins, its bytes, and how far before it the first use begins."""

    start: int
    length: int
    distance: int


def second_uses(module: bytes, training: bytes) -> list[Use]:
    """Those of all names of a module that the training text does not have, in their order."""
    first: dict[bytes, int] = {}
    done, uses = set(), []
    for match in NAME.finditer(module):
        name = match[0]
        if name not in first:
            first[name] = match.start()
        elif name not in done:
            done.add(name)
            uses.append(Use(match.start(), len(name), match.start() - first[name]))
    return [use for use in uses if module[use.start : use.start + use.length] not in training]


def name_bits(losses: list[np.ndarray], uses: list[list[Use]]) -> dict[str, list[list[float]]]:
    """For each pair of edges, of each module that has such names, the bits of their bytes and how many these are."""
    found = {}
    for low, high in pairwise(EDGES):
        rows = []
        for nats, own in zip(losses, uses, strict=True):
            near = [use for use in own if low <= use.distance < high]
            bits = sum(float(nats[use.start : use.start + use.length].sum()) for use in near) / math.log(2)
            rows.append([round(bits, 3), sum(use.length for use in near)])
        found[f"{low}-{high}"] = rows
    return found


def measure(folder: Path, documents: list[bytes], uses: list[list[Use]], lanes: int) -> dict[str, Any]:
    """The names' bits by a model in a folder, and the bits per byte of all the text.

    Raises:
        ValueError: the folder holds no byte model.
    """
    model, tokenizer = load_model(folder)
    if not hasattr(tokenizer, "encode_bytes"):
        raise ValueError(f"{str(folder)!r}: names are scored byte by byte; give a model of bytes.")
    ids = [np.array(tokenizer.encode_bytes(document)) for document in documents]
    losses = document_losses(model, ids, lanes=min(lanes, len(ids)), progress=True)
    total = sum(float(np.nansum(nats)) for nats in losses) / math.log(2)
    return {
        "mem_len": getattr(model.config, "mem_len", None),
        "parameters": model.num_parameters(),
        "bits_per_byte": round(total / sum(len(nats) - 1 for nats in losses), 4),
        "names": name_bits(losses, uses),
    }


def saved(result: dict[str, Any], model: str) -> list[tuple[str, int, Any]]:
    """For each distance with names in `FEWEST` modules or more: the distance, how many modules, and the bits a byte that a
    model saves against the twin, with their interval."""
    rows = []
    for distance, own in result["models"][model]["names"].items():
        twin = np.array(result["models"][result["twin"]]["names"][distance])
        values, counts = np.array(own)[:, 0], twin[:, 1]
        there = counts > 0
        if there.sum() >= FEWEST:
            gain = twin[there, 0] - values[there]
            rows.append((distance, int(there.sum()), interval([gain[None]], counts[there])))
    return rows


def draw(result: dict[str, Any]) -> None:
    picture, ((axes,),) = figure(width=7)
    others = [name for name in result["models"] if name != result["twin"]]
    places = {f"{low}-{high}": index for index, (low, high) in enumerate(pairwise(EDGES))}
    for index, name in enumerate(others):
        rows = saved(result, name)
        shift = 0.12 * (index - (len(others) - 1) / 2)
        means = np.array([found.mean for *_, found in rows])
        margins = [means - [found.low for *_, found in rows], [found.high for *_, found in rows] - means]
        where = [places[distance] + shift for distance, *_ in rows]
        label = f"{name}: memory of {result['models'][name]['mem_len']}"
        axes.errorbar(where, means, yerr=margins, label=label, capsize=3, **line(index, len(others)))
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(places)), [distance.replace("-", " to\n") for distance in places])
    axes.set(xlabel="bytes back to the first use", ylabel=f"bits a byte of a name, saved against {result['twin']}")
    axes.set_title("New names at their second use (intervals over modules)")
    axes.legend()
    save(picture, RESULT.with_suffix(".png"))


def report(result: dict[str, Any]) -> None:
    for name in result["models"]:
        print(f"{name}: {result['models'][name]['bits_per_byte']} bits per byte of all the text")
        for distance, modules, found in saved(result, name) if name != result["twin"] else ():
            print(f"  {distance:>10}, {modules:2} modules: {found} bits a byte saved")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*", help="folders of models with memory")
    parser.add_argument("--twin", type=Path, help="the folder of a model that was trained without memory")
    parser.add_argument("--modules", type=int, help="only so many of the test, to try it: writes no result")
    parser.add_argument("--lanes", type=int, default=20, help="modules that are read side by side")
    args = parser.parse_args()
    if not args.models:
        if not RESULT.exists():
            parser.error(f"there is no {RESULT} to draw: give folders of models, and --twin.")
        result = json.loads(RESULT.read_text(encoding="utf-8"))
        report(result)
        draw(result)
        return
    if args.twin is None:
        parser.error("`--twin` is missing: the folder of a model without memory, which the others are compared with.")
    split = library_split()
    training, documents = b"".join(split.training.values()), [*split.test.values()][: args.modules]
    uses = [second_uses(document, training) for document in documents]
    result = {
        "machine": library_versions() | {"processor": str(processor()), "threads": str(torch.get_num_threads())},
        "modules": [*split.test][: args.modules],
        "uses": {
            f"{low}-{high}": sum(low <= use.distance < high for own in uses for use in own)
            for low, high in pairwise(EDGES)
        },
        "twin": args.twin.name,
        "models": {folder.name: measure(folder, documents, uses, args.lanes) for folder in (args.twin, *args.models)},
    }
    print(f"names by distance: {result['uses']}")
    report(result)
    if args.modules is None:
        with atomic_write(RESULT) as new:
            Path(new).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        draw(result)


if __name__ == "__main__":
    main()
