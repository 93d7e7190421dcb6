"""What a run measured, in `training_metrics.json` beside the weights: written by the run, read with every value checked.

The file names the weights that it is about by their hash, so that no figure outlives them.
"""

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, cast, get_args, get_origin, get_type_hints

import torch
import transformers
from transformers import PreTrainedModel

from transformers_xl.configuration.configuration_compressive_transformer import CompressiveTransformerConfig
from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig
from transformers_xl.files.atomic_write import write_text
from transformers_xl.files.digests import sha256
from transformers_xl.files.json_files import read_json
from transformers_xl.files.processor import processor
from transformers_xl.hub.adapter_folders import ADAPTER_WEIGHTS

FILE = "training_metrics.json"
PACKAGE = __name__.partition(".")[0]
# figures of an evaluation, and what they are per
FIGURES = {
    "bits_per_byte": "bytes", "bits_per_character": "characters", "perplexity": "tokens", "word_perplexity": "words",
}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """What was read.

    Attributes:
        name: names of its files, without their folders, and which part of them.
        sha256: of what `sha256_of` says, `"bytes"` or the token ids of a stream.
        bytes, tokens: how long it is; None where that is not known.
        dataset, revision, task_id: the data set on the Hub that it is, its commit, and the task in its eval.yaml.
    """

    name: str
    sha256: str
    sha256_of: str
    bytes: int | None
    tokens: int | None
    dataset: str | None = None
    revision: str | None = None
    task_id: str | None = None


@dataclass(frozen=True)
class Lengths:
    """All lengths that a figure depends on, in tokens. `layer_mem_lens`: what each layer keeps. `compressed_mem_len`, in
    compressed vectors: None where nothing is compressed. `clamp_len` None: off. `overlap`: those of a segment that are
    context from the one before."""

    segment_length: int
    mem_len: int
    layer_mem_lens: tuple[int, ...]
    compressed_mem_len: int | None
    same_length: bool
    clamp_len: int | None
    lanes: int
    overlap: int = 0


@dataclass(frozen=True)
class Training:
    """A training, of its last call where it was resumed: `seconds`, `tokens` and `loss` (nats, the mean over steps) count
    from `first_step` on. `arguments` are those of `command`."""

    data: Text | None
    lengths: Lengths
    first_step: int
    steps: int
    seconds: float
    tokens: int | None
    tokens_per_second: float | None
    loss: float | None
    learning_rate: float
    gradient_accumulation_steps: int
    processes: int
    seed: int
    dtype: str
    device: str
    command: str | None
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """How well a text was predicted, with memory or without.

    bits per byte = nats / ln 2 / bytes, and so of characters; perplexity = exp(nats / tokens), and so of words. None: not
    counted, or above what a float can hold.
    """

    data: Text
    lengths: Lengths
    memory: bool
    bits_per_byte: float
    nats: float
    tokens: int
    bytes: int
    seconds: float
    tokens_per_second: float
    dtype: str
    device: str
    command: str
    characters: int | None = None
    words: int | None = None
    perplexity: float | None = None
    word_perplexity: float | None = None
    bits_per_character: float | None = None


@dataclass(frozen=True)
class Measurements:
    """The whole file."""

    variant: str
    parameters: int
    weights_sha256: str
    versions: dict[str, Any]
    training: Training | None = None
    evaluations: tuple[Evaluation, ...] = ()
    log: tuple[dict[str, Any], ...] = field(default=())

    def with_known(self, known: "Measurements | None") -> "Measurements":
        """These, with what is `known` of the same weights: their evaluations, and their training where a resumed one had no
        step left to take."""
        if known is None or known.weights_sha256 != self.weights_sha256:
            return self
        trained_on = self.training is not None and self.training.steps > self.training.first_step
        return replace(
            known.with_evaluations(self.evaluations),
            training=self.training if trained_on else known.training or self.training,
            versions=self.versions,
            log=self.log,
        )

    def with_evaluations(self, added: Iterable[Evaluation]) -> "Measurements":
        """These too, in the place of those of the same text read in the same way."""
        kept = {(each.data.sha256, each.lengths, each.memory): each for each in self.evaluations}
        kept |= {(each.data.sha256, each.lengths, each.memory): each for each in added}
        return replace(self, evaluations=tuple(kept.values()))


def measurements_of(model: PreTrainedModel, folder: Path, **parts: Any) -> Measurements:
    """The measurements of a model whose weights `folder` holds.

    Raises:
        ValueError: `folder` has no weights.
    """
    digest = weights_digest(folder)
    return Measurements(model.config.model_type, model.num_parameters(), digest, library_versions(), **parts)


def library_versions() -> dict[str, str]:
    modules = {"torch": torch, "transformers": transformers, PACKAGE: sys.modules[PACKAGE]}
    return {name: str(module.__version__) for name, module in modules.items()}


def lengths_of(model: PreTrainedModel, lanes: int, segment_length: int | None = None, memory: bool = True) -> Lengths:
    config = cast(MemoryConfig, model.config)
    compressed = config.compressed_mem_len if isinstance(config, CompressiveTransformerConfig) else None
    memory = memory or config.initial_memory == "zeros"  # which attention reads also where nothing is remembered
    return Lengths(
        segment_length=segment_length or config.segment_length,
        mem_len=config.mem_len if memory else 0,
        layer_mem_lens=tuple(length if memory else 0 for length in config.layer_mem_lens),
        compressed_mem_len=compressed and (compressed if memory else 0),
        same_length=config.same_length,
        clamp_len=config.clamp_len if isinstance(config, RelativeAttentionConfig) and config.clamp_len > 0 else None,
        lanes=lanes,
    )


