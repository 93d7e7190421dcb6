"""A run from a recipe, YAML files and options: each overrides the one before.

jsonargparse reads and checks values: from dataclasses it makes options of nested names (`--training.learning_rate 1e-4`),
and it reads what YAML gave by their types. transformers' HfArgumentParser has one flat namespace; tyro reads no files.
"""

import copy
import dataclasses
import functools
import math
import re
from argparse import ArgumentError
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml
from jsonargparse import ArgumentParser, Namespace, set_loader

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.configuration_memory_encoder_decoder import MemoryEncoderDecoderConfig
from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.configuration.nearest_names import nearest_names
from transformers_xl.files.yaml_files import load_value, load_yaml, read_yaml
from transformers_xl.runs.loading import base_config, import_models
from transformers_xl.runs.run_config import (
    CONFIG_FILE,
    SET_BY_OPTIONS,
    RunConfig,
    memory_fields,
    memory_section,
    model_section,
    recipe_path,
)
from transformers_xl.runs.section_fields import SECTIONS, section_classes, type_name
from transformers_xl.training.arguments import MemoryTrainingArguments

DEFAULT_RECIPE = "small-bytes"
RECIPE_OF_PAIRS = "small-translation"
RECIPES_OF_KIND = {"window": "add-memory-window", "tokens": "add-memory-tokens"}
# what says which model to take, and which memory it gets
CHOICES = (
    *("model.base", "model.variant"),
    *(f"memory.{each.name}" for each in dataclasses.fields(cast(Any, memory_section()))),
)
NAMES = {"model.base", "model.variant", "memory.kind"}
KEYWORDS = ("lr_scheduler_kwargs", "gradient_checkpointing_kwargs", "liger_kernel_config")  # of the training section
MEMORY_FIELDS = {each.name for each in dataclasses.fields(cast(Any, memory_section()))} - {"kind"}
MODEL_OPTION = re.compile(rf"^--model\.({'|'.join(sorted(MEMORY_FIELDS))})(?==|$)")
CHANGEABLE = {"mem_len", "num_sinks", "segment_length", "bptt_segments"}  # of a memory that is there
set_loader(VALUES := "values of a run", load_value, (yaml.YAMLError,))  # of the parser below alone
AnyConfig = MemoryConfig | SegmentMemoryConfig
TIME = re.compile(r"[-+]?\d[\d_]*(:[0-5]?\d)+(\.\d*)?")
Values = dict[str, dict[str, Any]]
# field -> the field that counts in its place, and the value with which it does not: where the options or a file give the
# first alone, it is meant
INSTEAD = {
    "training.num_train_epochs": ("training.max_steps", -1),
    "training.per_device_train_batch_size": ("data.batch_size", None),
    "training.per_device_eval_batch_size": ("data.eval_batch_size", None),
    "model.cutoffs": ("tokenizer.clusters", 0),
}


class Base(NamedTuple):
    """The config of what a run starts from; `is_wrapped_now`: it is a plain model that this run gives a memory."""

    config: AnyConfig
    is_wrapped_now: bool = False


