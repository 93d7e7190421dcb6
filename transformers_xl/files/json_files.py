"""JSON files, which anybody may have written: of a saved model, and of texts."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from transformers_xl.files.plain_files import read_plain

# The tokenizer.json of Gemma 3, the largest that is common, has 33 MB, 6 levels and 515 thousand lists.
MAX_BYTES = 1 << 26
MAX_DEPTH = 32
MAX_TEXT_DEPTH = 256  # of JSON that texts stand in: pyarrow ends the process some thousands of levels deep
MAX_LINE = 1 << 28  # bytes of a line of a text in JSON
MAX_CONTAINERS = 2_000_000  # an empty list takes 3 bytes of a file, and 64 of memory
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}\n'))
_STRING = re.compile(rb'"[^"\n]*["\n]')  # a line feed ends it: no JSON has one in a string
_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


def read_json(path: Path) -> dict[str, Any]:
    """The object that a file holds.

    Raises:
        ValueError: it holds none, is not a regular file, or is larger or deeper than that of any model.
        OSError: it cannot be read.
    """
    data = read_plain(path, MAX_BYTES)
    depth, containers = _measured(data)
    _check_depth(depth, MAX_DEPTH, str(path))
    if containers > MAX_CONTAINERS:
        raise ValueError(f"{str(path)!r} holds {containers:,} lists and objects: at most {MAX_CONTAINERS:,} are read.")
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise ValueError(f"{str(path)!r} holds a {type(value).__name__}: it must hold a JSON object.")
    return value


def check_stream(stream: BinaryIO, name: str, chunk_bytes: int = 1 << 24) -> None:
    """Raise a `ValueError` where JSON, or lines of it, are deeper than pyarrow can read them, which would not say so."""
    depth, rest = 0, b""
    while chunk := stream.read(chunk_bytes):
        *lines, rest = (rest + chunk).rsplit(b"\n", 1)
        if lines:
            depth = _checked(lines[0], depth, name)
        elif len(rest) > MAX_LINE:
            raise ValueError(f"{name!r} has a line of more than {MAX_LINE:,} bytes: part it.")
    _checked(rest, depth, name)


def json_lines(lines: Iterable[str | bytes], name: str) -> Iterator[Any]:
    """The values of lines of JSON, which are those of the file `name`."""
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name!r}, line {number}, is no JSON: give one object a line.") from error


def _check_depth(depth: int, most: int, name: str) -> None:
    if depth > most:
        raise ValueError(f"{name!r} is not JSON that is read: it is more than {most} levels deep.")


def _checked(data: bytes, before: int, name: str) -> int:
    steps = _steps(data)
    if not len(steps):
        return before
    depths = before + steps.cumsum(dtype=np.int64)
    _check_depth(int(depths.max()), MAX_TEXT_DEPTH, name)
    return max(0, int(depths[-1]))


def _measured(data: bytes) -> tuple[int, int]:
    """How many levels deep JSON is, and how many lists and objects it holds."""
    steps = _steps(data)
    return int(steps.cumsum(dtype=np.int64).max(initial=0)), int((steps > 0).sum())


def _steps(data: bytes) -> np.ndarray:
    """1 for each bracket that opens, -1 for each that closes, outside of strings."""
    without_escapes = data.replace(rb"\\", b"").replace(rb"\"", b"")
    structure = without_escapes.translate(None, _NOT_STRUCTURE)
    brackets = _STRING.sub(b"", structure + b"\n").replace(b"\n", b"")
    return _STEPS[np.frombuffer(brackets, dtype=np.uint8)]


__all__ = ["check_stream", "json_lines", "read_json"]
