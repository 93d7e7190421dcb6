"""Why a long memory makes a training slower at first, and what does not: small models after 300 steps.

    transformers-xl prepare log input.txt --held-out 0.1 -o shakespeare     # Tiny Shakespeare
    python benchmarks/bench_memory_start.py cause shakespeare
    python benchmarks/bench_memory_start.py --report     # table and picture, also of what the JSON holds

`cause`: memories of several lengths, a memory that grows, and long segments without one. `starts`, `rates` and `sizes`:
three of them with other initial weights, learning rates, and widths and steps. `shares`: other ways to grow. `widths`:
initial weights, without memory. Models have 2 layers; each reads 1,280 bytes a step. Scored are the first 19,200 bytes of
the validation text that have 320 before them in their row, in segments as in training. Beside the bits stands what the
attention gives to a byte itself and the 8 before it, seen from the end of a segment: the mean over layers and heads. Writes
`results/memory_start.json` and `docs/images/memory_start.png`.
"""

import argparse
import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from bench_memory_pays import ROOT, SCORED_FROM, anew, rows_of, with_memory
from learning_runs import Run, in_bits, kept, read_bytes, train
from transformers import PreTrainedModel

from transformers_xl.evaluation.plots import figure, line, save

RESULT = ROOT / "benchmarks" / "results" / "memory_start.json"
PICTURE = ROOT / "docs" / "images" / "memory_start.png"
SCORED_BYTES = 16 * 320 + 1
POINTS = [50, 100, 150, 200, 300]
NEAR = 9  # a byte and the 8 before it
MEMORY, NONE = Run(256, steps=300), Run(0, steps=300)
GROWING = replace(MEMORY, first_mem_len=16, growing_steps=150)
THREE = {"memory 256": MEMORY, "none": NONE, "memory 16, growing to 256": GROWING}
STARTS = {
    "0.02": lambda width: 0.02,
    "sqrt(2/(5 width))": lambda width: (0.4 / width) ** 0.5,
    "1/sqrt(width)": lambda width: width**-0.5,
}
WIDE = replace(
    MEMORY, hidden_size=256, initializer_range=STARTS["sqrt(2/(5 width))"](256), learning_rate=2e-3, steps=1000
)
SETS = {
    "cause": THREE
    | {
        "memory 16": replace(MEMORY, mem_len=16),
        "memory 64": replace(MEMORY, mem_len=64),
        "segments of 320": replace(NONE, segment=320, lanes=4),
    },
    "rates": {
        f"{name}, {rate:g}": replace(run, learning_rate=rate) for rate in (1e-3, 1e-2) for name, run in THREE.items()
    },
    "starts": {f"{name}, 0.02": replace(run, initializer_range=0.02) for name, run in THREE.items()},
    "sizes": {
        f"width {width}, {steps} steps, {name}": replace(
            run,
            hidden_size=width,
            initializer_range=STARTS["sqrt(2/(5 width))"](width),
            learning_rate=2e-3,
            steps=steps,
            growing_steps=steps // 2 if run.growing_steps else 0,
        )
        for width, steps in ((128, 300), (256, 300), (256, 1000))
        for name, run in THREE.items()
    },
    "shares": {
        "memory 16, growing to 256 in 75 steps": replace(GROWING, growing_steps=75),
        "memory 16, growing to 256 in 300 steps": replace(GROWING, growing_steps=300),
        "memory 64, growing to 256 in 150 steps": replace(GROWING, first_mem_len=64),
        "width 256, 1000 steps, memory 16, growing to 256 in 200 steps": replace(
            WIDE, first_mem_len=16, growing_steps=200
        ),
        "width 256, 850 steps, memory 256": replace(WIDE, steps=850),  # as long as 1000 of a memory that grows
    },
    "widths": {
        f"width {width}, {name}": replace(
            NONE, hidden_size=width, initializer_range=start(width), steps=150, learning_rate=2e-3
        )
        for width in (64, 128, 256)
        for name, start in STARTS.items()
    },
}


def nats_of(model: PreTrainedModel, run: Run, rows: torch.Tensor) -> torch.Tensor:
    """Nats of the scored bytes `(lanes, bytes)`, the model read as in training."""
    return with_memory(model, rows, run.segment) if run.mem_len else anew(model, rows, run.segment)


