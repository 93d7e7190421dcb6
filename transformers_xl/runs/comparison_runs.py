"""The runs of `transformers-xl compare`: the models at equal parameters, and one model trained from one seed and measured.

Every run is a separate process, forked from one that has imported the libraries and done nothing else: its peak of memory
is its own, and what fails takes nothing else with it.
"""

import base64
import multiprocessing
import os
import resource
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from functools import cache, partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.data.text_stream import TextStream
from transformers_xl.evaluation.bits_per_byte import score_text
from transformers_xl.evaluation.context_curve import score_windows
from transformers_xl.evaluation.context_losses import longest_window, spread_positions, token_losses_with_context
from transformers_xl.files.digests import sha256
from transformers_xl.files.output_folder import output_folder
from transformers_xl.hub.measurements import device_name, library_versions
from transformers_xl.modeling.auto import Variant
from transformers_xl.runs.baselines import BASELINES, WindowStream
from transformers_xl.runs.comparison_terms import ComparisonSettings, ComparisonTerms, RECLPlan
from transformers_xl.runs.fitting import build_model, fit, prepare_for_inference, read_texts
from transformers_xl.runs.learning_curve import LearningCurve
from transformers_xl.runs.loading import import_models
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer

# terms, seed, inner width of the feed-forward
Builder = Callable[[ComparisonTerms, int, int], PreTrainedModel]

TOLERANCE = 0.03  # of the parameters
STEPS_OF_CONTEXT, BLOCKS, POSITIONS = 24, 16, 48  # what RECL is measured on
POINTS = 10  # of a learning curve
SHORTER = 4  # times that a run which tries a learning rate is shorter than one that counts
# fields of a variant beside the shared ones: a memory of about the size of the feed-forward that it stands for; one head,
# as the authors' code has, where every head would add a map of all pairs of positions
FIELDS = {
    # several blocks in a segment of training: a write learns from later tokens of the call alone
    "block_recurrent": {"block_length": 16, "num_states": 16},
    "infini_transformer": {"mem_len": 16},
    "memorizing_transformer": {"block_length": 16, "num_memory_keys": 1024, "num_retrieved": 8},
    "pkm_transformer": {"num_memory_keys": 32, "memory_topk": 16},
    "recurrent_memory_transformer": {"segment_length": 16},
    "tensorized_transformer": {"num_attention_heads": 1},
}


def builders() -> dict[str, Builder]:
    """How to build each language model, by name: the variants that are made from nothing, and the baselines of
    transformers."""
    rows = {name: row for name, row in import_models().items() if row.causal_lm_class is not None}
    variants = {name: row for name, row in rows.items() if issubclass(row.config_class, MemoryConfig)}
    return {name: partial(_build_variant, row, FIELDS.get(name, {})) for name, row in variants.items()} | BASELINES


def _build_variant(
    row: Variant, fields: dict[str, int], terms: ComparisonTerms, seed: int, intermediate_size: int
) -> PreTrainedModel:
    return build_model(row, terms, seed, intermediate_size, **fields)


def inner_widths(terms: ComparisonTerms, names: list[str]) -> tuple[dict[str, int], int]:
    """The inner width of the feed-forward of each model with which it has as many parameters as the others; that number.

    It is that of a Transformer-XL of the usual shape, or more where any model needs it for a feed-forward of at least its
    width; it does not depend on `names`, so that models can be added later.

    Raises:
        ValueError: a model is not known, or comes no nearer than 3 %.
    """
    known = builders()
    for name in names:
        if name not in known:
            raise ValueError(
                f"`variant`={name!r} is not a language model of this comparison: known are {', '.join(known)}."
            )
    width = terms.hidden_size  # no model refuses it; parameters grow linearly with it
    at_width = {}
    for name in known:
        try:
            at_width[name] = _count(name, terms, width)
        except ValueError:  # of a model that these settings exclude
            if name in names:
                raise
    target = max(_count("transformer_xl", terms, 4 * width), *at_width.values())
    widths = {}
    for name in names:
        widths[name], parameters = _width_of(target, name, terms)
        if abs(parameters / target - 1) > TOLERANCE:
            raise ValueError(
                f"`hidden_size`={width}: {name} has {parameters:,} parameters, more than {100 * TOLERANCE:g} % from "
                f"{target:,}: choose a larger width."
            )
    return widths, target


