"""The sections of a run as dataclasses, and their fields as a user reads them: type, default, and meaning."""

import dataclasses
import inspect
import re
import textwrap
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin

import yaml

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.runs.run_config import (
    SET_BY_OPTIONS,
    DataSection,
    LoraSection,
    MemorySection,
    ModelSection,
    TokenizerSection,
    memory_section,
    model_section,
)
from transformers_xl.training.arguments import MemoryTrainingArguments

SECTIONS = ("model", "memory", "tokenizer", "data", "training", "lora")
WIDTH = 100  # columns
# of a docstring: `name: text`, `name, other: text`, or transformers' "name (`type`, *optional*):" with the text below
ENTRY = re.compile(r" {4}(\w+(?:, \w+)*) ?(?:\(.*\))?:(?: (.*))?$")


def section_classes(config_class: type[MemoryConfig] | type[SegmentMemoryConfig]) -> dict[str, type]:
    """The dataclass of each section, for a variant's config."""
    return {
        "model": model_section(config_class),
        "memory": memory_section(),
        "tokenizer": TokenizerSection,
        "data": DataSection,
        "training": MemoryTrainingArguments,
        "lora": LoraSection,
    }


def section_help(section: str, config_class: type[MemoryConfig] | type[SegmentMemoryConfig]) -> str:
    """The fields of a section with their types, defaults and meaning, for a variant's config.

    Raises:
        ValueError: there is no such section.
    """
    if section not in SECTIONS:
        raise ValueError(f"`fields`={section!r} is not a section: give one of {', '.join(SECTIONS)}.")
    section_class: Any = section_classes(config_class)[section]
    documented = {"model": (config_class, ModelSection), "memory": (SegmentMemoryConfig, MemorySection)}
    meanings: dict[str, str] = {}
    for each in documented.get(section, (section_class,)):
        meanings |= _meanings(each)
    lines = []
    for field in dataclasses.fields(section_class):
        if field.init and not (section == "training" and field.name in SET_BY_OPTIONS):
            lines.append(f"--{section}.{field.name}  ({type_name(field.type)}, default {_default(field)})")
            lines += textwrap.wrap(
                meanings.get(field.name, ""), WIDTH - 4, initial_indent="    ", subsequent_indent="    "
            )
    return "\n".join(lines) + "\n"


def type_name(annotation: Any) -> str:
    """A type as it is written, without the modules of its parts."""
    if get_origin(annotation) in (Union, UnionType):  # parsers of others write one for the other
        return " | ".join("None" if each is NoneType else type_name(each) for each in get_args(annotation))
    written = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return re.sub(r"(?:\w+\.)+(?=\w)", "", written if "[" not in str(annotation) else str(annotation))


def _default(field: Any) -> str:
    """As YAML has it."""
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    value = value.value if isinstance(value, Enum) else value
    return cast(str, yaml.safe_dump(value, default_flow_style=True)).removesuffix("...\n").strip()


def _meanings(documented: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of each field; those of the class count."""
    found: dict[str, list[str]] = {}
    for each in reversed(documented.__mro__):
        names: list[str] = []
        for line in inspect.cleandoc(each.__doc__ or "").splitlines():
            if entry := ENTRY.match(line):
                names = entry[1].split(", ")
                found |= {name: [entry[2] or ""] for name in names}
            elif line.strip() and not line.startswith(" " * 8):
                names = []
            else:
                for name in names:
                    found[name].append(line.strip())
    return {name: " ".join(lines).strip() for name, lines in found.items()}


__all__ = ["SECTIONS", "section_classes", "section_help", "type_name"]