def near_shares(model: PreTrainedModel, run: Run, rows: torch.Tensor) -> list[list[float]]:
    """What each head of each layer gives to the `NEAR` nearest bytes, at the last position of a segment."""
    segment, found = run.segment, []
    chosen = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the one that shows what it gives
    for start in range(SCORED_FROM, SCORED_FROM + 8 * segment, segment):
        cache = model(rows[:, start - 256 : start], use_cache=True).past_key_values if run.mem_len else None
        inputs = rows[:, start : start + segment]
        outputs = model(inputs, past_key_values=cache, use_cache=cache is not None, output_attentions=True)
        found.append(torch.stack([each[:, :, -1, -NEAR:].sum(-1).mean(0) for each in outputs.attentions]))
    model.set_attn_implementation(chosen)
    return torch.stack(found).mean(0).tolist()


def measure(run: Run, seed: int, texts: Path) -> dict:
    rows, shares = rows_of(texts / "valid.txt")[:, :SCORED_BYTES], []

    def scores(model: PreTrainedModel, run: Run) -> dict[str, float]:
        if run.hidden_size == NONE.hidden_size:
            shares.append(near_shares(model, run, rows))
        return {"as trained": in_bits(nats_of(model, run, rows))}

    points, model = train(run, seed, read_bytes(texts / "train.txt"), POINTS, scores)
    with torch.inference_mode():
        positions = [in_bits(each) for each in nats_of(model, run, rows).reshape(-1, run.segment).unbind(1)]
    return {"points": [asdict(point) for point in points], "by_position": positions, "near": shares}


def title(texts: str, name: str, seed: int) -> str:
    return f"{texts} {name} {seed}".replace("/", ":")


def bits_at(record: dict, step: int) -> float:
    return next(point["bits"]["as trained"] for point in record["points"] if point["step"] == step)


def table(records: dict[str, dict]) -> list[str]:
    lines = [
        "| run | seconds | bits at 100 steps | at the end | bytes 1-4 of a segment | 33-64 | near, 100 steps | end |"
    ]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, record in records.items():
        last, positions = record["points"][-1], record["by_position"]
        places = f"{np.mean(positions[:4]):.2f} | {np.mean(positions[32:64]):.2f}"
        near = [f"{np.mean(record['near'][index]):.2f}" if record["near"] else "" for index in (1, -1)]
        row = f"| {name} | {last['seconds']:.0f} | {bits_at(record, 100):.3f} | {last['bits']['as trained']:.3f}"
        lines.append(f"{row} | {places} | {' | '.join(near)} |")
    return lines


def draw(records: dict[str, dict]) -> None:
    """The runs of `cause`, the first seed; a row for each text."""
    texts = sorted({key.split()[0] for key in records}, reverse=True)
    found = {text: {name: records.get(f"{text} {name} 0") for name in SETS["cause"]} for text in texts}
    found = {text: runs for text, runs in found.items() if all(runs.values())}
    picture, panels = figure(rows=len(found), columns=2, width=5)
    for (text, runs), (left, right) in zip(found.items(), panels, strict=True):
        for index, (name, record) in enumerate(runs.items()):
            steps, style = [point["step"] for point in record["points"]], line(index, len(runs))
            label = name if text == texts[0] else None
            left.plot(steps, [point["bits"]["as trained"] for point in record["points"]], label=label, **style)
            right.plot(steps, [np.mean(share) for share in record["near"]], **style)
        start = np.floor(2 * left.get_ylim()[0]) / 2
        left.set(xlabel="training step", ylabel=f"bits per byte (axis from {start:g})", ylim=(start, None))
        left.set_title(f"Held-out text: {text}, seed 0")
        right.set(xlabel="training step", ylabel="share", title="Attention to the nearest 9 bytes", ylim=(0, 1))
    picture.legend(loc="outside lower center", ncols=3)
    save(picture, PICTURE)


def report(folder: Path) -> None:
    """Add the finished runs of a folder to the JSON; print the table and draw the picture of all that it then holds."""
    records = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    records |= {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json")}
    records = dict(sorted(records.items()))
    RESULT.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(records)))
    draw(records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", nargs="?", choices=SETS)
    parser.add_argument("texts", nargs="*", type=Path, help="folders that `transformers-xl prepare` wrote")
    parser.add_argument("--only", nargs="+", help="names of the runs; all by default")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--folder", type=Path, default=Path("build/memory_start"), help="of finished runs")
    parser.add_argument("--report", action="store_true", help="add finished runs to the JSON, and show it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = SETS[args.set] if args.set else {}
    for seed in args.seeds:
        for texts in args.texts:
            for name in args.only or runs:
                path = args.folder / f"{title(texts.name, name, seed)}.json"
                kept(path, runs[name], seed, partial(measure, runs[name], seed, texts))
    if args.report:
        report(args.folder)


if __name__ == "__main__":
    main()