def read_config(
    options: Sequence[str] = (),
    files: Sequence[Path] = (),
    recipe: str | None = None,
    trust_remote_code: bool = False,
) -> RunConfig:
    """A run.

    Args:
        options: words of a command line, such as `["--model.mem_len", "512"]`; they override the files.
        files: YAML files; later ones override earlier ones, and all of them the recipe.
        recipe: name of a recipe of this package. None: that of the memory around `model.base` where that is a model of
            others, else a small model of bytes.
        trust_remote_code: let `model.base` run custom code.

    Raises:
        ValueError: a file is no such YAML, a name is not known (the nearest one is given), or a value has another type.
    """
    given, is_default = [_read(file) for file in files], recipe is None
    shipped = {} if recipe is None else _read(recipe_path(recipe))
    chosen = _choice([*given, _values(options, CHOICES)])
    base = _base(chosen, shipped.get("memory", {}), trust_remote_code)
    if base and isinstance(base.config, SegmentMemoryConfig):
        given, options = [_moved(layer) for layer in given], _moved_options(options)
        if not base.is_wrapped_now:
            learned = _choice([*given, _values(options, CHOICES)])["memory"]
            _check_learned(learned, base.config, chosen["model"]["base"])
    if recipe is None:
        wrapper = base.config if base and isinstance(base.config, SegmentMemoryConfig) else None
        recipe = RECIPE_OF_PAIRS if _gives("data.source", given, options) else DEFAULT_RECIPE
        recipe = recipe if wrapper is None else RECIPES_OF_KIND[wrapper.kind]
        shipped = _read(recipe_path(recipe))
    variant = (
        base.config.model_type if base else chosen["model"].get("variant", shipped.get("model", {}).get("variant"))
    )
    config_class = _config_class(variant, chosen["model"])
    shipped["model"] = {} if base else _fitting(shipped.get("model", {}), config_class)
    shipped["memory"] = _memory_of_recipe(shipped.get("memory", {}), base)
    if _gives("data.path", given, options) and not _gives("tokenizer.path", given, options):
        shipped.pop("tokenizer", None)  # that of the recipe's own texts
    parser = config_parser(config_class, base.config if base else None)
    layers = dict(zip([recipe, *map(str, files)], [shipped, *given], strict=True))
    _check_times(config_class, layers, options)
    with _said(config_class):
        run = RunConfig(**vars(parser.instantiate(_merged(parser, layers, options))))
    _check_values(run)
    rows = ("data.batch_size", "training.per_device_train_batch_size")
    run.batch_is_default = is_default and not any(_gives(name, given, options) for name in rows)
    is_small = is_default and recipe == DEFAULT_RECIPE and base is None
    run.dropout_is_default = is_small and not _gives("model.dropout", given, options)
    lengths = ("training.max_steps", "training.num_train_epochs")
    run.steps_are_default = is_small and not any(_gives(name, given, options) for name in lengths)
    if base and isinstance(base.config, SegmentMemoryConfig):
        SegmentMemoryConfig(text_config=base.config.text_config, **memory_fields(run.memory))  # refuses what cannot be
        if run.model.vocab_size is not None:
            raise ValueError(f"`model.vocab_size`={run.model.vocab_size} is that of `model.base`: leave it out.")
    return run


def _check_values(run: RunConfig) -> None:
    """A training on NaN or infinity would end with weights of NaN; one with keywords that are none, not begin. Those that
    were given as options are read as values of YAML."""
    for name in KEYWORDS:
        if not isinstance(value := getattr(run.training, name, None), dict | None):
            raise ValueError(f"`training.{name}`={value!r} must be an object of keywords, such as {{a: 1}}.")
        if value is not None:
            value |= {key: load_value(each) for key, each in value.items() if isinstance(each, str)}
    for section, fields in run.to_dict().items():
        for name, value in fields.items():
            for each in value if isinstance(value, list) else (value,):
                if isinstance(each, float) and not math.isfinite(each):
                    raise ValueError(f"`{section}.{name}`={each} must be a finite number.")


def _base(chosen: Values, recipe: dict[str, Any], trust_remote_code: bool) -> Base | None:
    """What `model.base` is, with the memory that it has or is to get; `recipe`: the recipe's memory section."""
    name, memory = chosen["model"].get("base"), recipe | chosen["memory"]
    variant = chosen["model"].get("variant", SegmentMemoryConfig.model_type if memory else None)
    if name is None and variant == SegmentMemoryConfig.model_type:  # it can be shown, but cannot begin
        return Base(SegmentMemoryConfig(kind=memory.get("kind", "window")), is_wrapped_now=True)
    if name is None:
        if memory:
            raise ValueError(f"`memory`={memory} is for a model of transformers: name it with `model.base`.")
        return None
    config = base_config(name, trust_remote_code)
    if isinstance(config, SegmentMemoryConfig):
        _check_learned(chosen["memory"], config, name)
        return Base(config)
    is_translator = isinstance(config, MemoryEncoderDecoderConfig)
    if is_translator or config.model_type in import_models():
        if memory:
            raise ValueError(
                f"`memory`={memory} is for a model of transformers: `model.base`={name!r} is a {config.model_type!r} of "
                "this package: the fields of its memory are in `model`, such as `model.mem_len`."
            )
        return Base(cast(Any, config).decoder if is_translator else config)  # of a translator, `model` is both parts
    if "kind" not in memory:
        raise ValueError(
            f"`model.base`={name!r} is a {config.model_type!r}, which has no segment memory: choose one with "
            f"`memory.kind`, {' or '.join(map(repr, RECIPES_OF_KIND))} (docs/pretrained.md)."
        )
    kind, mem_len = memory["kind"], memory.get("mem_len")
    # the default of `num_sinks` follows from it; what cannot be is refused with the other fields
    known: dict[str, Any] = (
        {"mem_len": mem_len} if kind == "window" and isinstance(mem_len, int) and mem_len > 0 else {}
    )
    return Base(SegmentMemoryConfig(text_config=config, kind=kind, **known), is_wrapped_now=True)


