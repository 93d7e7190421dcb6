"""A checkpoint of the shape of transfo-xl-wt103 (267,735 words, 18 layers, 1.1 GB), beside transformers 4.35.2.

transformers 4.35.2 writes random weights in its own environment (that of `bench_peers.py`). Then each side loads the same
folder in a process of its own, scores a segment of 128 tokens with a memory of 1600, and generates 20 tokens; in turns.
Outputs must be equal to 1e-4 before anything is written to `results/full_size.json`.

    python benchmarks/bench_full_size.py --rounds 3
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from bench_peers import interpreter  # noqa: E402  a script beside this one

SIDES = {"TransfoXL of transformers 4.35": "old", "transformers-xl": "ours"}
MEASURED = ("load_seconds", "score_tokens_per_second", "generate_tokens_per_second", "peak_anonymous_bytes")


def call(side: str, threads: int, *arguments: str) -> str:
    path = str(HERE.parent) if side == "ours" else ""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    command = [interpreter(side), "-W", "ignore", str(HERE / "peers" / "full_size.py"), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    args = parser.parse_args()
    runs: dict[str, list[dict]] = {side: [] for side in SIDES.values()}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = f"{folder}/checkpoint"
        call("old", args.threads, "make", checkpoint)
        weights = Path(checkpoint, "pytorch_model.bin").stat().st_size
        for side in runs:
            call(side, args.threads, "predict", checkpoint, f"{folder}/{side}.pt")
        old, ours = (torch.load(f"{folder}/{side}.pt", weights_only=True) for side in runs)
        difference = (old - ours.view_as(old)).abs().max().item()
        for _ in range(args.rounds):
            for side in runs:
                answer = call(side, args.threads, "run", checkpoint, f"{folder}/{side}.pt")
                runs[side].append(json.loads(answer.splitlines()[-1]))
        old, ours = (torch.load(f"{folder}/{side}.pt", weights_only=True) for side in runs)
    losses = [runs[side][0]["nats"] for side in runs]
    if difference > 1e-4 or not torch.equal(old, ours) or abs(losses[0] - losses[1]) > 1e-4:
        raise SystemExit(f"they differ: log-probabilities by {difference}, losses {losses}, tokens {old} and {ours}")
    sides = {
        side: {name: statistics.median(run[name] for run in of) for name in MEASURED} | {"versions": of[0]["versions"]}
        for side, of in runs.items()
    }
    result = {
        "machine": f"{platform.machine()}, {args.threads} threads", "rounds": args.rounds, "weights_bytes": weights,
        "largest_difference": difference, "sides": sides,
    }  # fmt: skip
    (HERE / "results" / "full_size.json").write_text(json.dumps(result, indent=1) + "\n")

    table = Table(title=f"weights of {weights / 1e9:.2f} GB, outputs equal to {difference:.1e}")
    for title in ("", "load, s", "score, tokens/s", "generate, tokens/s", "peak memory / weights"):
        table.add_column(title, justify="right")
    for label, side in SIDES.items():
        load, score, generate, peak = (sides[side][name] for name in MEASURED)
        table.add_row(label, f"{load:.1f}", f"{score:.0f}", f"{generate:.2f}", f"{peak / weights:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
