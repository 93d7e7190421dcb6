"""What claims about agents share: runs of `benchmarks/bench_memory_tasks.py` as records, and Fisher's exact test."""

import math
import sys
from dataclasses import replace

from claim_runs import ROOT, Record, Records, Session

FIRST_SEED = 10  # on seed 0 the learning rates were chosen
LEVEL = 0.05


def measure(session: Session, settings: Record, seed: int) -> Record:
    """A run of `settings`: task, model and rate. One that stands in `results/memory_tasks.jsonl` is taken from there."""
    sys.path.append(str(ROOT / "benchmarks"))
    import bench_memory_tasks as bench

    cell = bench.cell(settings["task"], settings["model"], FIRST_SEED + seed, settings["rate"])
    if session.steps is None:
        run = bench.run(cell)
    else:
        task = replace(bench.TASKS[settings["task"]], steps=session.steps, seconds=0)
        run = cell | bench.train(task, cell["model"], cell["seed"], cell["rate"])
    record = {name: run[name] for name in ("steps", "seconds", "length")}
    return record | {"success": run["success"] or 0.0, "learned": int(bench.learned(run))}


def learned(records: Records, runs: list[str]) -> list[int]:
    """In how many seeds each run learned its task."""
    return [sum(map(int, records.of(run, "learned"))) for run in runs]


def fisher(one: int, other: int, count: int) -> float:
    """Fisher's exact test, one-sided: how likely it is that of two kinds with `count` runs each, and of one quality, the
    first learns in as many as `one` when both learn in `one + other` together."""
    total = math.comb(2 * count, one + other)
    more = range(one, min(count, one + other) + 1)
    return sum(math.comb(count, each) * math.comb(count, one + other - each) for each in more) / total


__all__ = ["LEVEL", "fisher", "learned", "measure"]