def _check_learned(memory: dict[str, Any], config: SegmentMemoryConfig, name: str) -> None:
    """Fields of a memory that is there can change where its weights stay what they are."""
    for field in memory.keys() - CHANGEABLE:
        if memory[field] != getattr(config, field, None):
            raise ValueError(
                f"`memory.{field}`={memory[field]!r} is for a new memory, but `model.base`={name!r} has one with "
                f"{getattr(config, field, None)!r}: leave it out, or take a base without memory."
            )


def _moved(layer: Values) -> Values:
    """A layer of a run around a base, with fields of its memory under `memory`, where `model` has them as it has those of
    other models."""
    model, memory = layer.get("model", {}), layer.get("memory", {})
    moved = {name: model[name] for name in model if name in MEMORY_FIELDS}
    _check_once(sorted(moved.keys() & memory.keys()))
    kept = {name: value for name, value in model.items() if name not in moved}
    return layer | {"model": kept, "memory": memory | moved} if moved else layer


def _moved_options(options: Sequence[str]) -> list[str]:
    """As [`_moved`], of the words of a command line."""
    moved = [MODEL_OPTION.sub(r"--memory.\1", option) for option in options]
    names = [option.partition("=")[0] for option in moved if option not in options]
    others = {option.partition("=")[0] for option in options}
    _check_once([name.removeprefix("--memory.") for name in names if name in others])
    return moved


def _check_once(twice: list[str]) -> None:
    if twice:
        raise ValueError(f"`model.{twice[0]}` is `memory.{twice[0]}` of a base with memory: give one of them.")


def _memory_of_recipe(fields: dict[str, Any], base: Base | None) -> dict[str, Any]:
    """What a recipe says of a memory that is new, and of its kind."""
    wrapped_now = base is not None and base.is_wrapped_now and fields.get("kind") == getattr(base.config, "kind", None)
    return fields if wrapped_now else {}


def _config_class(variant: Any, chosen: dict[str, Any]) -> type[AnyConfig]:
    variants = import_models()
    if variant not in variants or not variants[variant].causal:
        known = ", ".join(name for name, row in variants.items() if row.causal)
        raise ValueError(f"`model.variant`={variant!r} is not a language model of this package: known are {known}.")
    if chosen.get("variant", variant) != variant:
        raise ValueError(
            f"`model.variant`={chosen['variant']!r} is not that of `model.base`={chosen['base']!r}, {variant!r}: leave it "
            "out."
        )
    return variants[variant].config_class


def _merged(parser: ArgumentParser, layers: dict[str, Values], options: Sequence[str]) -> Namespace:
    """The defaults, the layers by their names, and the options: later ones override earlier ones.

    The defaults are there from the start: to merge them again with every layer doubled the time.
    """
    found = parser.get_defaults()
    known = _names(found)
    for where, layer in layers.items():
        given = {f"{section}.{name}" for section, fields in layer.items() for name in fields}
        _check_names(given | {*layer}, known, f"{where}: ")
        try:
            found = parser.parse_object(layer, namespace=_effective(found, given), defaults=False)
        except ArgumentError as error:
            raise ArgumentError(None, f"{where}: {error}") from error
    given = {option.removeprefix("--").partition("=")[0] for option in options}
    _check_names(given, known, "")
    both = [(name, other) for name, (other, _) in INSTEAD.items() if {name, other} <= given]
    if both:
        raise ValueError(f"`{both[0][0]}` has no effect beside `{both[0][1]}`: give one of them.")
    return parser.parse_args(list(options), namespace=_effective(found, given), defaults=False)


def _check_times(config_class: type[AnyConfig], layers: dict[str, Values], options: Sequence[str]) -> None:
    """Refuse `1:30` where a number is asked for: jsonargparse reads it as YAML 1.1 does, in sixties, as 90."""
    classes = section_classes(config_class)
    types = {
        f"{name}.{each.name}": each.type for name in classes for each in dataclasses.fields(cast(Any, classes[name]))
    }
    given = [
        (f"{where}: ", f"{section}.{name}", value)
        for where, layer in layers.items()
        for section, fields in layer.items()
        for name, value in fields.items()
    ]
    for option in options:
        name, _, text = option.removeprefix("--").partition("=")
        with suppress(yaml.YAMLError):  # it is refused where it is read
            given.append(("", name, load_value(text)))
    for where, name, value in given:
        asked = type_name(types[name]) if name in types else "str"
        for each in value if isinstance(value, list) else [value]:
            if "str" not in asked and isinstance(each, str) and TIME.fullmatch(each.strip()):
                raise ValueError(f"{where}`{name}`={each} must be of type {asked}.")


