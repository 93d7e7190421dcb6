"""What claims share that are measured on the split of Python's library (examples/library_corpus.py): training on its
modules for training, rates chosen on those for validation, and bits of each module of the test, for intervals over seeds
and modules."""

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from claim_runs import FOLDER, Record, Records, Run, Session
from library_corpus import write_parts
from transformers import PreTrainedModel

from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.document_losses import document_losses
from transformers_xl.runs.comparison_statistics import Interval, interval
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer

LANES = 20


def split_folder() -> Path:
    """The split, as `examples/library_corpus.py` writes it."""
    folder = FOLDER / "library"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_parts(folder)
    return folder


@cache
def documents(folder: Path, part: str) -> dict[str, np.ndarray]:
    """The modules of `train`, `valid` or `test`, as bytes `(tokens,)`, by name."""
    lines = (folder / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()
    encode = ByteTokenizer().encode_bytes
    return {row["name"]: np.array(encode(row["text"].encode())) for row in map(json.loads, lines)}


@dataclass(frozen=True)
class SplitRun(Run):
    """A byte model that is trained on the modules for training, as one text.

    Args:
        rates: learning rates to choose from, instead of that of `terms`.
    """

    rates: tuple[float, ...] = ()

    def stream(self, text: Path) -> TextStream:
        ids = np.concatenate([*documents(text, "train").values()])
        return TextStream(ids, self.terms.segment_length, self.terms.batch_size)


def module_bits(model: PreTrainedModel, session: Session, part: str, memory: bool = True) -> Record:
    """`bits` per byte of all modules together, those of `modules` by name, and the `bytes` of each that are predicted."""
    modules = documents(session.text, part)
    if session.steps is not None:  # to try it
        modules = {name: modules[name][:200] for name in [*modules][:3]}
    found = document_losses(model, modules.values(), lanes=min(LANES, len(modules)), memory=memory)
    bits = {name: float(np.nansum(nats)) / math.log(2) for name, nats in zip(modules, found, strict=True)}
    counts = {name: len(ids) - 1 for name, ids in modules.items()}
    return {
        "bits": round(sum(bits.values()) / sum(counts.values()), 4),
        "modules": {name: round(bits[name] / counts[name], 4) for name in bits},
        "bytes": counts,
    }


def at_its_rate(session: Session, run: SplitRun) -> tuple[SplitRun, dict[str, float]]:
    """A run at the rate that is best on the modules for validation, with seed 0; and the bits of each rate there."""
    runs = {rate: replace(run, rates=(), terms=replace(run.terms, learning_rate=rate)) for rate in run.rates}
    bits = {rate: _validation_bits(session, each) for rate, each in runs.items()}
    return runs[min(bits, key=bits.__getitem__)], {str(rate): found for rate, found in bits.items()}


_SCORED: dict[str, float] = {}  # all seeds of a run ask the same models


def _validation_bits(session: Session, run: SplitRun) -> float:
    key = json.dumps([run.settings(), str(session)])
    if key not in _SCORED:
        _SCORED[key] = module_bits(session.trained(run, 0)[0], session, "valid")["bits"]
    return _SCORED[key]


def train_and_score_modules(session: Session, run: SplitRun, seed: int) -> Record:
    """The record of a run: its rate, what each rate gave, and the test's bits, in all and of each module."""
    chosen, by_rate = at_its_rate(session, run)
    model, training = session.trained(chosen, seed)
    chose = {"learning_rate": chosen.terms.learning_rate, "validation bits by rate": by_rate}
    return {**training, **chose, **module_bits(model, session, "test")}


def difference(records: Records, weights: dict[str, float]) -> Interval:
    """The sum of runs by these factors, as 1 and -1 for a difference."""
    num_bytes = np.array([*records[next(iter(weights))][0]["bytes"].values()])
    per_byte = {run: np.array([[*row["modules"].values()] for row in records[run]]) for run in weights}
    return interval([factor * per_byte[run] * num_bytes for run, factor in weights.items()], num_bytes)
