"""What the files of this folder share: a claim of a paper, small byte models trained for it, and a verdict from
numbers.

Each file is a command: it runs what is not done, prints its verdict, and draws; with `--report`, of what is there. A
claim has runs and seeds; each gives one record in `results/claims/NAME.json`, and one that is there with the same
settings is not run again. Models are kept in `build/claims/`, by their settings: claims share them. Training is that
of `transformers-xl compare` (AdamW, cosine). Seconds are those of the processor.
"""

import argparse
import hashlib
import json
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer

from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.bits_per_byte import score_text
from transformers_xl.evaluation.context_curve import context_curve
from transformers_xl.evaluation.plots import line, save
from transformers_xl.files.atomic_write import atomic_write
from transformers_xl.files.digests import sha256
from transformers_xl.files.output_folder import output_folder
from transformers_xl.files.processor import processor
from transformers_xl.hub.measurements import library_versions
from transformers_xl.runs.baselines import BASELINES
from transformers_xl.runs.comparison_terms import ComparisonTerms
from transformers_xl.runs.fitting import build_model, fit, read_texts
from transformers_xl.runs.loading import import_models

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "examples"))
from library_corpus import write_one_text  # noqa: E402

FOLDER = ROOT / "build" / "claims"
RESULTS = ROOT / "benchmarks" / "results" / "claims"
SCORED = 32_768  # held-out bytes
TERMS = ComparisonTerms(hidden_size=64, layers=2, heads=2, mem_len=64, steps=400, learning_rate=3e-3)
START = {"initializer_range": 0.079}  # sqrt(2 / (5 width)): 0.02 is for wide models (docs/memory_worth.md)
Record = dict[str, Any]


def library_text() -> Path:
    """The sources of Python's library as one text, tables included, whose end is held out: what claims were measured on
    before `examples/library_corpus.py` parted whole modules."""
    path = FOLDER / "library.txt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_one_text(path)
    return path


def import_log() -> Path:
    """What `python -v` says while it imports torch and transformers: a log that every machine can write, 1 MB."""
    path = FOLDER / "imports.txt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        code = "import torch._dynamo, transformers.trainer, transformers.models.auto.modeling_auto, matplotlib.pyplot"
        run = subprocess.run([sys.executable, "-v", "-c", code], capture_output=True, text=True, check=True)
        lines = [
            line
            for line in run.stderr.splitlines()
            if "object at" in line or " matches " in line or "code obj" in line
        ]
        short = re.sub(r" object at 0x[0-9a-f]+", "", "\n".join(lines)).replace(
            sysconfig.get_path("purelib") + "/", ""
        )
        path.write_text(short.replace(sysconfig.get_path("stdlib") + "/", "") + "\n", encoding="utf-8")
    return path


def text_digest(text: Path) -> str:
    """A SHA-256 of a text, or of the files of a folder of texts."""
    return sha256(*(sorted(text.glob("*.jsonl")) or sorted(text.glob("*.*")))) if text.is_dir() else sha256(text)