@contextmanager
def _said(config_class: type[AnyConfig]) -> Iterator[None]:
    """Make what jsonargparse says of a value a sentence that names the field, the value, and its type; and name the section
    where the arguments of a training name a field."""
    try:
        yield
    except ValueError as error:
        field = re.match(r"`(\w+)`=", str(error))
        if field is None or field[1] not in MemoryTrainingArguments.__dataclass_fields__:
            raise
        raise ValueError(f"`training.{str(error)[1:]}") from error
    except ArgumentError as error:
        said = " ".join(str(error).split())
        found = re.fullmatch(r'(.*)Parser key "(\w+)\.(\w+)": .*(?:Got|Given) value: (.*)', said)
        if found is None:
            raise ValueError(said) from error
        where, section, name, value = found.groups()
        fields = {
            each.name: each.type for each in dataclasses.fields(cast(Any, section_classes(config_class)[section]))
        }
        raise ValueError(f"{where}`{section}.{name}`={value} must be of type {type_name(fields[name])}.") from error


def read_run(
    words: Sequence[str],
    files: Sequence[Path],
    recipe: str | None,
    resumed: Path | None = None,
    trust_remote_code: bool = False,
) -> RunConfig:
    """A run from the words of a command line: texts, and options of the sections.

    Args:
        words: in any order.
        files, recipe, trust_remote_code: as in [`read_config`].
        resumed: the folder of a run to resume, whose config comes before `files`.

    Raises:
        ValueError: as [`read_config`]; or `resumed` holds no run.
    """
    options, texts = split_options(words)
    if texts:
        if any(option.startswith("--data.path=") for option in options):
            raise ValueError(f"`data.path` is given twice: by {texts[0]!r} and by --data.path. Give one of them.")
        options.append(f"--data.path={yaml.safe_dump(texts, default_flow_style=True, width=10**6).strip()}")
    if resumed is not None:
        if not (resumed / CONFIG_FILE).is_file():
            raise ValueError(f"`output`={str(resumed)!r} has no {CONFIG_FILE}: there is no run to resume.")
        files = [resumed / CONFIG_FILE, *files]
    return read_config(options, files, recipe, trust_remote_code)


def config_parser(config_class: type[AnyConfig], base: AnyConfig | None = None) -> ArgumentParser:
    """The parser of all sections, or of the model of `base`, whose values are the defaults then."""
    parser = _parser_of(config_class)  # type: ignore[arg-type]  # a class is hashable, whatever its instances are
    if base is not None:
        parser = copy.deepcopy(parser)  # its defaults change
        parser.set_defaults(_values_of(base))
    return parser


@functools.cache
def _parser_of(config_class: type[AnyConfig]) -> ArgumentParser:
    parser = ArgumentParser(
        parser_mode=VALUES, exit_on_error=False, default_env=False, allow_abbrev=False, add_help=False
    )
    for section, section_class in section_classes(config_class).items():
        skipped = set(SET_BY_OPTIONS) if section == "training" else None
        parser.add_class_arguments(section_class, section, skip=skipped)
    return parser


def _values_of(base: AnyConfig) -> dict[str, Any]:
    """The fields of a model that stand in a run, as its config has them."""
    if not isinstance(base, SegmentMemoryConfig):
        names = {each.name for each in dataclasses.fields(cast(Any, model_section(type(base))))}
        return {f"model.{name}": getattr(base, name) for name in names - {"variant", "base"}}
    names = {each.name for each in dataclasses.fields(cast(Any, memory_section()))}
    names -= {"memory_initializer_range", "memory_scale"}  # measured where they are not given
    names -= {"mem_len"} if base.kind == "tokens" else set()  # it is the number of memory tokens
    return {f"memory.{name}": getattr(base, name) for name in names}


