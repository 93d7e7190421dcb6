"""What kinds of memory keep: trains every model of the memory probe, asks it, and draws accuracy against distance.

    python benchmarks/bench_probe.py --task registers --model transformer_xl --seed 0    # all of each when not given
    python benchmarks/bench_probe.py --report

A model is a folder, `build/probe/TASK/NAME-SEED`, as `transformers-xl train-probe` writes it. What it answers is added to
`results/probe.json`; what stands there is not run again, so that a call that was killed is resumed by the same call. At
the end, and with `--report` alone, it writes the tables of `docs/probe.md` and `results/probe_TASK.png`. One thread;
processor seconds are those of training, the making of the streams included, and means of two seeds (`timed_seeds`).
"""

import argparse
import dataclasses
import json
import re
import statistics
from pathlib import Path

import torch

from transformers_xl.evaluation.plots import save
from transformers_xl.evaluation.probe_options import ProbeOptions
from transformers_xl.evaluation.probe_plots import draw_probe
from transformers_xl.evaluation.probe_tasks import TASKS
from transformers_xl.files.atomic_write import write_text
from transformers_xl.files.json_files import read_json
from transformers_xl.files.processor import processor
from transformers_xl.hub.measurements import library_versions
from transformers_xl.runs.loading import load_weights
from transformers_xl.runs.probe_runs import probe_row, read_terms
from transformers_xl.runs.probe_terms import PROBE_FILE, ProbeTerms
from transformers_xl.runs.probe_training import train_probe, trained_options

ROOT = Path(__file__).parent.parent
RESULTS, MODEL_FOLDERS = Path(__file__).parent / "results", ROOT / "build" / "probe"
RESULT, PAGE = RESULTS / "probe.json", ROOT / "docs" / "probe.md"
TABLE = re.compile(r"(<!-- table of (\w+): .*? -->\n).*?(<!-- end of table -->)", flags=re.DOTALL)
LONGER = 256
# name in the picture -> fields of its terms
MODELS: dict[str, dict] = {
    "transformer_xl": {"model_type": "transformer_xl"},
    "transformer_xl, no memory": {"model_type": "transformer_xl", "mem_len": 0},
    "sha_rnn": {"model_type": "sha_rnn"},
    "compressive_transformer": {"model_type": "compressive_transformer"},
    "block_recurrent": {"model_type": "block_recurrent"},
    "infini_transformer": {"model_type": "infini_transformer"},
    "recurrent_memory_transformer": {"model_type": "recurrent_memory_transformer"},
    "memorizing_transformer": {"model_type": "memorizing_transformer"},
    "r_transformer": {"model_type": "r_transformer"},
    "adaptive_span": {"model_type": "adaptive_span"},
    "lstm": {"model_type": "lstm"},
    "mistral": {"model_type": "mistral"},
    "gpt2": {"model_type": "gpt2"},
    "mamba2": {"model_type": "mamba2"},
    "rwkv": {"model_type": "rwkv"},
}
READ_LONGER = ("transformer_xl",)  # asked once more with a memory of LONGER tokens
TIMED_ON_AMD = ("mamba2", "rwkv")  # the others' first two seeds ran on Intel


def folder_of(task: str, name: str, seed: int) -> Path:
    return MODEL_FOLDERS / task / f"{name.replace(', ', '-').replace(' ', '_')}-{seed}"


def ask(task: str, name: str, seed: int) -> dict:
    """What the model of a folder answers, beside how it was trained."""
    folder = folder_of(task, name, seed)
    model, terms = load_weights(folder, any_kind=True), read_terms(folder)
    options = trained_options(model, terms)
    row = {
        "name": name,
        "seed": seed,
        **read_json(folder / PROBE_FILE),
        "asked": probe_row(model, TASKS[task], options),
        "machine": str(processor()),
    }
    if name in READ_LONGER:
        row["asked_longer"] = probe_row(model, TASKS[task], dataclasses.replace(options, length=LONGER))
    return row


def panels_of(runs: list[dict]) -> dict[str, list[dict]]:
    """The rows of each panel: one for each seed."""
    panels: dict[str, list[dict]] = {}
    for each in runs:
        panels.setdefault(each["name"], []).append(each["asked"])
        if "asked_longer" in each:
            panels.setdefault(f"{each['name']}, read with {LONGER}", []).append(each["asked_longer"])
    return panels


