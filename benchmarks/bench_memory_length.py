"""Bits per byte for a growing memory: Dai et al., 2019, https://arxiv.org/abs/1901.02860, section 4.1, at small scale.

Trains one Transformer-XL with a memory of M (`transformers-xl train`), and predicts the held-out end of the text with
memories of 0, M/4, M/2, M, 2M and 4M: as it is, and with the distances above M, which it has never seen, taken for M
(`clamp_len`). All are read in segments of M/4, so that no token sees more of its own segment than the shortest memory
holds. Writes `results/memory_length.json` and prints the table of docs/training_papers.md.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

from transformers_xl import ByteTokenizer
from transformers_xl.data.files import read_ids, split_held_out
from transformers_xl.evaluation.bits_per_byte import bits_per_byte

RESULTS = Path(__file__).parent / "results"


def train(args: argparse.Namespace, folder: Path) -> dict:
    """Train with the command line; what it measured."""
    options = {
        "model.hidden_size": args.hidden_size, "model.intermediate_size": 4 * args.hidden_size,
        "model.num_hidden_layers": args.layers, "model.mem_len": args.mem_len, "model.segment_length": args.segment,
        "data.batch_size": args.lanes, "data.eval_fraction": args.eval_fraction, "training.seed": args.seed,
        "training.max_steps": args.steps, "training.learning_rate": args.learning_rate,
        "training.warmup_steps": args.warmup_steps,
        # not the defaults, which are younger than the figures
        "model.initializer_range": 0.02, "training.initial_mem_len": "null", "training.mem_len_warmup_steps": 0,
    }  # fmt: skip
    command = ["train", str(args.text), "-o", str(folder)]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    subprocess.run([sys.executable, "-m", "transformers_xl.cli.main", *command], check=True)
    metrics = json.loads((folder / "training_metrics.json").read_text())
    training = metrics["training"]
    return {
        "arguments": training["arguments"],
        "parameters": metrics["parameters"],
        "train_bytes": training["data"]["bytes"],
        "held_out_bytes": metrics["evaluations"][0]["data"]["bytes"],
        "train_seconds": training["seconds"],
    }


def measure(args: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """Bits per byte of the held-out text for each length of the memory."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids, _ = read_ids([args.text], ByteTokenizer())
    held_out = split_held_out(ids, args.eval_fraction)[1]
    options = {"segment_length": args.mem_len // 4, "lanes": args.eval_lanes}
    rows = [{"mem_len": 0, "bits_per_byte": bits_per_byte(model, held_out, memory=False, **options)}]
    print(rows[-1], flush=True)
    for mem_len in (args.mem_len // 4, args.mem_len // 2, args.mem_len, 2 * args.mem_len, 4 * args.mem_len):
        model.resize_memory(mem_len)
        row = {"mem_len": mem_len}
        for name, clamp_len in (("bits_per_byte", -1), ("bits_per_byte_clamped", args.mem_len)):
            model.config.clamp_len = clamp_len
            if clamp_len < mem_len:  # nothing to clamp: the same
                row[name] = bits_per_byte(model, held_out, **options)
        rows.append(row)
        print(row, flush=True)
    return rows


def table(rows: list[dict[str, float]]) -> str:
    lines = ["| memory | bits per byte | distances clamped |", "|---:|---:|---:|"]
    for row in rows:
        clamped = f"{row['bits_per_byte_clamped']:.3f}" if "bits_per_byte_clamped" in row else ""
        lines.append(f"| {row['mem_len']:.0f} | {row['bits_per_byte']:.3f} | {clamped} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a text file")
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--mem-len", type=int, default=128, help="M, in bytes")
    parser.add_argument("--segment", type=int, default=64, help="bytes per training segment")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--warmup-steps", type=int, default=50)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--eval-fraction", type=float, default=0.05)
    parser.add_argument("--eval-lanes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as workspace:
        folder = Path(workspace, "model")
        training = train(args, folder)
        rows = measure(args, folder)
    result = {
        "training": training,
        "training_cpu_seconds": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime),
        "evaluation": {"segment_length": args.mem_len // 4, "lanes": args.eval_lanes},
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "seconds": round(time.perf_counter() - start),
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "memory_length.json").write_text(json.dumps(result, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