def device_name(device: torch.device) -> str:
    """The name of a GPU, or of the processor with the threads that are used of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = str(processor())
    return f"{name}, {torch.get_num_threads()} threads" if device.type == "cpu" else f"{device.type}, {name}"


def weights_digest(folder: Path) -> str:
    """What `cat model*.safetensors | sha256sum` prints, or, of a folder of adapters, `cat adapter_model*.safetensors`.

    Raises:
        ValueError: there is no such file.
    """
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob(ADAPTER_WEIGHTS))
    if not files:
        raise ValueError(
            f"`folder`={str(folder)!r} has no model.safetensors: give a folder that `save_pretrained` wrote."
        )
    return sha256(*files)


def write_measurements(folder: Path, measurements: Measurements) -> Path:
    """Write the file; what is no number in the log becomes null.

    Raises:
        ValueError: a value that no run can have measured, such as NaN bits per byte; nothing is written.
    """
    value = asdict(replace(measurements, log=()))
    value["log"] = [{name: _or_none(each) for name, each in row.items()} for row in measurements.log]
    text = json.dumps(value, indent=2)
    _parsed(json.loads(text), FILE)
    write_text(folder / FILE, text + "\n")
    return folder / FILE


def read_measurements(folder: Path) -> Measurements | None:
    """What `folder` says of its weights; None without a file.

    Raises:
        ValueError: a value is missing, unknown, negative, NaN or of another type, or the figures are of other weights.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    measurements = _parsed(read_json(path), str(path))
    if measurements.weights_sha256 != weights_digest(folder):
        raise ValueError(
            f"{path}: `weights_sha256` is not that of the weights in the folder: the results belong to other weights, "
            "measure again with `transformers-xl evaluate --record`."
        )
    return measurements


def known_measurements(folder: Path) -> Measurements | None:
    """As [`read_measurements`], to be added to; None also where the file is of other weights, and has to make room."""
    try:
        return read_measurements(folder)
    except ValueError:
        return None


def _parsed(value: Any, where: str) -> Measurements:
    measurements = _read(Measurements, value, where, "")
    for index, each in enumerate(measurements.evaluations):
        key = f"evaluations[{index}]"
        for name in ("bytes", "tokens", "seconds"):
            if not getattr(each, name):
                _refuse(where, f"{key}.{name}", getattr(each, name), "above 0")
        _check_figures(each, where, key)
    return measurements


def _check_figures(each: Evaluation, where: str, key: str) -> None:
    """Refuse a figure that the nats do not give."""
    for name, unit in FIGURES.items():
        found, count = getattr(each, name), getattr(each, unit)
        if found is None:
            continue
        is_bits = name.startswith("bits")
        nats = found * math.log(2) if is_bits else math.log(found) if found else -1.0
        if not count or not math.isclose(nats, each.nats / count, rel_tol=1e-6):
            _refuse(where, f"{key}.{name}", found, f"nats / ln 2 / {unit}" if is_bits else f"exp(nats / {unit})")


def _read(kind: Any, value: Any, where: str, key: str) -> Any:
    """`value`, found under `key`, as a `kind`: a data class of this file, or one of the types of its fields."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        if not isinstance(value, dict):
            _refuse(where, key, value, f"an object with {', '.join(hints)}")
        prefix = f"{key}." if key else ""
        for name in value:
            if name not in hints:
                _refuse(where, prefix + name, value[name], "left out: there is no such key")
        for each in fields(kind):
            if each.name not in value and each.default is MISSING:
                raise ValueError(f"{where}: `{prefix}{each.name}` is missing: train or measure again.")
        found = {name: _read(hint, value[name], where, prefix + name) for name, hint in hints.items() if name in value}
        return cast(Any, kind)(**found)
    if isinstance(kind, UnionType):
        return None if value is None else _read(get_args(kind)[0], value, where, key)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            _refuse(where, key, value, "a list")
        return tuple(_read(get_args(kind)[0], each, where, f"{key}[{i}]") for i, each in enumerate(value))
    kind = get_origin(kind) or kind
    if type(value) is not kind and not (kind is float and type(value) is int):
        _refuse(where, key, value, f"of type {kind.__name__}")
    if kind in (int, float) and not (math.isfinite(value) and value >= 0):
        _refuse(where, key, value, "a number that is not negative")
    for name, each in value.items() if kind is dict else ():
        if _or_none(each) is not each:
            _refuse(where, f"{key}.{name}", each, "a number")
    return value


def _or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _refuse(where: str, key: str, value: Any, wanted: str) -> NoReturn:
    raise ValueError(f"{where}: `{key}`={value!r} must be {wanted}: train or measure again.")


__all__ = [
    "FILE",
    "Evaluation",
    "Lengths",
    "Measurements",
    "Text",
    "Training",
    "device_name",
    "known_measurements",
    "lengths_of",
    "library_versions",
    "measurements_of",
    "read_measurements",
    "weights_digest",
    "write_measurements",
]  # fmt: skip
