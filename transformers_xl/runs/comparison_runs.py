"""What a separate process of a comparison does: try a setting, run a model from a seed, time the steps of all models."""

import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from transformers_xl.files.output_folder import output_folder
from transformers_xl.hub.measurements import device_name, library_versions
from transformers_xl.runs.comparison_models import ComparedModel
from transformers_xl.runs.comparison_plan import ComparisonPlan
from transformers_xl.runs.comparison_search import Setting
from transformers_xl.runs.comparison_statistics import bits
from transformers_xl.runs.comparison_texts import comparison_tokenizer, read_comparison_texts
from transformers_xl.runs.comparison_training import Diverged, Training


def try_setting(name: str, plan: ComparisonPlan, setting: Setting) -> dict[str, Any]:
    """Bits per byte of the validation documents, after a short training from seed 0; None: it diverged."""
    _be_quiet()
    model, texts = ComparedModel(name, plan), read_comparison_texts(plan)
    built = model.build(0, setting.start)
    steps = plan.search.steps
    training = Training(built, model.reading, texts.train, plan, setting, steps)
    try:
        nats = training.run(texts.validation.ids, [steps])[steps]
    except Diverged:
        return {"bits_per_byte": None}
    return {"bits_per_byte": float(bits(nats).sum() / texts.validation.num_bytes.sum())}


def run(name: str, seed: int, plan: ComparisonPlan, setting: Setting, kept: Path | None = None) -> dict[str, Any]:
    """Train a model from a seed with the setting that was chosen, and score the test documents on the way. `kept` is a
    folder to write the trained model and its tokenizer to.

    Raises:
        ValueError: the training diverged.
    """
    _be_quiet()
    model, texts = ComparedModel(name, plan), read_comparison_texts(plan)
    memory_before = peak_memory()
    built = model.build(seed, setting.start)
    training = Training(built, model.reading, texts.train, plan, setting, plan.steps)
    started = time.process_time()
    try:
        scores = training.run(texts.test.ids, plan.scored_after)
    except Diverged as error:
        raise ValueError(f"`models.{name}`: with {setting.name} and seed {seed} {error} Remove its trials.") from error
    if kept is not None:
        with output_folder(kept) as new:
            built.save_pretrained(new)
            comparison_tokenizer(plan.tokenizer).save_pretrained(new)
    return {
        "parameters": built.num_parameters(),
        "intermediate_size": model.width,
        "documents": texts.test.names,
        "bytes": texts.test.num_bytes.tolist(),
        # of each document, after each of the steps that the plan names
        "bits": {str(step): bits(nats).round(3).tolist() for step, nats in scores.items()},
        "seconds_with_scores": round(time.process_time() - started, 1),
        "peak_memory": peak_memory(),
        "memory_before": memory_before,
        "versions": versions(),
    }


def time_steps(plan: ComparisonPlan, settings: dict[str, Setting], rounds: int) -> dict[str, Any]:
    """Seconds of a training step of each model, of the processor, or, on a GPU, of the clock: all models in one process, in
    turns of as many steps as the longest block has segments; the least of all turns, since what else runs on a machine
    only ever adds. Before them each reads twice what its memory holds."""
    _be_quiet()
    texts = read_comparison_texts(plan)
    on_gpu, trainings = torch.cuda.is_available(), {}
    models = {name: ComparedModel(name, plan) for name in settings}
    turn = int(np.lcm.reduce([each.reading.block // plan.segment_length for each in models.values()]))
    for name, model in models.items():
        built = model.build(0, settings[name].start)
        trainings[name] = Training(built, model.reading, texts.train, plan, settings[name], plan.steps)
    fill = -(-(2 * plan.mem_len // plan.segment_length) // turn) + 1
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    for _ in range(fill + rounds):
        for name, training in trainings.items():
            seconds[name].append(_seconds_of(training, turn, on_gpu) / turn)
    return {
        "seconds_per_step": {name: min(each[fill:]) for name, each in seconds.items()},
        "clock": "the clock" if on_gpu else "the processor",
        "rounds": rounds,
        "steps_per_round": turn,
        "versions": versions(),
    }


def _be_quiet() -> None:
    """transformers and torch say which kernels Mamba-2 and the LSTM lack, in every process."""
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", message="LSTM with projections")


def _seconds_of(training: Training, steps: int, on_gpu: bool) -> float:
    clock = time.perf_counter if on_gpu else time.process_time
    if on_gpu:
        torch.cuda.synchronize()  # a call returns before the GPU is done
    start = clock()
    for _ in range(steps):
        training.step()  # reads the loss back: the GPU is done with the step before
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - start


def peak_memory() -> int:
    """The most bytes that this process had in memory so far; on a GPU, in the GPU's memory."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def versions() -> dict[str, str]:
    """The libraries and the machine."""
    return library_versions() | {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "machine": device_name(torch.device("cpu")),
    }


__all__ = ["peak_memory", "run", "time_steps", "try_setting", "versions"]
