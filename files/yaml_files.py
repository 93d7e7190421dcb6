"""YAML as people mean it: `1:00` and `010` are text, not 60 and 8 as in YAML 1.1, and a key stands once."""

import re
from pathlib import Path
from typing import Any

import yaml

from transformers_xl.files.blaming import blamed

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


class FileLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Of a file. Nothing in it is executed."""

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
ValueLoader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))
ValueLoader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789."))


def read_yaml(path: Path) -> Any:
    """What a file holds.

    Raises:
        ValueError: it is no YAML, or a key is given twice.
    """
    with blamed(path):
        return yaml.load(path.read_text(encoding="utf-8"), Loader=FileLoader)


def load_value(text: str) -> Any:
    """The value that `text` spells.

    Raises:
        yaml.YAMLError: it spells none, or a key is given twice.
    """
    value = yaml.load(text, Loader=ValueLoader)
    # `{a, b}` and `a:` are no settings
    return (
        text if isinstance(value, dict) and value and not any(each is not None for each in value.values()) else value
    )


__all__ = ["load_value", "read_yaml"]
