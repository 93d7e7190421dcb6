"""Whole steps of Transformer-XL beside its peers, interleaved in one run: training, evaluation, generation.

Each competitor runs in a process of its own (`peers/worker.py`), with the libraries it was written for: transformers 4.35
for the old TransfoXL, x-transformers, transformers 5 for GPT-2 and Mistral. The environments are made under `build/bench`.
They take turns, so that ratios hold on a machine that is not quiet. That ours and the old TransfoXL are one function is
checked with the same weights in the same processes that are timed.

    python benchmarks/bench_peers.py                    # everything, some 15 minutes on 2 cores
    python benchmarks/bench_peers.py --only train       # one kind; the other rows of the results stay

Writes `results/peers.json` and `peers.png`, and the tables in `docs/performance.md`. With `--keep-pages`, the C library of
all competitors keeps what it was given by the kernel, so that fresh pages cost none of them time: the results then go to
`results/peers_keep_pages.json`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from matplotlib import colormaps
from rich.console import Console

from transformers_xl.evaluation.plots import figure, save, styled
from transformers_xl.files.processor import processor

HERE = Path(__file__).parent
ROOT, RESULTS = HERE.parent, HERE / "results"
ENVIRONMENTS = ROOT / "build" / "bench"
REQUIREMENTS = {
    "old": ["torch==2.13.0", "transformers==4.35.2", "numpy<2", "sacremoses"],
    "x_transformers": ["torch==2.13.0", "x-transformers==2.31.10"],
}
LABELS = {
    "ours": "transformers-xl", "ours_static": "transformers-xl, static", "ours_recompute": "transformers-xl, recompute",
    "ours_compiled": "transformers-xl, compiled",
    "floor": "no position term (floor)", "old": "TransfoXL of transformers 4.35",
    "x_transformers": "x-transformers (T5 bias)", "gpt2": "GPT-2", "mistral": "Mistral, sliding window",
}  # fmt: skip
# what `--keep-pages` adds to the environment of every competitor
KEEP_PAGES = {
    "MALLOC_MMAP_THRESHOLD_": "2000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000", "MALLOC_TOP_PAD_": "67108864",
}  # fmt: skip
console = Console(stderr=True)


@dataclass
class Row:
    """A task of `peers/worker.py`, and who takes part in it; the first is what the others are compared with."""

    kind: str
    size: str
    memory: int
    batch: int
    segment: int
    peers: list[str] = field(default_factory=lambda: ["old", "ours", "floor", "x_transformers"])
    new_tokens: int = 64

    @property
    def name(self) -> str:
        return f"{self.kind} {self.size} memory {self.memory} batch {self.batch}"

    @property
    def task(self) -> dict:
        names = ("kind", "size", "memory", "batch", "segment", "new_tokens")
        return {name: getattr(self, name) for name in names}


CACHED = ["old", "ours", "floor"]
GENERATING = ["old", "ours", "ours_compiled", "floor", "mistral", "gpt2"]
ROWS = [
    Row("train", "small", 128, 8, 128),
    Row("train", "big", 256, 2, 256, peers=["old", "ours", "ours_recompute", "floor", "x_transformers"]),
    Row("train", "small", 4096, 2, 128),
    *(Row("evaluate", "small", memory, 1, 128, peers=CACHED) for memory in (512, 1600, 3200)),
    Row("evaluate", "big", 3200, 1, 128, peers=CACHED),
    *(Row("evaluate_value", "small", memory, 1, 128) for memory in (512, 1600, 3200)),
    *(Row("generate", "small", memory, 1, 128, peers=GENERATING) for memory in (128, 512, 1600)),
    *(Row("generate", "big", memory, 1, 128, peers=GENERATING, new_tokens=32) for memory in (512, 1600)),
    Row("generate", "small", 512, 16, 128, peers=CACHED, new_tokens=32),
]


class Worker:
    """A competitor in its own process."""

    def __init__(self, name: str, threads: int, keep_pages: bool, root: Path):
        self.name, self.threads = name, threads
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  lives as long as the process
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": ""}
        if keep_pages:
            environment |= KEEP_PAGES
        if name not in REQUIREMENTS:
            environment["PYTHONPATH"] = str(root)
        command = [interpreter(name), "-W", "ignore", str(HERE / "peers" / "worker.py"), name]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )

    def ask(self, **request) -> dict:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            self.log.seek(0)
            raise RuntimeError(f"{self.name} ended: {self.log.read()[-2000:]}")
        return json.loads(answer)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def interpreter(name: str) -> str:
    """The Python that a competitor runs in; its environment is made when it is not there."""
    if name not in REQUIREMENTS:
        return sys.executable
    folder = ENVIRONMENTS / name
    if not (folder / ".ready").exists():
        console.print(f"making {folder.relative_to(ROOT)} ...")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *REQUIREMENTS[name]], check=True)
        (folder / ".ready").touch()
    return str(folder / "bin" / "python")


def check_equality(workers: dict[str, Worker], row: Row) -> float | None:
    """The largest difference of log-probabilities of ours and the old TransfoXL, of the same weights and four segments."""
    if not {"old", "ours"} <= workers.keys():
        return None
    with tempfile.TemporaryDirectory() as folder:
        workers["old"].ask(do="save_weights", path=f"{folder}/weights.pt")
        workers["ours"].ask(do="load_weights", path=f"{folder}/weights.pt")
        for name in ("old", "ours"):
            workers[name].ask(do="predict", path=f"{folder}/{name}.pt")
        old, ours = (torch.load(f"{folder}/{name}.pt", weights_only=True) for name in ("old", "ours"))
    difference = (old - ours.view_as(old)).abs().max().item()
    if difference > 1e-4:
        raise RuntimeError(f"{row.name}: ours and the old TransfoXL differ by {difference}")
    return difference


def measure(row: Row, rounds: int, threads: int, keep_pages: bool, before: Path = ROOT) -> dict:
    """Median seconds of a unit by peer, wall and CPU, and its spread over rounds; `ours_before` is run in `before`."""
    workers = {
        name: Worker(name, threads, keep_pages, before if name == "ours_before" else ROOT) for name in row.peers
    }
    try:
        parameters = {name: worker.ask(do="setup", task=row.task, threads=threads) for name, worker in workers.items()}
        difference = check_equality(workers, row)
        times: dict[str, list[dict]] = {name: [] for name in workers}
        for _ in range(rounds):
            for name, worker in workers.items():
                times[name].append(worker.ask(do="measure", repeats=1 if row.kind == "generate" else 2))
        kept = {}
        if row.kind == "train":
            kept = {name: worker.ask(do="kept")["bytes"] for name, worker in workers.items()}
        versions = {name: worker.ask(do="versions") for name, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.close()
    result = {"name": row.name, **row.task, "difference": difference, "peers": {}}
    for name, runs in times.items():
        wall, cpu = ([run[kind] for run in runs] for kind in ("wall", "cpu"))
        quartiles = statistics.quantiles(wall, n=4)
        result["peers"][name] = {
            "wall": statistics.median(wall), "cpu": statistics.median(cpu), "wall_quartiles": [quartiles[0], quartiles[2]],
            "kept_for_backward": kept.get(name), **parameters[name], "versions": versions[name],
        }  # fmt: skip
    return result


def ratio(row: dict, peer: str, kind: str = "wall") -> float:
    """How many times faster than the first competitor."""
    first = next(iter(row["peers"].values()))
    return first[kind] / row["peers"][peer][kind]


def table(rows: list[dict]) -> str:
    lines = []
    for kind, title in (
        ("train", "A training step"), ("evaluate", "A segment of 128 with the cache (`past_key_values`)"),
        ("evaluate_value", "A segment of 128 with `mems` of inputs"), ("generate", "`generate()`, per token"),
    ):  # fmt: skip
        chosen = [row for row in rows if row["kind"] == kind]
        if not chosen:
            continue
        peers = list(dict.fromkeys(name for row in chosen for name in row["peers"]))
        lines += [f"**{title}**", "", "| size, memory, batch | " + " | ".join(LABELS[name] for name in peers) + " |"]
        lines.append("|---|" + "---:|" * len(peers))
        for row in chosen:
            per = row["new_tokens"] if kind == "generate" else 1
            cells = []
            for name in peers:
                if name not in row["peers"]:
                    cells.append("")
                    continue
                milliseconds = 1000 * row["peers"][name]["wall"] / per
                cells.append(f"{milliseconds:.3g} ms, **{ratio(row, name):.2f}** / {ratio(row, name, 'cpu'):.2f}")
            lines.append(f"| {row['size']}, {row['memory']}, {row['batch']} | " + " | ".join(cells) + " |")
        lines.append("")
    kept = [row for row in rows if row["kind"] == "train"]
    if kept:
        lines += ["**Kept for the backward pass, MiB**", ""]
        peers = list(dict.fromkeys(name for row in kept for name in row["peers"]))
        lines += ["| size, memory, batch | " + " | ".join(LABELS[name] for name in peers) + " |"]
        lines.append("|---|" + "---:|" * len(peers))
        for row in kept:
            sizes = [row["peers"].get(name, {}).get("kept_for_backward") for name in peers]
            cells = ["" if size is None else f"{size / 2**20:.0f}" for size in sizes]
            lines.append(f"| {row['size']}, {row['memory']}, {row['batch']} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


@styled
def draw(rows: list[dict], path: Path) -> None:
    picture, ((left, middle, right),) = figure(columns=3, width=5.0, height=4.8)
    colors = dict(zip(LABELS, colormaps["tab10"].colors, strict=False))
    generating = [row for row in rows if row["kind"] == "generate" and row["size"] == "small" and row["batch"] == 1]
    for name in GENERATING:
        points = [
            (r["memory"], 1000 * r["peers"][name]["wall"] / r["new_tokens"]) for r in generating if name in r["peers"]
        ]
        left.plot(*zip(*points, strict=True), "-o", color=colors[name], label=LABELS[name])
    left.set(
        xscale="log",
        yscale="log",
        xlabel="memory, tokens",
        ylabel="milliseconds per token",
        title="generate(), small, batch 1",
    )
    left.set_xticks([row["memory"] for row in generating], [str(row["memory"]) for row in generating])
    left.minorticks_off()
    left.set_yticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
    left.legend()
    training = [row for row in rows if row["kind"] == "train"]
    peers = list(dict.fromkeys(name for row in training for name in row["peers"]))
    for axes, label, title, height in (
        (middle, "speed relative to TransfoXL", "Training step", ratio),
        (
            right,
            "MiB",
            "Kept for the backward pass",
            lambda row, name: row["peers"][name]["kept_for_backward"] / 2**20,
        ),
    ):
        for index, name in enumerate(peers):
            places = [i + 0.8 * (index / len(peers) - 0.4) for i, row in enumerate(training) if name in row["peers"]]
            heights = [height(row, name) for row in training if name in row["peers"]]
            axes.bar(places, heights, width=0.8 / len(peers), color=colors[name], label=LABELS[name])
        axes.set_xticks(range(len(training)), [f"{row['size']},\nmemory {row['memory']}" for row in training])
        axes.set(ylabel=label, title=title)
        axes.grid(visible=False, axis="x")
    middle.legend()
    save(picture, path)


def write_docs(text: str, path: Path = ROOT / "docs" / "performance.md") -> None:
    begin, end = "<!-- tables: written by benchmarks/bench_peers.py -->", "<!-- end of tables -->"
    page = path.read_text()
    before, rest = page.split(begin)
    path.write_text(before + begin + "\n" + text + end + rest.split(end)[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", help="kinds of rows to measure, joined by commas: train, evaluate, evaluate_value, generate"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--keep-pages", action="store_true")
    parser.add_argument("--draw", action="store_true", help="draw results/peers.json, and measure nothing")
    args = parser.parse_args()
    if args.draw:
        return draw(json.loads((RESULTS / "peers.json").read_text())["rows"], RESULTS / "peers.png")
    path = RESULTS / ("peers_keep_pages.json" if args.keep_pages else "peers.json")
    rows = {row["name"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() and args.only else {}
    for row in ROWS:
        if args.only and row.kind not in args.only.split(","):
            continue
        rows[row.name] = measure(row, args.rounds, args.threads, args.keep_pages)
        ratios = ", ".join(f"{name} {ratio(rows[row.name], name):.2f}" for name in rows[row.name]["peers"])
        console.print(f"{row.name}: {ratios}")
        ordered = [rows[r.name] for r in ROWS if r.name in rows]
        machine = f"{processor()}, {args.threads} threads"
        result = {"machine": machine, "rounds": args.rounds, "dtype": "float32", "rows": ordered}
        path.write_text(json.dumps(result, indent=1) + "\n")
    if not args.keep_pages:
        draw(ordered, RESULTS / "peers.png")
        write_docs(table(ordered))
    print(table(ordered))


if __name__ == "__main__":
    main()