def split_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What a command line says in dotted options, each with its value, and its other words.

    Raises:
        ValueError: an option has no value, or is in no section.
    """
    options, others, left = [], [], iter(words)
    for word in left:
        if not word.startswith("--"):
            others.append(word)
            continue
        name, equals, rest = word[2:].partition("=")
        name = name.replace("-", "_")
        if name in SECTIONS:
            raise ValueError(f"`--{name}` is a section: write --{name}.FIELD VALUE, or a file, --config FILE.yaml.")
        if "." not in name:
            raise ValueError(f"no such option: {word.partition('=')[0]!r}.{_nearest(name, _all_names())}")
        value = rest if equals else next(left, None)
        if value is None or (not equals and value.startswith("--")):
            raise ValueError(f"`{name}` has no value: write --{name} VALUE.")
        _check_yaml(name, value)
        options.append(f"--{name}={value}")
    return options, others


def _check_yaml(name: str, value: str) -> None:
    """Refuse what jsonargparse would read as YAML, and cannot: what is no list and no object is a text to it."""
    if value[:1] in ("[", "{"):
        try:
            load_yaml(value)
        except ValueError as error:
            raise ValueError(f"`{name}`={value[:60]!r} cannot be read: {' '.join(str(error).split())}.") from error


def _all_names() -> Iterator[str]:
    parser = config_parser(import_models()["transformer_xl"].config_class)
    return (name for names in _names(parser.get_defaults()).values() for name in names)


def _read(file: Path) -> Values:
    """The sections of a YAML file."""
    values = read_yaml(file)
    values = {} if values is None else values
    wrong = [name for name in values if not isinstance(values[name], dict)] if isinstance(values, dict) else [values]
    if wrong:
        raise ValueError(
            f"{str(file)!r}: {wrong[0]!r} is not a section: write sections of fields, {', '.join(SECTIONS)}."
        )
    return values


def _choice(layers: list[Values]) -> Values:
    """What the layers say of the `CHOICES`: the last one counts."""
    chosen: Values = {"model": {}, "memory": {}, "training": {}}
    for layer in layers:
        for section, key in (name.split(".") for name in CHOICES):
            if key in layer.get(section, {}):
                chosen[section][key] = value = layer[section][key]
                if f"{section}.{key}" in NAMES and not isinstance(value, str | None):
                    raise ValueError(f"`{section}.{key}`={value!r} must be of type str.")
    return {
        section: {name: value for name, value in each.items() if value is not None} for section, each in chosen.items()
    }


def _values(options: Sequence[str], names: Sequence[str]) -> Values:
    values: Values = {}
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        if name in names:
            section, _, key = name.partition(".")
            # a name is a name, also where YAML would read a number
            values.setdefault(section, {})[key] = value if name in NAMES and value != "null" else _value(value)
    return values


def _value(text: str) -> Any:
    try:
        return load_value(text)
    except yaml.YAMLError:
        return text


def _gives(name: str, layers: list[Values], options: Sequence[str]) -> bool:
    """Whether one of the layers, or an option, has a field."""
    section, _, field = name.partition(".")
    return any(field in layer.get(section, {}) for layer in layers) or any(
        option.startswith(f"--{name}=") for option in options
    )


def _fitting(fields: dict[str, Any], config_class: type[AnyConfig]) -> dict[str, Any]:
    """What a recipe says of its model; for another variant without the fields that this one gives a default of its own."""
    if fields.get("variant") == config_class.model_type:
        return fields
    shared = {each.name: each.default for each in dataclasses.fields(cast(Any, MemoryConfig))}
    own = {each.name: each.default for each in dataclasses.fields(cast(Any, config_class))}
    return {name: value for name, value in fields.items() if name in shared and own[name] == shared[name]}


def _names(found: Namespace) -> dict[str, set[str]]:
    """The full names of the fields, by section."""
    return {section: {f"{section}.{name}" for name in vars(found[section])} for section in SECTIONS}


def _effective(found: Namespace, given: set[str]) -> Namespace:
    """The values so far, without those that would keep a field that is given now from having an effect."""
    for name, (instead, nothing) in INSTEAD.items():
        if name in given and instead not in given:
            found[instead] = nothing
    return found


def _check_names(names: Iterable[str], known: dict[str, set[str]], where: str) -> None:
    everything = [each for names in known.values() for each in names]
    for name in sorted(names):
        section = name.partition(".")[0]
        if section not in known:
            raise ValueError(f"{where}`{name}` is in no section.{_nearest(section, SECTIONS)}")
        if name in {f"training.{each}" for each in SET_BY_OPTIONS}:
            raise ValueError(f"{where}`{name}` is set by --output and --resume: leave it out.")
        # a field that is a dictionary has keys of its own
        if name != section and ".".join(name.split(".")[:2]) not in known[section]:
            raise ValueError(f"{where}there is no field `{name}`.{_nearest(name, everything)}")


def _nearest(name: str, known: Any) -> str:
    """The known name that is nearest, or has the same last part."""
    known = list(known)
    last = name.rpartition(".")[2]
    same = [each for each in known if each.rpartition(".")[2] == last]
    by_last = {each.rpartition(".")[2]: each for each in known}
    close = same or nearest_names(name, known, cutoff=0.6)
    close = close or list(map(by_last.get, nearest_names(last, by_last, cutoff=0.6)))
    return f" Did you mean `{close[0]}`?" if close else ""


__all__ = ["read_config", "read_run", "split_options"]
