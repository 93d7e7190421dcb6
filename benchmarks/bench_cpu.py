"""What settings of a processor are worth here: products by MKL and by oneDNN, whole steps with and without settings.

    python benchmarks/bench_cpu.py --threads 1 2        # some 15 minutes on a quiet machine

Single products alternate between both libraries in one process; whole steps run as in `bench_peers.py`. With `--before`, a
checkout of another version takes part. Writes `results/cpu.json` and prints the tables of docs/performance.md.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench_peers import RESULTS, ROOT, Row, measure
from torch.nn import functional

from transformers_xl.files.processor import processor
from transformers_xl.runs import onednn_linear

# rows, inputs, outputs: one token, sixteen of them, a segment, a batch of segments
SHAPES = [
    (rows, *widths) for rows in (1, 16, 128, 1024) for widths in ((256, 256), (256, 1024), (1024, 256), (512, 2048))
]
FORMS = {"ours_before": "before", "ours_plain": "plain", "ours_torch": "memory kept", "ours_onednn": "and oneDNN"}


def rows_of(forms: list[str]) -> list[Row]:
    return [
        Row("train", "small", 128, 8, 128, peers=forms),
        Row("train", "big", 256, 2, 256, peers=forms),
        Row("evaluate", "small", 512, 1, 128, peers=forms),
        Row("generate", "small", 128, 1, 128, peers=forms),
        Row("generate", "small", 512, 1, 128, peers=forms),
        Row("generate", "big", 512, 1, 128, peers=forms, new_tokens=32),
    ]


def seconds(function: Callable, sets: list[tuple], times: int) -> float:
    """Processor time of one call; the operands change from call to call: weights come from memory, as in a model."""
    start = time.process_time()
    for index in range(times):
        function(*sets[index % len(sets)])
    return (time.process_time() - start) / times


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
            for name, function in (("mkl", functional.linear), ("onednn", onednn_linear.linear)):
                if kind == "both":
                    taken[name].append(seconds(learned(function), sets, times))
                    continue
                with torch.no_grad():
                    taken[name].append(seconds(function, [each[:3] for each in sets], times))
        result[kind] = {name: 1e6 * statistics.median(values) for name, values in taken.items()}
    return result


def product_table(products: list[dict]) -> str:
    lines = [
        "| rows x inputs x outputs | forward, us: MKL, oneDNN | with gradients, us: MKL, oneDNN |",
        "|---|---:|---:|",
    ]
    for row in products:
        cells = [f"{row[kind]['mkl']:.0f}, {row[kind]['onednn']:.0f}" for kind in ("forward", "both")]
        lines.append(f"| {row['rows']} x {row['inputs']} x {row['outputs']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def step_table(steps: list[dict], forms: list[str]) -> str:
    """Processor time of a step, or of a token."""
    lines = ["| step: size, memory, batch | " + " | ".join(FORMS[name] for name in forms) + " |"]
    lines.append("|---|" + "---:|" * len(forms))
    for row in steps:
        per = row["new_tokens"] if row["kind"] == "generate" else 1
        cells = [f"{1000 * row['peers'][name]['cpu'] / per:.3g} ms" for name in forms]
        lines.append(f"| {row['kind']}: {row['size']}, {row['memory']}, {row['batch']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--before", type=Path, help="folder of another version, as `git worktree add` makes one")
    parser.add_argument("--output", type=Path, default=RESULTS / "cpu.json")
    args = parser.parse_args()
    onednn_linear.LARGE_WEIGHT = 1  # also where it does not pay
    forms = [name for name in FORMS if args.before or name != "ours_before"]
    result = {"torch": torch.__version__, "processor": str(processor()), "rounds": args.rounds, "runs": []}
    for threads in args.threads:
        torch.set_num_threads(threads)
        products = [product_times(*shape, args.rounds) for shape in SHAPES]
        steps = [measure(row, args.rounds, threads, False, args.before or ROOT) for row in rows_of(forms)]
        result["runs"].append({"threads": threads, "products": products, "steps": steps})
        args.output.write_text(json.dumps(result, indent=2) + "\n")
        print(f"{threads} threads\n\n{product_table(products)}\n\n{step_table(steps, forms)}\n", flush=True)


if __name__ == "__main__":
    main()