def _width_of(target: int, name: str, terms: ComparisonTerms) -> tuple[int, int]:
    """The inner width with `target` parameters, and how many there are at it: by secants, from the model's width and twice
    as much.

    The first is exact where parameters grow linearly, which they do in all models but the LSTM.
    """
    last, other = 2 * terms.hidden_size, terms.hidden_size
    parameters, before = _count(name, terms, last), _count(name, terms, other)
    for _ in range(4):
        slope = (parameters - before) / (last - other)
        # even, because a complex one has real and imaginary parts
        following = 2 * round((last + (target - parameters) / slope) / 2)
        if following == last:
            break
        (last, other), (parameters, before) = (following, last), (_count(name, terms, following), parameters)
        if abs(parameters / target - 1) <= TOLERANCE:
            break
    return last, parameters


@cache
def _count(name: str, terms: ComparisonTerms, intermediate_size: int) -> int:
    """Parameters of a model, without what exists in training only."""
    model = builders()[name](terms, 0, intermediate_size)
    prepare_for_inference(model)
    return model.num_parameters()


def settings_of(
    texts: list[Path], terms: ComparisonTerms, learning_rates: list[float], parameters: int
) -> ComparisonSettings:
    """What all runs of a comparison share. Contexts begin with one token, the shortest that a causal model can have."""
    longest = terms.mem_len + terms.segment_length
    contexts = list(range(1, longest + 1, max(1, longest // STEPS_OF_CONTEXT)))
    hashes = {path.name: sha256(path) for path in texts}
    points = sorted({max(1, terms.steps * number // POINTS) for number in range(1, POINTS + 1)})
    recl = RECLPlan(contexts, BLOCKS, POSITIONS)
    return ComparisonSettings(hashes, terms, parameters, recl, learning_rates, points)


def in_a_process(function: Callable, *arguments: Any) -> Any:
    """The result of a call in a new process, which ends with this one.

    Raises:
        OSError: the process was killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=end_with_parent) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise OSError(
                "the process of a run was killed, perhaps because memory ran out: the same command resumes it."
            ) from error


def end_with_parent() -> None:
    """End this process when the one that asked for it ends: a command that is killed must not go on training."""

    def wait() -> None:
        cast(BaseProcess, multiprocessing.parent_process()).join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def trained(
    model: PreTrainedModel, stream: TextStream, terms: ComparisonTerms, seed: int, curve: LearningCurve
) -> transformers.Trainer:
    """The trainer of a model, which ends with averaged weights. The learning rate is constant after its warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        return fit(
            model,
            stream_for(model, stream, terms),
            terms,
            seed,
            Path(folder),
            lr_scheduler_type="constant_with_warmup",
            callbacks=[curve],
        )


def try_rate(
    name: str, width: int, texts: list[Path], settings: ComparisonSettings, learning_rate: float
) -> dict[str, Any]:
    """Bits per byte of one model after a shorter training with a learning rate, on the end of a text that begins like that
    of the runs and has no byte of what they hold out."""
    steps = max(1, settings.terms.steps // SHORTER)
    terms = replace(settings.terms, learning_rate=learning_rate, steps=steps)
    stream, held_out, lanes = read_texts(texts, terms, without_held_out=True)
    model = builders()[name](terms, 0, width)
    curve = LearningCurve(lambda model: bits_with_context(model, held_out, lanes, terms), [steps])
    trained(model, stream, terms, 0, curve)
    return {"model": name, "settings": settings.to_dict(), "learning_rate": learning_rate, **asdict(curve.points[-1])}


def run(
    name: str,
    seed: int,
    width: int,
    texts: list[Path],
    settings: ComparisonSettings,
    learning_rate: float,
    model_folder: Path | None,
) -> dict[str, Any]:
    """Train one model from one seed, and measure it; `model_folder` is where to leave it."""
    terms = replace(settings.terms, learning_rate=learning_rate)
    stream, held_out, lanes = read_texts(texts, terms)
    memory_before = peak_memory()
    model = builders()[name](terms, seed, width)
    curve = LearningCurve(lambda model: bits_with_context(model, held_out, lanes, terms), settings.points)
    log = trained(model, stream, terms, seed, curve).state.log_history
    memory = peak_memory()
    if model_folder is not None:
        with output_folder(model_folder) as new:
            model.save_pretrained(new)
            ByteTokenizer().save_pretrained(new)
    return {
        "model": name,
        "seed": seed,
        "settings": settings.to_dict(),
        "learning_rate": learning_rate,
        "curve": [asdict(point) for point in curve.points],
        "parameters": model.num_parameters(),
        "intermediate_size": width,
        "train_bytes": len(stream.ids),
        "held_out_bytes": len(held_out),
        "bits_per_byte": scores(model, held_out, lanes, terms),
        "recl_losses": recl_losses(model, held_out, settings.recl),
        "peak_memory": memory,
        "memory_before": memory_before,
        "versions": versions(),
        "train_seconds": next(row["train_runtime"] for row in log if "train_runtime" in row),
        "log": log,
    }


def stream_for(model: PreTrainedModel, stream: TextStream, terms: ComparisonTerms) -> TextStream | WindowStream:
    """What a model is trained on: the stream, or the same segments, with a context where the model can read one."""
    window = longest_window(model)
    if window is None or model.config.model_type not in BASELINES:
        return stream
    return WindowStream(stream, window - terms.segment_length)


def visible(model: PreTrainedModel, terms: ComparisonTerms) -> int:
    """Tokens that a model is given before those that it predicts: those of its memory or window, or half of a segment where
    that is all it can read."""
    window = longest_window(model)
    return terms.segment_length // 2 if window == terms.segment_length else terms.mem_len


def scores(model: PreTrainedModel, held_out: np.ndarray, lanes: int, terms: ComparisonTerms) -> dict[str, float]:
    """Bits per byte of the held-out text: with a memory, or with a context that is read again; and segments alone."""
    alone = score_text(model, held_out, terms.segment_length, lanes, memory=False)
    with_context = bits_with_context(model, held_out, lanes, terms)
    return {"with_context": with_context, "without_context": alone.bits_per_byte}


def bits_with_context(model: PreTrainedModel, held_out: np.ndarray, lanes: int, terms: ComparisonTerms) -> float:
    """The former of the two."""
    window, context = longest_window(model), visible(model, terms)
    if window is None:  # a memory
        return score_text(model, held_out, terms.segment_length, lanes).bits_per_byte
    return score_windows(model, held_out, context, window - context, lanes).bits_per_byte


def recl_losses(model: PreTrainedModel, held_out: np.ndarray, plan: RECLPlan) -> str:
    """Nats by context and position, as base64 of float16, little-endian `(contexts, positions)`."""
    positions = recl_positions(len(held_out), plan)
    losses = token_losses_with_context(model, held_out, plan.contexts, positions)
    return base64.b64encode(losses.astype("<f2").tobytes()).decode()


def recl_positions(tokens: int, plan: RECLPlan) -> np.ndarray:
    """Positions of the tokens that RECL is measured on, in a held-out text of so many.

    Raises:
        ValueError: it is too short.
    """
    spacing = plan.contexts[1] - plan.contexts[0]
    return spread_positions(tokens, plan.contexts[-1], spacing, plan.blocks, plan.positions)[0]


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


__all__ = [
    "TOLERANCE",
    "bits_with_context",
    "builders",
    "in_a_process",
    "inner_widths",
    "recl_positions",
    "run",
    "scores",
    "settings_of",
    "stream_for",
    "try_rate",
    "versions",
    "visible",
]
