"""The plan of a comparison, a YAML file that `transformers-xl compare` reads (no torch: the command reads it first)."""

import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import jsonargparse

from transformers_xl.files.blaming import blamed
from transformers_xl.files.yaml_files import read_yaml

SCALED, DEFAULT = "scaled", "default"  # starts of weights that are named
SCHEDULES = ("constant", "cosine", "linear")
NAME = re.compile(r"[A-Za-z0-9_.-]+")  # of a model: files are named after it


@dataclass(frozen=True)
class Texts:
    """The texts, each a file or a folder of files.

    Args:
        train: what is trained on, its files in the order of their names, one after the other.
        validation: documents, a file each, that settings are chosen on.
        test: documents, a file each, that are scored in the end.
    """

    train: str
    validation: str
    test: str


@dataclass(frozen=True)
class Entry:
    """A model of the comparison.

    Args:
        type: model type; the name of the entry when not given.
        mem_len: length of its memory, in tokens; that of the plan when not given.
        block: tokens that a model without memory reads at once, and of which it predicts all; those of a segment and of the
            memory when not given. A multiple of `segment_length`.
        carry: a model whose state is a cache of transformers (Mamba-2) reads segments with the state of those before.
        fields: more fields of its config.
    """

    type: str | None = None
    mem_len: int | None = None
    block: int | None = None
    carry: bool = False
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Search:
    """What is tried for each model, on the validation documents and with seed 0, before the runs that count.

    Args:
        trials: most trainings for a model.
        steps: steps of each.
        starts: standard deviations that weights start from: numbers, `"scaled"` (`sqrt(2 / (5 hidden_size))`), or
            `"default"`, that of the model's own config.
        rate: learning rate to begin with.
        factor: ratio of one learning rate to the next.
        schedules: of the learning rate after its warm-up: `"constant"`, `"cosine"` or `"linear"`; the first is that of all
            trials but those of the others.
    """

    trials: int = 6
    steps: int = 250
    starts: list[float | str] = field(default_factory=lambda: [SCALED, 0.02, DEFAULT])
    rate: float = 2e-3
    factor: float = 2.0
    schedules: list[str] = field(default_factory=lambda: ["constant"])


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared, and how.

    Args:
        texts: where the texts are.
        models: the models, by name.
        reference: the model that the others are compared with.
        tokenizer: folder of a tokenizer of transformers whose tokens are read; bytes when not given. It must give back
            what it reads, so that bits are those of the text.
        search: what is tried for each.
        seeds: runs of each, with seeds 0, 1, ...
        steps: training steps.
        points: steps after which the test documents are scored; the last is `steps`.
        hidden_size: width of the models.
        layers: number of layers.
        heads: attention heads per layer.
        parameters: of each model, within 3 %; those of a Transformer-XL whose feed-forward is four times as wide as it when
            not given.
        mem_len: length of the memory, in tokens.
        segment_length: tokens per segment.
        batch_size: lanes of text that are read side by side. A step reads `batch_size * segment_length` tokens.
        dropout: probability of dropout.
        warmup_steps: steps of linear warm-up, in which the learning rate grows.
        document_bytes: bytes of each document, from its beginning; all when not given.
    """

    texts: Texts
    models: dict[str, Entry]
    reference: str
    tokenizer: str | None = None
    search: Search = field(default_factory=Search)
    seeds: int = 3
    steps: int = 1000
    points: list[int] = field(default_factory=list)
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    parameters: int | None = None
    mem_len: int = 128
    segment_length: int = 64
    batch_size: int = 16
    dropout: float = 0.0
    warmup_steps: int = 50
    document_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("seeds", "steps", "hidden_size", "layers", "heads", "segment_length", "batch_size"):
            _at_least(1, name, getattr(self, name))
        for name in ("mem_len", "warmup_steps"):
            _at_least(0, name, getattr(self, name))
        if self.document_bytes is not None:
            _at_least(2, "document_bytes", self.document_bytes)
        for point in self.points:
            if not 1 <= point <= self.steps:
                raise ValueError(f"`points` holds {point}: give steps from 1 to `steps`={self.steps}.")
        if self.reference not in self.models:
            raise ValueError(f"`reference`={self.reference!r} is none of the models: {', '.join(self.models)}.")
        _check_search(self.search)
        for name, entry in self.models.items():
            self._check_entry(name, entry)

    def _check_entry(self, name: str, entry: Entry) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"`models`: {name!r} cannot be the name of a file: give letters, digits, _, - and dots.")
        if entry.block is not None and (entry.block < 1 or entry.block % self.segment_length):
            raise ValueError(
                f"`models.{name}.block`={entry.block} must be a multiple of `segment_length`={self.segment_length}."
            )
        if entry.block is not None and entry.carry:
            raise ValueError(
                f"`models.{name}.carry`=True reads segments: leave `block`={entry.block} out, or make two entries."
            )
        if entry.mem_len is not None:
            _at_least(0, f"models.{name}.mem_len", entry.mem_len)

    @property
    def scored_after(self) -> list[int]:
        """The steps after which the test documents are scored."""
        return sorted({*self.points, self.steps})

    def settings(self, name: str) -> dict[str, Any]:
        """What a run of a model depends on, as it is written beside it: neither the other models nor the number of seeds
        or trials, so that more of them can be added."""
        shared = asdict(self)
        for each in ("models", "reference", "seeds", "texts"):
            del shared[each]
        del shared["search"]["trials"]
        return shared | {"model": asdict(self.models[name])}


def read_plan(path: Path) -> ComparisonPlan:
    """The plan that a YAML file holds.

    Raises:
        ValueError: it holds none; the message names the field.
    """
    found = read_yaml(path)
    with blamed(path):
        if not isinstance(found, dict):
            raise ValueError("it holds no fields: see docs/comparison.md.")
        return plan_of(found)


def plan_of(values: dict[str, Any]) -> ComparisonPlan:
    """The plan with these fields.

    Raises:
        ValueError: a field is not known, is missing, or has a value of another type.
    """
    missing = [each.name for each in fields(ComparisonPlan)[:3] if each.name not in values]
    if missing:
        raise ValueError(
            f"`{missing[0]}` is missing: a plan says which texts, which models, and which is the reference."
        )
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--plan", type=ComparisonPlan)
    models = values["models"]
    if not isinstance(models, dict) or not models:
        raise ValueError(f"`models`={models!r} must have a name and fields for each model.")
    for name, entry in models.items():
        if not isinstance(entry, dict | None):
            raise ValueError(
                f"`models.{name}`={entry!r} must be fields, or nothing: leave out a model that takes no part."
            )
    values = values | {"models": {str(name): {} if entry is None else entry for name, entry in models.items()}}
    try:
        return parser.instantiate(parser.parse_object({"plan": values})).plan
    except jsonargparse.ArgumentError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _check_search(search: Search) -> None:
    for name in ("trials", "steps"):
        _at_least(1, f"search.{name}", getattr(search, name))
    if not search.starts or not search.schedules:
        raise ValueError("`search.starts` and `search.schedules` must hold at least one value each.")
    for start in search.starts:
        if start not in (SCALED, DEFAULT) and not (isinstance(start, (int, float)) and start > 0):
            raise ValueError(f"`search.starts` holds {start!r}: give numbers above 0, {SCALED!r} or {DEFAULT!r}.")
    for schedule in search.schedules:
        if schedule not in SCHEDULES:
            raise ValueError(f"`search.schedules` holds {schedule!r}: give one of {', '.join(SCHEDULES)}.")
    if not search.rate > 0:
        raise ValueError(f"`search.rate`={search.rate} must be above 0.")
    if not search.factor > 1:
        raise ValueError(f"`search.factor`={search.factor} must be above 1.")


def _at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise ValueError(f"`{name}`={value} must be at least {least}.")


__all__ = ["DEFAULT", "SCALED", "ComparisonPlan", "Entry", "Search", "Texts", "plan_of", "read_plan"]
