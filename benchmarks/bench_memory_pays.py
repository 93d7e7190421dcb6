"""What a memory is worth on real text: the same model trained with it and without, at the same bytes and the same time.

    transformers-xl prepare log /var/log/dpkg.log --drop-columns 11 -o log
    python benchmarks/bench_memory_pays.py log     # what is finished is not run again; --only-report: of what there is
    python benchmarks/bench_memory_pays.py --draw     # table and picture of results/memory_pays.json

Four models of 0.12 million parameters, three seeds each, all trained at one rate:

- with memory: a Transformer-XL that remembers 256 bytes and reads segments of 64;
- without: the same, each segment of 64 on its own;
- without, long segments: of 320 bytes, as long as segment and memory together;
- Mistral, whose window of 256 bytes is read again before every segment of 64.

All are scored on the same bytes of the held-out end of the text: those that have 320 bytes of it before them. Writes
`results/memory_pays.json` and `docs/images/memory_pays.png`, and prints the table of docs/memory_worth.md.
"""

import argparse
import json
import lzma
import zlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from learning_runs import Run, build, in_bits, kept, losses_of, read_bytes, train
from safetensors.torch import load_file
from transformers import PreTrainedModel

from transformers_xl.evaluation.plots import figure, line, save
from transformers_xl.files.digests import sha256

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "memory_pays.json"
PICTURE = ROOT / "docs" / "images" / "memory_pays.png"
SCORED_FROM, LANES = 320, 4
PLACES, PLACE = 17, 64  # of the second picture: how many, and bytes of each
POINTS = [100, 200, 400, 600, 800, 1100]
RUNS = {
    "memory": Run(256, steps=800),
    "segments": Run(0, steps=1350),
    "long_segments": Run(0, segment=320, lanes=4, steps=1150),
    "window": Run(0, context=256, mistral=True, steps=300),
}
MAIN_WAY = {  # of reading each model
    "memory": "memory",
    "segments": "segments of 64",
    "long_segments": "segments of 320",
    "window": "window 256 + 64",
}
NAMES = {
    "memory": "with memory, 256 bytes",
    "segments": "without, segments of 64",
    "long_segments": "without, segments of 320",
    "window": "Mistral, window of 256 read again",
}


def rows_of(path: Path) -> torch.Tensor:
    """The text in `LANES` rows; what is behind `SCORED_FROM` in each fills segments of every length."""
    ids = read_bytes(path)
    length = (len(ids) - 1) // LANES // SCORED_FROM * SCORED_FROM
    return torch.from_numpy(ids)[: LANES * length + 1].unfold(0, length + 1, length)


def from_the_start(model: PreTrainedModel, rows: torch.Tensor, segment: int) -> torch.Tensor:
    """Nats of all bytes but the first `(lanes, bytes)`, every segment read with the memory of those before."""
    found, cache = [], None
    for start in range(0, rows.shape[1] - 1, segment):
        inputs, targets = rows[:, start : start + segment], rows[:, start + 1 : start + segment + 1]
        losses, outputs = losses_of(
            model, inputs[:, : targets.shape[1]], targets, past_key_values=cache, use_cache=True
        )
        cache = outputs.past_key_values
        found.append(losses)
    return torch.cat(found, 1)


def with_memory(model: PreTrainedModel, rows: torch.Tensor, segment: int) -> torch.Tensor:
    """Nats of the scored bytes `(lanes, bytes)`, every segment read with the memory of those before."""
    return from_the_start(model, rows, segment)[:, SCORED_FROM:]


def anew(model: PreTrainedModel, rows: torch.Tensor, segment: int, context: int = 0) -> torch.Tensor:
    """Nats of the scored bytes `(lanes, bytes)`, every segment read behind the `context` bytes before it."""
    windows = rows[:, SCORED_FROM - context :].unfold(1, context + segment + 1, segment).flatten(0, 1)
    found = []
    for window in windows.split(32):
        found.append(losses_of(model, window[:, :-1], window[:, context + 1 :], use_cache=False)[0])
    return torch.cat(found).view(len(rows), -1)