def table(runs: list[dict]) -> list[str]:
    """The table of a task, in Markdown."""
    timed = [each for each in runs if each["seed"] in timed_seeds(each["name"])]
    seconds = {name: [each["processor_seconds"] for each in timed if each["name"] == name] for name in MODELS}
    bins = [f"{first}-{last}" for first, last in runs[0]["asked"]["bins"]]
    lines = [
        "| | seeds | half, tokens | " + " | ".join(bins) + " | s |",
        "|---|---:|---:|" + "---:|" * (len(bins) + 1),
    ]
    for name, rows in panels_of(runs).items():
        halves = ", ".join(half(row) for row in rows)
        by_bin = zip(*(row["accuracy"] for row in rows), strict=True)
        accuracy = " | ".join("" if None in values else f"{statistics.mean(values):.2f}" for values in by_bin)
        its_seconds = f"{statistics.mean(seconds[name]):.0f}" if seconds.get(name) else ""
        model_type, comma, how = name.partition(", ")
        lines.append(f"| `{model_type}`{comma}{how} | {len(rows)} | {halves} | {accuracy} | {its_seconds} |")
    return lines


def timed_seeds(name: str) -> tuple[int, int]:
    """Those that one kind of processor trained, of which there are two for every model."""
    return (1, 2) if name in TIMED_ON_AMD else (0, 1)


def half(row: dict) -> str:
    """Where its accuracy has fallen to half."""
    if row["half"] is None:
        return "chance"
    return f"at least {row['half']}" if row["half"] == row["bins"][-1][1] else str(row["half"])


def page(found: dict[str, list[dict]]) -> str:
    """docs/probe.md, with its tables written anew."""
    return TABLE.sub(
        lambda match: "\n".join(
            [match[1], *(table(found[match[2]]) if match[2] in found else ["Not run."]), "", match[3]]
        ),
        PAGE.read_text(encoding="utf-8"),
    )


def report(found: dict[str, list[dict]]) -> None:
    """Write the tables and the pictures."""
    for task, runs in found.items():
        print(f"\n{task}\n\n" + "\n".join(table(runs)))
        save(draw_probe(panels_of(runs), task, TASKS[task].chance), RESULTS / f"probe_{task}.png")
    write_text(PAGE, page(found))


def write(found: dict[str, list[dict]]) -> None:
    result = {
        "options": dataclasses.asdict(ProbeOptions()), "versions": library_versions(), "threads": 1, "runs": found,
    }  # fmt: skip
    write_text(RESULT, json.dumps(result, indent=None) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", choices=[*TASKS], help="all when not given")
    parser.add_argument("--model", action="append", choices=[*MODELS], help="all when not given")
    parser.add_argument("--seed", action="append", type=int, help="0, 1 and 2 when not given")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--trained", action="store_true", help="train nothing, ask the models that are there")
    parser.add_argument("--report", action="store_true", help="tables and pictures of results/probe.json, and no more")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[dict]] = read_json(RESULT)["runs"] if RESULT.exists() else {}
    wanted = [
        (task, name, seed)
        for seed in args.seed or range(3)
        for task in args.task or TASKS
        for name in args.model or MODELS
    ]
    for task, name, seed in [] if args.report else wanted:
        runs, folder = found.setdefault(task, []), folder_of(task, name, seed)
        if (name, seed) in [(each["name"], each["seed"]) for each in runs]:
            continue
        if not folder.exists() and not args.trained:
            folder.parent.mkdir(parents=True, exist_ok=True)
            train_probe(ProbeTerms(task, steps=args.steps, seed=seed, **MODELS[name]), folder)
        if folder.exists():
            asked = ask(task, name, seed)
            print(task, name, seed, asked["asked"]["half"], f"{asked['processor_seconds']:.0f} s", flush=True)
            runs.append(asked)
            runs.sort(key=lambda run: ([*MODELS].index(run["name"]), run["seed"]))
            write(found)
    report({task: found[task] for task in TASKS if found.get(task)})


if __name__ == "__main__":
    main()
