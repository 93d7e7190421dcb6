"""The settings of a run of `transformers-xl train`, in sections that Python, YAML files and the command line share.

`training` is [`~transformers_xl.training.arguments.MemoryTrainingArguments`]; `model` has every field of the config of its
variant ([`model_section`]), `memory` those of the memory around a model of others ([`memory_section`]).
"""

import dataclasses
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

import yaml
from transformers import PreTrainedConfig

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.configuration.nearest_names import nearest_names
from transformers_xl.training.arguments import MemoryTrainingArguments

CONFIG_FILE = "run.yaml"  # of a run, in its folder
# of the training section: set by --output and --resume
SET_BY_OPTIONS = frozenset({"output_dir", "resume_from_checkpoint"})


class ModelSection(Protocol):
    """What all model sections have; [`model_section`] adds the fields of a config.

    Attributes:
        variant: the row of the table of variants.
        base: folder, or repository on the Hub, of a model to fine-tune; its tokenizer is taken along. A language model that
            is none of this package gets the memory of the section `memory`.
        vocab_size: None: that of the tokenizer.
    """

    variant: str
    base: str | None
    vocab_size: int | None


class MemorySection(Protocol):
    """What all memory sections have; [`memory_section`] adds the other fields of the memory around a model of others.

    Attributes:
        kind: "window" or "tokens" (docs/pretrained.md). None: `model.base` is a model of this package, which has a memory
            already, or there is no base.
    """

    kind: str | None


@dataclass
class TokenizerSection:
    """Text to ids.

    Args:
        path: folder, or repository on the Hub, of a tokenizer. None: that of `model.base`; for a new model, that in
            the folder of texts, or else bytes.
        clusters: number of clusters of an adaptive softmax. The tokenizer's word counts give the cutoffs with the least
            expected cost, instead of `model.cutoffs`. 0: use `model.cutoffs`.
    """

    path: str | None = None
    clusters: int = 0


@dataclass
class DataSection:
    """The training text and the held-out text.

    Args:
        path: files, or folders of them: text (.txt, or any other ending; also as .gz, .xz, .zst, or in a .zip, whose member
            is named as in `corpus.zip::member.txt`), JSON lines (.jsonl, .json) and .parquet. A folder with files `train.*`
            gives the held-out text in files `valid.*`, `validation.*`, `val.*` or `dev.*`.
        eval_path: held-out files.
        eval_fraction: share of the text to hold out at its end (of documents, a random choice), if there is no other
            held-out text.
        dataset: dataset on the Hub to read; or, with `path`, the origin of these files, for the card.
        dataset_config: its configuration.
        revision: its commit.
        split, eval_split: its splits for training and to hold out.
        task_id: task of the held-out text in the eval.yaml of a benchmark; for the card.
        streaming: read the dataset, or the JSON lines and .parquet of `path`, during training instead of before. Needs a
            separate held-out text.
        text_field: the field of JSON lines, and the column of datasets, that holds the text.
        documents: `True`: every document starts from an empty memory, and its last segment is padded. `False`: all are one
            stream.
        separator: the text between two documents of a file; None: each file is one document.
        overlap: tokens that a segment shares with the one before, as context that is not predicted again, also in
            evaluation: for models without memory, and texts as one stream.
        vary_lengths: segments of one stream differ in length (as SHA-RNN trains).
        roll: every row of one stream begins at another place in every epoch (as NVIDIA trains).
        append_eos: end each document with the tokenizer's `eos_token`.
        batch_size: batch rows of all processes together; instead of `training.per_device_train_batch_size`.
        eval_batch_size: the same for the held-out text, instead of `training.per_device_eval_batch_size`; fewer if the
            text is short.
        source, target: of a translation: two files whose lines belong together; or, of `path` (JSON lines, Parquet) and
            `dataset`, the fields that hold the two texts, as in `translation.en`. What is trained is an encoder-decoder.
        eval_source, eval_target: held-out files.
        cache_dir: folder to keep tokens in. None: `transformers_xl` in the home of the Hub's cache. "": no cache.
    """

    path: list[str] | str = field(default_factory=list)
    eval_path: list[str] | str = field(default_factory=list)
    eval_fraction: float = 0.1
    dataset: str | None = None
    dataset_config: str | None = None
    revision: str | None = None
    split: str = "train"
    eval_split: str | None = None
    task_id: str | None = None
    streaming: bool = False
    text_field: str = "text"
    documents: bool = False
    separator: str | None = None
    overlap: int = 0
    vary_lengths: bool = False
    roll: bool = False
    append_eos: bool = False
    batch_size: int | None = None
    eval_batch_size: int | None = None
    source: str | None = None
    target: str | None = None
    eval_source: str | None = None
    eval_target: str | None = None
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        self.path, self.eval_path = (
            [paths] if isinstance(paths, str) else list(paths) for paths in (self.path, self.eval_path)
        )


