"""What kinds of memory keep: trains every model of the memory probe, asks it, and draws accuracy against distance.

A model is a folder, `build/probe/TASK/NAME-SEED`, as `transformers-xl train-probe` writes it: a call that was killed goes
on where it stopped, and models that are there are asked again. Writes `results/probe.json`, and a picture for each task,
`results/probe_TASK.png`. One thread; processor seconds are those of training, the making of the streams included.
"""

import argparse
import dataclasses
import json
import platform
import statistics
from pathlib import Path

import torch

from transformers_xl.evaluation.plots import save
from transformers_xl.evaluation.probe_options import ProbeOptions
from transformers_xl.evaluation.probe_plots import draw_probe
from transformers_xl.evaluation.probe_tasks import TASKS
from transformers_xl.experiments.loading import load_weights
from transformers_xl.experiments.probe_runs import probe_row, read_terms
from transformers_xl.experiments.probe_terms import PROBE_FILE, ProbeTerms
from transformers_xl.experiments.probe_training import train_probe, trained_options
from transformers_xl.files.atomic_write import write_text
from transformers_xl.files.json_files import read_json
from transformers_xl.hub.measurements import library_versions

ROOT = Path(__file__).parent.parent
RESULTS, MODEL_FOLDERS = Path(__file__).parent / "results", ROOT / "build" / "probe"
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
    "mamba": {"model_type": "mamba"},
    "rwkv": {"model_type": "rwkv"},
}
READ_LONGER = ("transformer_xl",)  # asked once more with a memory of LONGER tokens


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


def report(task: str, runs: list[dict]) -> None:
    """Print the table of a task as Markdown, and draw it."""
    panels = panels_of(runs)
    seconds = {name: [each["processor_seconds"] for each in runs if each["name"] == name] for name in MODELS}
    bins = [f"{first}-{last}" for first, last in runs[0]["asked"]["bins"]]
    print(f"\n| {task} | seeds | half, tokens | " + " | ".join(bins) + " | processor s |")
    print("|---|---:|---:|" + "---:|" * (len(bins) + 1))
    for name, rows in panels.items():
        halves = ", ".join("-" if row["half"] is None else str(row["half"]) for row in rows)
        by_bin = zip(*(row["accuracy"] for row in rows), strict=True)
        accuracy = " | ".join(f"{statistics.mean(values):.2f}" for values in by_bin)
        its_seconds = f"{statistics.mean(seconds[name]):.0f}" if name in seconds else ""
        print(f"| {name} | {len(rows)} | {halves} | {accuracy} | {its_seconds} |")
    save(draw_probe(panels, task, TASKS[task].chance), RESULTS / f"probe_{task}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", choices=[*TASKS], help="all when not given")
    parser.add_argument("--model", action="append", choices=[*MODELS], help="all when not given")
    parser.add_argument("--seed", action="append", type=int, help="0, 1 and 2 when not given")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--report", action="store_true", help="train nothing, ask the models that are there")
    parser.add_argument("--draw", action="store_true", help="draw results/probe.json, and measure nothing")
    args = parser.parse_args()
    if args.draw:
        for task, runs in read_json(RESULTS / "probe.json")["runs"].items():
            report(task, runs)
        return
    torch.set_num_threads(1)
    tasks = args.task or [*TASKS]
    wanted = [(task, name, seed) for task in tasks for seed in args.seed or range(3) for name in args.model or MODELS]
    for task, name, seed in [] if args.report else wanted:
        folder = folder_of(task, name, seed)
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            record = train_probe(ProbeTerms(task, steps=args.steps, seed=seed, **MODELS[name]), folder)
            print(task, name, seed, f"{record['processor_seconds']:.0f} s", flush=True)
    found = {task: [ask(*each) for each in wanted if each[0] == task and folder_of(*each).exists()] for task in tasks}
    for task, runs in found.items():
        if runs:
            report(task, sorted(runs, key=lambda run: [*MODELS].index(run["name"])))
    result = {
        "options": dataclasses.asdict(ProbeOptions()), "versions": library_versions(),
        "machine": f"{platform.machine()}, {platform.processor()}, 1 thread", "runs": found,
    }  # fmt: skip
    write_text(RESULTS / "probe.json", json.dumps(result, indent=None) + "\n")


if __name__ == "__main__":
    main()
