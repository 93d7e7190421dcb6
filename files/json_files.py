"""JSON files of a saved model, which anybody may have written."""

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """The object that a file holds.

    Raises:
        ValueError: it holds none.
        OSError: it cannot be read.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise ValueError(f"{str(path)!r} holds a {type(value).__name__}: it must hold a JSON object.")
    return value


__all__ = ["read_json"]
