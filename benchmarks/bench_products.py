"""What oneDNN and kept pages are worth on this machine: single products, and whole steps with one of the two switched off.

    python benchmarks/bench_products.py                 # some 5 minutes on 2 cores

Single products alternate between both libraries in one process; whole steps run as in `bench_peers.py`. Writes
`results/products.json` and prints both tables.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench_peers import RESULTS, Row, measure
from torch.nn import functional

from transformers_xl.modeling.ops import products

# rows, inputs, outputs: one token, sixteen of them, a segment, a batch of segments
SHAPES = [
    (rows, *widths) for rows in (1, 16, 128, 1024) for widths in ((256, 256), (256, 1024), (1024, 256), (512, 2048))
]
FORMS = ["ours_by_mkl", "ours_fresh_pages", "ours"]
ROWS = [
    Row("train", "small", 128, 8, 128, peers=FORMS),
    Row("train", "big", 256, 2, 256, peers=FORMS),
    Row("evaluate", "small", 512, 1, 128, peers=FORMS),
    Row("generate", "small", 512, 1, 128, peers=FORMS),
    Row("generate", "big", 512, 1, 128, peers=FORMS, new_tokens=32),
]


def seconds(function: Callable, sets: list[tuple], times: int) -> float:
    """Of one call; the operands change from call to call, so that weights come from memory, as in a model."""
    start = time.perf_counter()
    for index in range(times):
        function(*sets[index % len(sets)])
    return (time.perf_counter() - start) / times


def learned(function: Callable) -> Callable:
    """Forward and backward."""

    def both(states, weight, bias, direction):
        torch.autograd.grad(function(states, weight, bias), (states, weight, bias), direction)

    return both


def product_times(rows: int, inputs: int, outputs: int, rounds: int) -> dict:
    """Median microseconds by MKL and by oneDNN, forward alone and with the gradients of everything."""
    count = max(2, 2**22 // (inputs * outputs))
    sizes = [(rows, inputs), (outputs, inputs), (outputs,), (rows, outputs)]
    sets = [tuple(torch.randn(size, requires_grad=i < 3) for i, size in enumerate(sizes)) for _ in range(count)]
    times = max(count, min(200, 10**9 // (rows * inputs * outputs)))
    result = {"rows": rows, "inputs": inputs, "outputs": outputs}
    for kind in ("forward", "both"):
        taken: dict[str, list[float]] = {"mkl": [], "onednn": []}
        for _ in range(rounds):
            for name, function in (("mkl", functional.linear), ("onednn", products.linear)):
                if kind == "both":
                    taken[name].append(seconds(learned(function), sets, times))
                    continue
                with torch.no_grad():
                    taken[name].append(seconds(function, [each[:3] for each in sets], times))
        result[kind] = {name: 1e6 * statistics.median(values) for name, values in taken.items()}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS / "products.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    products.LARGE_WEIGHT = 1  # also where it does not pay
    single = [product_times(*shape, args.rounds) for shape in SHAPES]
    print("| rows x inputs x outputs | forward, us: MKL, oneDNN | with gradients, us: MKL, oneDNN |\n|---|---:|---:|")
    for row in single:
        cells = [f"{row[kind]['mkl']:.0f}, {row[kind]['onednn']:.0f}" for kind in ("forward", "both")]
        print(f"| {row['rows']} x {row['inputs']} x {row['outputs']} | " + " | ".join(cells) + " |")
    steps = [measure(row, args.rounds, args.threads, keep_pages=False) for row in ROWS]
    print("\n| step: size, memory, batch | products by MKL | fresh pages | transformers-xl |\n|---|---:|---:|---:|")
    for row in steps:
        per = row["new_tokens"] if row["kind"] == "generate" else 1
        cells = [f"{1000 * row['peers'][name]['wall'] / per:.3g} ms" for name in FORMS]
        print(f"| {row['kind']}: {row['size']}, {row['memory']}, {row['batch']} | " + " | ".join(cells) + " |")
    machine = {"processor": platform.processor(), "system": platform.platform(), "threads": args.threads}
    result = {"torch": torch.__version__, "machine": machine, "products": single, "steps": steps}
    args.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
