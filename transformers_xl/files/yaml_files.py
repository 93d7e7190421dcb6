"""YAML as people mean it: `1:00` and `010` are text, not 60 and 8 as in YAML 1.1, and a key stands once. Nothing is
executed, or larger than it looks."""

import re
from pathlib import Path
from typing import Any

import yaml

from transformers_xl.files.blaming import blamed
from transformers_xl.files.plain_files import read_text

MAX_BYTES = 1 << 20
MAX_NODES = 100_000  # with what its aliases stand for: nine lines of ten aliases each are a billion values
MAX_DEPTH = 64
INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$")
FLOAT = re.compile(
    r"""(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?
    |\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
EXPONENT = re.compile(r"[-+]?(?:[0-9]+|[0-9]*\.[0-9]+|[0-9]+\.)[eE][-+]?[0-9]+$")
OTHERS = ("int", "float", "timestamp")  # that are read otherwise, or as text


class PlainLoader(yaml.SafeLoader):
    """A loader of plain values that counts what aliases stand for before it makes any of it."""

    def get_single_node(self) -> Any:
        try:
            node = super().get_single_node()
        except RecursionError as error:
            raise _too_deep() from error
        if node is not None:
            _check_size(node)
        return node


class FileLoader(PlainLoader):
    """Of a file."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in OTHERS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


class ValueLoader(FileLoader):
    """Of a value on the command line: `1e-4` is a number, as jsonargparse makes one of it in a file too."""


FileLoader.add_implicit_resolver("tag:yaml.org,2002:int", INTEGER, list("-+0123456789"))
FileLoader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))
ValueLoader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789."))


def load_yaml(text: str) -> Any:
    """The value that a text holds.

    Raises:
        ValueError: it is no YAML of plain values, is more than `MAX_DEPTH` levels deep, or its aliases stand for more than
            `MAX_NODES` values or for what they are in.
    """
    try:
        return yaml.load(text, PlainLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML of plain values ({error})") from error


def read_yaml(path: Path) -> Any:
    """What a file holds.

    Raises:
        ValueError: it is no YAML, or a key is given twice.
    """
    with blamed(path):
        return yaml.load(read_text(path, MAX_BYTES), Loader=FileLoader)


def load_value(text: str) -> Any:
    """The value that `text` spells.

    Raises:
        yaml.YAMLError: it spells none, or a key is given twice.
    """
    value = yaml.load(text, Loader=ValueLoader)
    if value is None and text.strip().lower() not in ("", "null", "~"):
        return text  # it begins with a `#`, which is a comment in a file
    # `{a, b}` and `a:` are no settings
    return (
        text if isinstance(value, dict) and value and not any(each is not None for each in value.values()) else value
    )


def _check_size(root: yaml.Node) -> None:
    """Refuse what is too deep or too large once its aliases are written out; `sizes`: of the nodes that are counted."""
    sizes: dict[int, int] = {}
    inside: list[yaml.Node] = []

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            return sizes[id(node)]
        if len(inside) > MAX_DEPTH or any(node is each for each in inside):
            raise _too_deep()
        inside.append(node)
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        pairs = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
        sizes[id(node)] = 1 + sum(map(size, pairs))
        inside.pop()
        return sizes[id(node)]

    if size(root) > MAX_NODES:
        raise yaml.YAMLError(f"its aliases stand for more than {MAX_NODES:,} values: write out what is meant")


def _too_deep() -> yaml.YAMLError:
    return yaml.YAMLError(f"it is more than {MAX_DEPTH} levels deep, or in itself")


__all__ = ["load_value", "load_yaml", "read_yaml"]