@dataclass(frozen=True)
class Run:
    """A byte model and its training.

    Args:
        model: its type, or a baseline of `compare`.
        terms: sizes and training.
        fields: more of its config.
        intermediate_size: inner width of the feed-forwards.
        initial_mem_len: positions that it remembers at first, where the memory grows in the first half of the steps.
    """

    model: str
    terms: ComparisonTerms = TERMS
    fields: dict[str, Any] = field(default_factory=dict)
    intermediate_size: int = 256
    initial_mem_len: int | None = None

    def build(self, seed: int) -> PreTrainedModel:
        """The untrained model."""
        if self.model in BASELINES:
            return BASELINES[self.model](self.terms, seed, self.intermediate_size)
        variant = import_models()[self.model]
        return build_model(variant, self.terms, seed, self.intermediate_size, **START | self.fields)

    def stream(self, text: Path) -> TextStream:
        """What it is trained on."""
        return read_texts([text], self.terms)[0]

    def fit(self, model: PreTrainedModel, text: Path, terms: ComparisonTerms, seed: int) -> Trainer:
        """Train a model; what trained it."""
        with tempfile.TemporaryDirectory() as folder:
            return fit(model, self.stream(text), terms, seed, Path(folder), self.initial_mem_len)

    def settings(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Verdict:
    """What the records say. `held`: None where they decide nothing, because seeds lie on both sides, or an interval
    includes zero. `intervals`: mean, low and high end by name, which the results keep."""

    held: bool | None
    numbers: str
    intervals: dict[str, tuple[float, float, float]] = field(default_factory=dict)


def ruled(held: bool, opposite: bool) -> bool | None:
    """`held` of a verdict: every seed speaks for the claim, every seed against it, or neither."""
    return True if held else False if opposite else None


class Records(dict[str, list[Record]]):
    """The records of each run, in the order of seeds."""

    def of(self, run: str, name: str) -> list[float]:
        return [record[name] for record in self[run]]

    def shown(self, run: str, name: str, digits: int = 3) -> str:
        """Mean, and the range where there are several seeds."""
        values = self.of(run, name)
        spread = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
        return f"{statistics.mean(values):.{digits}f}{spread}"

    def below(self, lower: str, upper: str, name: str) -> bool:
        """Whether every seed of one run lies below every seed of another."""
        return max(self.of(lower, name)) < min(self.of(upper, name))


@dataclass(frozen=True)
class Session:
    """Where claims are measured: the text, a folder of models, and steps that stand for those of the runs, to try it."""

    text: Path
    models: Path
    steps: int | None = None

    def terms_of(self, run: Run) -> ComparisonTerms:
        short = {} if self.steps is None else {"steps": self.steps, "warmup_steps": min(run.terms.warmup_steps, 1)}
        return replace(run.terms, **short)

    def held_out(self, count: int = SCORED) -> np.ndarray:
        return read_texts([self.text], TERMS)[1][: count if self.steps is None else 1280]

    def trained(self, run: Run, seed: int) -> tuple[PreTrainedModel, Record]:
        """A model, and of its training: `seconds`, `parameters` and `losses` (nats, every 20 steps)."""
        key = json.dumps([run.settings(), asdict(self.terms_of(run)), seed, text_digest(self.text)], sort_keys=True)
        folder = self.models / f"{run.model}-{hashlib.sha256(key.encode()).hexdigest()[:16]}-{seed}"
        if not folder.exists():
            self._train(run, seed, folder)
        record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        return AutoModelForCausalLM.from_pretrained(folder).eval(), record

    def _train(self, run: Run, seed: int, folder: Path) -> None:
        model = run.build(seed)
        start = time.process_time()
        trainer = run.fit(model, self.text, self.terms_of(run), seed)
        seconds = round(time.process_time() - start, 1)
        losses = [round(row["loss"], 4) for row in trainer.state.log_history if "loss" in row]
        record = {"seconds": seconds, "parameters": model.num_parameters(), "losses": losses}
        with output_folder(folder) as new:
            model.save_pretrained(new)
            (new / "training.json").write_text(json.dumps(record) + "\n", encoding="utf-8")


def bits(model: PreTrainedModel, held_out: np.ndarray, memory: bool = True) -> float:
    """Bits per byte, read as in training."""
    return round(score_text(model, held_out, lanes=4, memory=memory).bits_per_byte, 4)


def memory_bits(model: PreTrainedModel, held_out: np.ndarray, lengths: list[int]) -> Record:
    """Bits per byte with memories of other lengths than that of training, as `bits at N`; 0: each segment alone."""
    curve = context_curve(model, held_out, lengths, batch_size=4)
    return {f"bits at {length}": round(score.bits_per_byte, 4) for length, score in curve.items()}


def train_and_score(session: Session, run: Run, seed: int) -> Record:
    """The record of a claim that compares models by the bits per byte of held-out text."""
    model, training = session.trained(run, seed)
    return {**training, "bits": bits(model, session.held_out())}


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and how it is decided.

    Args:
        name: that of its file, its results and its picture.
        says: the claim.
        source: paper and section.
        held_if: what decides it, fixed before it was measured.
        runs: settings of each run, by name.
        measure: the record of a run from a seed.
        verdict: what the records say.
        draw: a picture of the records; None where it would show seeds and nothing else.
        beyond: what these sizes leave open, and the command that would tell.
        also: other results (without folder and ending) whose numbers its text gives.
        given: the numbers of its text that are settings, or other people's (tests/helpers/measured_numbers.py).
        worked_out: those that follow from the results in more than a mean.
        no_power: why seeds that all speak against the claim would say nothing at these sizes; "": they say something.
        seeds: how many of each run.
        text: writes the text that it is measured on by default.
    """

    name: str
    says: str
    source: str
    held_if: str
    runs: dict[str, Any]
    measure: Callable[[Session, Any, int], Record]
    verdict: Callable[[Records], Verdict]
    draw: Callable[[Records], Figure] | None
    beyond: str
    seeds: int = 3
    no_power: str = ""
    given: str = ""
    worked_out: str = ""
    also: tuple[str, ...] = ()
    text: Callable[[], Path] = library_text

    def settings_of(self, run: str) -> Any:
        settings = self.runs[run]
        return json.loads(json.dumps(settings.settings() if isinstance(settings, Run) else settings))

    def read(self, results: Path) -> Records:
        """The records that are there with the settings of today."""
        file = results / f"{self.name}.json"
        rows = json.loads(file.read_text(encoding="utf-8"))["records"] if file.exists() else []
        found = Records({run: [] for run in self.runs})
        for row in rows:
            if row["run"] in found and row["settings"] == self.settings_of(row["run"]):
                found[row["run"]].append(row)
        return found

    def decide(self, results: Path) -> Verdict | None:
        """None: not run to the end."""
        records = self.read(results)
        if not all(records.values()):
            return None
        verdict = self.verdict(records)
        return replace(verdict, held=None) if self.no_power and verdict.held is False else verdict

    def run(self, session: Session, results: Path, seeds: range) -> None:
        """Make the records that are missing, one seed of all runs after the other, and write each as it is made.

        Raises:
            ValueError: the records that are there were measured on another text.
        """
        file, text = results / f"{self.name}.json", text_digest(session.text)
        if file.exists() and json.loads(file.read_text(encoding="utf-8"))["text"]["sha256"] != text:
            raise ValueError(
                f"`text`={session.text}: {file} was measured on another. Give another folder, with --results."
            )
        for seed in seeds:
            for name, settings in self.runs.items():
                records = self.read(results)
                if seed in [row["seed"] for row in records[name]]:
                    continue
                row = {"run": name, "seed": seed, "settings": self.settings_of(name)}
                records[name].append(row | self.measure(session, settings, seed))
                shown = {key: value for key, value in records[name][-1].items() if isinstance(value, float)}
                print(f"{self.name}: {name}, seed {seed}: {shown}", flush=True)
                self.write(records, session, results)

    def write(self, records: Records, session: Session, results: Path) -> None:
        rows = [row for run in records.values() for row in sorted(run, key=lambda row: row["seed"])]
        text = {"name": session.text.name, "sha256": text_digest(session.text)}
        intervals = self.verdict(records).intervals if all(records.values()) else {}
        result = {"claim": self.says, "text": text, "machine": machine()}
        result |= {"intervals": intervals} if intervals else {}
        result["records"] = rows
        results.mkdir(parents=True, exist_ok=True)
        with atomic_write(results / f"{self.name}.json") as new:
            Path(new).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    def write_intervals(self, verdict: Verdict, results: Path) -> None:
        """Those of today's statistics, in the place of those that a run wrote."""
        file = results / f"{self.name}.json"
        result = json.loads(file.read_text(encoding="utf-8"))
        found = json.loads(json.dumps(verdict.intervals))
        if result.get("intervals", {}) != found:
            with atomic_write(file) as new:
                Path(new).write_text(json.dumps(result | {"intervals": found}, indent=1) + "\n", encoding="utf-8")

    def report(self, results: Path) -> None:
        """Print the verdict and draw the picture of the records that are there."""
        verdict = self.decide(results)
        if verdict is None:
            print(f"{self.name}: not run to the end")
            return
        self.write_intervals(verdict, results)
        if self.draw is not None:
            save(self.draw(self.read(results)), results / f"{self.name}.png")
        print(f"{self.name}: {outcome(verdict)}. {verdict.numbers}")


def outcome(verdict: Verdict | None) -> str:
    if verdict is None:
        return "not run"
    return {True: "held", False: "not held", None: "out of reach here"}[verdict.held]


def draw_seeds(axes: Axes, records: Records, name: str, runs: list[str] | None = None) -> None:
    """A row for each run, a mark for each seed, a line at the mean; the axis is a twentieth of its place long at least."""
    runs = runs or list(records)
    for row, run in enumerate(runs):
        values = records.of(run, name)
        axes.plot(values, [row] * len(values), "o", color="black", alpha=0.6)
        axes.plot([statistics.mean(values)] * 2, [row - 0.25, row + 0.25], color="black")
    axes.set_yticks(range(len(runs)), runs)
    axes.set_ylim(len(runs) - 0.5, -0.5)
    low, high = axes.get_xlim()
    middle = (low + high) / 2
    half = max(high - low, middle / 20) / 2
    axes.set_xlim(middle - half, middle + half)


def draw_curves(axes: Axes, records: Records, name: str, places: list[int]) -> None:
    """A line for each run through the means of `name` with each of `places` in it, and the range of seeds."""
    for index, run in enumerate(records):
        seeds = [records.of(run, name.format(place)) for place in places]
        style = line(index, len(records))
        axes.plot(places, [statistics.mean(values) for values in seeds], label=run, **style)
        low, high = [min(values) for values in seeds], [max(values) for values in seeds]
        axes.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.legend()


def machine() -> dict[str, str]:
    """The processor, the threads and the libraries."""
    return library_versions() | {
        "processor": str(processor()),
        "threads": str(torch.get_num_threads()),
    }


def main(claim: Claim, arguments: list[str] | None = None) -> None:
    """The command of a claim."""
    parser = argparse.ArgumentParser(description=claim.says)
    parser.add_argument("--text", type=Path, help="a text file; by default one that every machine has")
    parser.add_argument("--seeds", type=int, default=claim.seeds)
    parser.add_argument("--steps", type=int, help="of every run, to try the claim: give another --results too")
    parser.add_argument("--models", type=Path, default=FOLDER / "models")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="of the records that are there: measure nothing")
    args = parser.parse_args(arguments)
    if args.steps is not None and args.results == RESULTS:
        parser.error(f"`--steps` {args.steps} makes no result of the claim: give another folder, with --results.")
    if not args.report:
        torch.set_num_threads(1)
        session = Session(args.text or claim.text(), args.models, args.steps)
        claim.run(session, args.results, range(args.seeds))
    claim.report(args.results)