def ways(run: Run) -> dict[str, tuple[int, int]]:
    """The segment and the context of each way in which a model without memory is read."""
    if run.mistral:
        return {"window 256 + 64": (64, 256)}
    if run.segment == 320:
        return {"segments of 320": (320, 0), "window 256 + 64": (64, 256)}
    return {"segments of 64": (64, 0)} | ({} if run.mem_len else {"window 32 + 32": (32, 32)})


def score(model: PreTrainedModel, run: Run, rows: torch.Tensor) -> dict[str, float]:
    """Bits per byte of each way to read."""
    found = {"memory": in_bits(with_memory(model, rows, run.segment))} if run.mem_len else {}
    return found | {name: in_bits(anew(model, rows, *cut)) for name, cut in ways(run).items()}


def measure(run: Run, seed: int, texts: Path, weights: Path) -> dict:
    rows = rows_of(texts / "test.txt")
    points, model = train(
        run, seed, read_bytes(texts / "train.txt"), POINTS, lambda model, run: score(model, run, rows)
    )
    model.save_pretrained(weights)
    return {"points": [asdict(point) for point in points]}


def by_place(run: Run, weights: Path, text: Path) -> list[float]:
    """Bits per byte of the first `PLACE` bytes that are read, of the next, and so on: the mean over pieces of the text."""
    model = build(run, 0).eval()
    model.load_state_dict(load_file(weights / "model.safetensors"), strict=False)  # a tied head is saved once
    ids, length = torch.from_numpy(read_bytes(text)), PLACES * PLACE
    rows = ids[: (len(ids) - 1) // length * length + 1].unfold(0, length + 1, length)
    with torch.inference_mode():
        if run.mem_len:
            nats = from_the_start(model, rows, run.segment)
        else:
            nats = torch.cat([_segment(model, run, rows, start) for start in range(0, length, run.segment)], 1)
    return [in_bits(each) for each in nats.split(PLACE, 1)]


def _segment(model: PreTrainedModel, run: Run, rows: torch.Tensor, start: int) -> torch.Tensor:
    inputs, targets = (
        rows[:, max(0, start - run.context) : start + run.segment],
        rows[:, start + 1 :][:, : run.segment],
    )
    inputs = inputs[:, : min(start, run.context) + targets.shape[1]]
    return losses_of(model, inputs, targets, use_cache=False)[0]


def compressed(texts: Path) -> dict[str, float]:
    """Bits per byte of the scored bytes for compressors that have read the training text, and what stands before."""
    known, rows = (texts / "train.txt").read_bytes(), rows_of(texts / "test.txt")
    sizes: dict[str, Callable[[bytes], int]] = {
        "deflate": lambda data: len(zlib.compress(data, 9)),
        "xz": lambda data: len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
    }
    found = {}
    for name, size in sizes.items():
        lanes = [bytes(row.tolist()) for row in rows]
        more = sum(size(known + lane) - size(known + lane[: SCORED_FROM + 1]) for lane in lanes)
        found[name] = round(8 * more / sum(len(lane) - SCORED_FROM - 1 for lane in lanes), 4)
    return found


def at(record: dict, way: str, column: str, value: float) -> float:
    """Bits at a step, or at so many seconds; between two points, on the line from one to the other."""
    points = record["points"]
    return float(np.interp(value, [point[column] for point in points], [point["bits"][way] for point in points]))


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def table(records: dict[str, list[dict]]) -> list[str]:
    """Each way to read each model: at the bytes that the model with memory was trained on, at its processor time, and at
    the best point of each training."""
    goals = {each["seed"]: each["points"][-1] for each in records["memory"]}
    lines = ["| trained | read | at equal bytes | at equal time | at its best | bytes | seconds |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for name, found in records.items():
        pairs = [(each, goals[each["seed"]]) for each in found if each["seed"] in goals]
        ends = [each["points"][-1] for each, _ in pairs]
        bytes_reached = all(end["step"] >= goal["step"] for end, (_, goal) in zip(ends, pairs, strict=True))
        time_reached = all(end["seconds"] > 0.95 * goal["seconds"] for end, (_, goal) in zip(ends, pairs, strict=True))
        for way in ends[0]["bits"]:
            equal = spread([at(each, way, "step", goal["step"]) for each, goal in pairs]) if bytes_reached else ""
            timed = spread([at(each, way, "seconds", goal["seconds"]) for each, goal in pairs])
            timed += "" if time_reached else "*"
            best = spread([min(point["bits"][way] for point in each["points"]) for each, _ in pairs])
            last = f"{ends[0]['train_bytes']:,} | {np.mean([end['seconds'] for end in ends]):.0f}"
            lines.append(f"| {NAMES[name]} | {way} | {equal} | {timed} | {best} | {last} |")
    return lines


def draw(records: dict[str, list[dict]], places: dict[str, list[list[float]]]) -> None:
    picture, ((left, right),) = figure(columns=2, width=5, sharey=True)
    seeds = min(len(found) for found in records.values())
    for index, (name, found) in enumerate(records.items()):
        style = line(index, len(records))
        seconds = np.mean([[point["seconds"] for point in each["points"]] for each in found], 0)
        bits = [[point["bits"][MAIN_WAY[name]] for point in each["points"]] for each in found]
        left.plot(seconds, np.mean(bits, 0), **style)
        left.fill_between(seconds, np.min(bits, 0), np.max(bits, 0), color=style["color"], alpha=0.15, lw=0)
        middle = np.mean(places[name], 0)
        x = PLACE * np.arange(1, PLACES + 1)
        right.plot(x, middle, label=NAMES[name], **style)
        right.fill_between(x, np.min(places[name], 0), np.max(places[name], 0), color=style["color"], alpha=0.15, lw=0)
    left.set(
        xlabel="processor seconds of training (mean of the seeds)",
        ylabel="bits per byte, held-out text (not from 0)",
        title=f"Mean and range of {seeds} seeds",
    )
    right.set(
        xlabel="bytes of the text that have been read",
        title=f"Mean and range of {seeds} seeds, at the end of training",
    )
    right.yaxis.set_tick_params(labelleft=True)
    picture.legend(loc="outside lower center", ncols=2)
    save(picture, PICTURE)


def report(folder: Path, texts: Path, seeds: list[int]) -> None:
    """The JSON of all finished runs, the table and the picture."""
    records, places = {}, {}
    for name, run in RUNS.items():
        files = [path for seed in seeds if (path := folder / f"{name}-{seed}.json").exists()]
        if files:
            records[name] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
            places[name] = [by_place(run, file.with_suffix(""), texts / "test.txt") for file in files]
    preparation = json.loads((texts / "preparation.json").read_text(encoding="utf-8"))
    digests = {part: sha256(texts / f"{part}.txt") for part in ("train", "test")}
    result = {
        "text": preparation | {"sha256 of parts": digests},
        "compressed": compressed(texts),
        "records": records,
        "by_place": places,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    show(result)


def show(result: dict) -> None:
    """Print the table and draw the picture."""
    print("\n".join([*table(result["records"]), json.dumps(result["compressed"])]))
    draw(result["records"], result["by_place"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="?", help="folder that `transformers-xl prepare` wrote")
    parser.add_argument("--folder", type=Path, default=Path("build/memory_pays"), help="of finished runs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--only-report", action="store_true", help="of the runs that are finished")
    parser.add_argument("--draw", action="store_true", help="table and picture of the JSON, and measure nothing")
    args = parser.parse_args()
    if args.draw:
        return show(json.loads(RESULT.read_text(encoding="utf-8")))
    if args.texts is None:
        parser.error("`texts` is needed: the folder that `transformers-xl prepare` wrote, or --draw.")
    torch.set_num_threads(1)
    for seed in [] if args.only_report else args.seeds:
        for name, run in RUNS.items():
            path = args.folder / f"{name}-{seed}"
            kept(path.with_suffix(".json"), run, seed, partial(measure, run, seed, args.texts, path))
    report(args.folder, args.texts, args.seeds)


if __name__ == "__main__":
    main()
