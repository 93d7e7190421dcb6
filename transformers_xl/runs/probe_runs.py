"""The measurement of `transformers-xl probe`: saved models, asked what they were told some tokens ago."""

import dataclasses
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from transformers_xl.evaluation.context_curve import remembers
from transformers_xl.evaluation.probe import probe, reach
from transformers_xl.evaluation.probe_options import ProbeOptions
from transformers_xl.evaluation.probe_tasks import ProbeTask, find_task
from transformers_xl.files.blaming import blamed
from transformers_xl.files.json_files import read_json
from transformers_xl.runs.loading import load_weights
from transformers_xl.runs.probe_terms import PROBE_FILE, ProbeTerms
from transformers_xl.runs.probe_training import trained_options


def measure_probe(
    folders: dict[str, Path], task_name: str | None, lengths: list[int], options: ProbeOptions, progress: bool
) -> dict[str, Any]:
    """Accuracy by distance of each model: as it was trained, and with each of `lengths` as its memory or context.

    A model that `train-probe` did not write is asked by `options` alone.

    Raises:
        ValueError: models were trained for several tasks or for none and `task_name` is None, or a model cannot be asked.
    """
    trained = {name: read_terms(folder) for name, folder in folders.items()}
    task = _task_of(task_name, trained)
    for name, folder in folders.items():
        if 0 in lengths and remembers(load_weights(folder, any_kind=True)):
            raise ValueError(f"`length`=0 is no length of a memory, which {name} has: it must be at least 1.")
    rows = {}
    for name, folder in folders.items():
        model, terms = load_weights(folder, any_kind=True), trained[name]
        asked = options
        if terms is not None:
            as_trained = trained_options(model, terms)
            asked = dataclasses.replace(options, length=as_trained.length, segment_length=as_trained.segment_length)
        rows[name] = probe_row(model, task, asked, progress)
        for length in lengths:
            longer = dataclasses.replace(asked, length=length)
            rows[f"{name}, length {length}"] = probe_row(model, task, longer, progress)
    return {"task": task.name, "chance": task.chance, "models": rows}


def probe_row(
    model: PreTrainedModel, task: ProbeTask, options: ProbeOptions, progress: bool = False
) -> dict[str, Any]:
    """What one model answers, for JSON."""
    score = probe(model, task, options, progress)
    return {
        "model_type": model.config.model_type,
        "options": dataclasses.asdict(options),
        "reach": dataclasses.asdict(reach(model, options)),
        "bins": score.bins,
        "asked": score.asked,
        "right": score.right,
        "accuracy": score.accuracy,
        "intervals": score.intervals,
        "half": score.half,
    }


def read_terms(folder: Path) -> ProbeTerms | None:
    """How a model was trained for the probe; None where it was not.

    Raises:
        ValueError: its file is damaged.
    """
    file = folder / PROBE_FILE
    if not file.is_file():
        return None
    with blamed(file):
        try:
            return ProbeTerms(**read_json(file)["terms"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"it holds no settings of `transformers-xl train-probe` ({error}): remove it.") from error


def _task_of(name: str | None, trained: dict[str, ProbeTerms | None]) -> ProbeTask:
    tasks = {terms.task for terms in trained.values() if terms is not None}
    if name is None and len(tasks) != 1:
        raise ValueError(
            f"`task`=None: these models were trained for {', '.join(sorted(tasks)) or 'none'}; say which task to ask, with "
            "--task."
        )
    return find_task(name or tasks.pop())


__all__ = ["measure_probe", "probe_row", "read_terms"]