@dataclass
class LoraSection:
    """Train adapters (LoRA, by PEFT) instead of the weights.

    Args:
        r: rank of the adapters; 0: train all weights.
        alpha: adapters are scaled by `alpha / r`. None: 2 `r`.
        dropout: probability of dropout before them.
        target_modules: names of the layers that get one, or "all-linear".
        merge: write the model with its adapters merged into the weights, instead of the adapters.
    """

    r: int = 0
    alpha: int | None = None
    dropout: float = 0.0
    target_modules: list[str] | str = "all-linear"
    merge: bool = False


@cache
def memory_section() -> type[MemorySection]:
    """The dataclass of the `memory` section: the fields of the memory around a model of others. None: as that memory has
    it, or its default."""
    fields: list[Any] = [
        (each.name, each.type | None, field(default=None))
        for each in _own_fields(SegmentMemoryConfig)
        if each.name != "text_config"
    ]
    return make_dataclass("MemorySection", fields)


@dataclass
class RunConfig:
    """A whole run; [`~transformers_xl.runs.run_options.read_config`] makes it of files and options."""

    model: ModelSection
    memory: MemorySection = field(default_factory=lambda: memory_section()())
    tokenizer: TokenizerSection = field(default_factory=TokenizerSection)
    data: DataSection = field(default_factory=DataSection)
    training: MemoryTrainingArguments = field(default_factory=MemoryTrainingArguments)
    lora: LoraSection = field(default_factory=LoraSection)

    def __post_init__(self) -> None:
        # whether nobody gave a number of rows, steps, or a dropout: no sections, and not written
        self.batch_is_default = self.steps_are_default = self.dropout_is_default = False

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The sections as plain values, without tokens of the Hub."""
        sections = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        training = self.training.to_dict()
        kept = [each.name for each in dataclasses.fields(self.training) if each.init and each.name in training]
        plain = {name: dataclasses.asdict(section) for name, section in sections.items() if name != "training"}
        plain["training"] = {
            name: training[name] for name in kept if name not in SET_BY_OPTIONS and not name.endswith("_token")
        }
        return {name: plain[name] for name in sections}

    def to_yaml(self) -> str:
        """The whole run as a file that gives the same run."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, width=1000)


def model_section(config_class: type[MemoryConfig] | type[SegmentMemoryConfig]) -> type[ModelSection]:
    """The dataclass of the `model` section for a variant: `variant`, `base`, and the fields of its config with their types
    and defaults. `vocab_size` None is that of the tokenizer. A model of others is what its base is: it has `base` alone."""
    fields: list[Any] = [
        ("variant", str, field(default=config_class.model_type)),
        ("base", str | None, field(default=None)),
        ("vocab_size", int | None, field(default=None)),
    ]
    for each in _own_fields(config_class) if issubclass(config_class, MemoryConfig) else ():
        if each.name != "vocab_size":
            made = each.default is dataclasses.MISSING
            default: Any = field(default_factory=each.default_factory) if made else field(default=each.default)
            fields.append((each.name, each.type, default))
    return make_dataclass(f"{config_class.__name__.removesuffix('Config')}Section", fields)


def _own_fields(config_class: type) -> list[Any]:
    """The fields of a config that are not in every config of transformers."""
    library = {each.name for each in dataclasses.fields(cast(Any, PreTrainedConfig))}
    fields = dataclasses.fields(cast(Any, config_class))
    return [each for each in fields if each.init and each.name not in library and not each.name.startswith("_")]


def config_fields(section: ModelSection) -> dict[str, Any]:
    """The fields of the config in a model section."""
    fields = dataclasses.asdict(cast(Any, section))
    return {name: value for name, value in fields.items() if name not in ("variant", "base")}


def memory_fields(section: MemorySection) -> dict[str, Any]:
    """What a memory section says."""
    fields = dataclasses.asdict(cast(Any, section))
    return {name: value for name, value in fields.items() if value is not None}


def recipe_names() -> list[str]:
    """The names of the recipes in this package."""
    return sorted(path.stem for path in _recipes().glob("*.yaml"))


def recipe_path(name: str) -> Path:
    """The file of a recipe.

    Raises:
        ValueError: there is none of this name.
    """
    known = recipe_names()
    if name not in known:
        close = nearest_names(name, known, cutoff=0.6)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"`recipe`={name!r} is not known.{meant} Known are {', '.join(known)}.")
    return _recipes() / f"{name}.yaml"


def _recipes() -> Path:
    import transformers_xl.runs.recipes

    return Path(str(transformers_xl.runs.recipes.__file__)).parent


__all__ = [
    "CONFIG_FILE",
    "SET_BY_OPTIONS",
    "DataSection",
    "LoraSection",
    "MemorySection",
    "ModelSection",
    "RunConfig",
    "TokenizerSection",
    "config_fields",
    "memory_fields",
    "memory_section",
    "model_section",
    "recipe_names",
    "recipe_path",
]
