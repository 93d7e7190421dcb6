"""Real names at a distance: what a name that training never had costs when it is used for the second time, by how far
back it was used first.

    transformers-xl compare benchmarks/comparison_memory.yaml --keep-models -o benchmarks/results/comparison_memory
    python benchmarks/real_names.py benchmarks/results/comparison_memory/models --twin twin
    python benchmarks/real_names.py    # draw what the JSON holds
    transformers-xl compare benchmarks/names_retrieved.yaml --keep-models -o benchmarks/results/names_retrieved
    python benchmarks/real_names.py benchmarks/results/names_retrieved/models --twin near \
        -o benchmarks/results/real_names_retrieved.json
    transformers-xl compare benchmarks/names_compressed.yaml --keep-models -o benchmarks/results/names_compressed
    python benchmarks/real_names.py benchmarks/results/names_compressed/models --twin near \
        -o benchmarks/results/real_names_compressed.json

The folder is that of the models which a comparison on the split of Python's library (examples/library_corpus.py) kept, each
from one seed or several; `--twin` names the one that the others are held against, such as one without memory. Names are
identifiers of four letters or more in the 40 modules of the test that stand nowhere in the training text, not within
another name either: a model knows them from the module alone. Scored are the bytes of the second use. The distance is that
of the beginnings of both uses.

A model with memory reads as it was trained. One without reads a window for each name, as long as its segments, which ends
with the name. What a model saves is the twin's bits less its own, a byte of a name; intervals (95 %) are of a bootstrap
over modules and seeds.
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
from transformers import PreTrainedModel

from transformers_xl.evaluation.document_losses import document_losses
from transformers_xl.evaluation.plots import figure, line, save
from transformers_xl.evaluation.token_losses import losses_of_targets
from transformers_xl.files.atomic_write import atomic_write
from transformers_xl.files.processor import processor
from transformers_xl.hub.measurements import library_versions
from transformers_xl.modeling.evaluating import evaluating
from transformers_xl.runs.comparison_statistics import interval
from transformers_xl.runs.loading import load_model

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "examples"))
from library_corpus import library_split  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "real_names.json"
PICTURE = ROOT / "docs" / "images" / "real_names.png"
NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{3,}")
EDGES = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]  # bytes
FEWEST = 5  # modules, for an interval over them
ROWS = 16  # windows that are read side by side


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


def byte_losses(model: PreTrainedModel, documents: list[np.ndarray], uses: list[list[Use]], lanes: int) -> list[Any]:
    """Nats of each byte of each document `(bytes,)`: with memory, or, in a model without, those of each use in a window of
    its own, as long as a segment, which ends with it."""
    losses = document_losses(model, documents, lanes=min(lanes, len(documents)), progress=True)
    length = model.config.segment_length
    if model.config.mem_len:
        return losses
    for ids, nats, own in zip(documents, losses, uses, strict=True):
        behind = [use for use in own if use.start + use.length > length + 1]  # the others are in the first segment
        for first in range(0, len(behind), ROWS):
            rows = behind[first : first + ROWS]
            windows = torch.stack([torch.as_tensor(ids[: use.start + use.length][-length - 1 :]) for use in rows])
            with evaluating(model), torch.inference_mode():
                found, _ = losses_of_targets(model, windows[:, :-1], windows[:, 1:], use_cache=False)
            for use, window in zip(rows, found.double().numpy(), strict=True):
                nats[use.start : use.start + use.length] = window[-use.length :]
    return losses


def measure(folder: Path, documents: list[bytes], uses: list[list[Use]], lanes: int) -> dict[str, Any]:
    """The names' bits by a model in a folder.

    Raises:
        ValueError: the folder holds no byte model.
    """
    print(folder, flush=True)
    model, tokenizer = load_model(folder)
    if not hasattr(tokenizer, "encode_bytes"):
        raise ValueError(f"{str(folder)!r}: names are scored byte by byte; give a model of bytes.")
    ids = [np.array(tokenizer.encode_bytes(document)) for document in documents]
    return {
        "mem_len": model.config.mem_len,
        "segment_length": model.config.segment_length,
        "parameters": model.num_parameters(),
        "names": name_bits(byte_losses(model, ids, uses, lanes), uses),
    }


def by_name(folder: Path) -> dict[str, list[Path]]:
    """The folders of the seeds of each model, NAME-SEED."""
    found: dict[str, list[Path]] = {}
    for each in sorted(folder.iterdir()):
        found.setdefault(each.name.rpartition("-")[0], []).append(each)
    return found


def saved(models: dict[str, list[dict[str, Any]]], twin: str, model: str) -> dict[str, dict[str, Any]]:
    """For each distance with names in `FEWEST` modules or more: how many modules, how many bytes, and the bits a byte that
    a model saves against the twin, with their interval."""
    found = {}
    for distance, first in models[twin][0]["names"].items():
        counts = np.array(first)[:, 1]
        there = counts > 0
        if there.sum() < FEWEST:
            continue
        bits = {
            name: np.array([seed["names"][distance] for seed in models[name]])[:, there, 0] for name in (twin, model)
        }
        gain = interval([bits[twin], -bits[model]], counts[there])
        found[distance] = {"modules": int(there.sum()), "bytes": int(counts.sum())} | {
            name: round(getattr(gain, name), 4) for name in ("mean", "low", "high")
        }
    return found


def draw(result: dict[str, Any]) -> None:
    picture, ((axes,),) = figure(width=7)
    places = {f"{low}-{high}": index for index, (low, high) in enumerate(pairwise(EDGES))}
    for index, (name, rows) in enumerate(result["saved"].items()):
        shift = 0.12 * (index - (len(result["saved"]) - 1) / 2)
        means, low, high = (np.array([row[each] for row in rows.values()]) for each in ("mean", "low", "high"))
        first, seeds = result["models"][name][0], len(result["models"][name])
        label = f"memory of {first['mem_len']}, {seeds} seed{'s' if seeds > 1 else ''}"
        where = [places[distance] + shift for distance in rows]
        axes.errorbar(where, means, yerr=[means - low, high - means], label=label, capsize=3, **line(index, 2))
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(places)), [distance.replace("-", " to\n") for distance in places])
    window = result["models"][result["twin"]][0]["segment_length"]
    axes.set(xlabel="bytes back to the first use", ylabel="bits a byte of a name")
    axes.set_title(f"New names at their second use: saved against windows of {window}, no memory")
    axes.legend()
    save(picture, PICTURE)


def report(result: dict[str, Any]) -> None:
    for name, rows in result["saved"].items():
        print(name)
        for distance, row in rows.items():
            print(
                f"  {distance:>10}, {row['modules']:2} modules: {row['mean']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="?", help="the folder of models that a comparison kept")
    parser.add_argument("--twin", help="name of the model that the others are held against")
    parser.add_argument("--modules", type=int, help="only so many of the test, to try it: writes no result")
    parser.add_argument(
        "-o", "--output", type=Path, default=RESULT, help="another file of results, which is not drawn"
    )
    parser.add_argument("--lanes", type=int, default=20, help="modules that are read side by side")
    args = parser.parse_args()
    if args.models is None:
        if not RESULT.exists():
            parser.error(f"there is no {RESULT} to draw: give the folder of models, and --twin.")
        result = json.loads(RESULT.read_text(encoding="utf-8"))
        report(result)
        draw(result)
        return
    folders = by_name(args.models)
    if args.twin not in folders:
        parser.error(f"`--twin`={args.twin}: name the model to hold against, one of {', '.join(folders)}.")
    split = library_split()
    training, documents = b"".join(split.training.values()), [*split.test.values()][: args.modules]
    uses = [second_uses(document, training) for document in documents]
    models = {name: [measure(each, documents, uses, args.lanes) for each in own] for name, own in folders.items()}
    result = {
        "machine": library_versions() | {"processor": str(processor()), "threads": str(torch.get_num_threads())},
        "modules": [*split.test][: args.modules],
        "uses": {
            f"{low}-{high}": sum(low <= use.distance < high for own in uses for use in own)
            for low, high in pairwise(EDGES)
        },
        "twin": args.twin,
        "saved": {name: saved(models, args.twin, name) for name in models if name != args.twin},
        "models": models,
    }
    report(result)
    if args.modules is None:
        with atomic_write(args.output) as new:
            Path(new).write_text(json.dumps(result) + "\n", encoding="utf-8")
        if args.output == RESULT:
            draw(result)


if __name__ == "__main__":
    main()
