"""Results that are written whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write `text` to `path`; what was there before stays where that fails."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as workspace:
        new = Path(workspace, path.name)
        new.write_text(text, encoding="utf-8")
        os.replace(new, path)


__all__ = ["write_text"]
