"""Tokens on disk: what was tokenised once is read from a file the next time."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from transformers_xl.files.atomic_write import atomic_write
from transformers_xl.files.digests import sha256


def tokenizer_digest(tokenizer) -> str:
    """SHA-256 of all that a tokenizer saves: two that are equal tokenise alike."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return file_digest(path for path in sorted(Path(folder).rglob("*")) if path.is_file())


def file_digest(paths: Iterable[Path]) -> str:
    """SHA-256 of the contents of files, in their order, which also tells where one ends and the next begins."""
    return hashlib.sha256("".join(map(sha256, paths)).encode()).hexdigest()


def cached_arrays(
    folder: str | os.PathLike | None, key: dict[str, Any], make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The arrays that `make` gives, from a safetensors file in `folder` if an equal `key` has been written there.

    An interrupted write leaves no file, and two processes may write at once. A file that cannot be read is written again.
    Arrays from the file are mapped into memory, not read.

    Args:
        folder: where the files are; None: no cache.
        key: all that the arrays depend on, for JSON.
        make: makes the arrays.
    """
    if folder is None:
        return make()
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    path = Path(folder) / f"tokens-{name[:32]}.safetensors"
    try:
        # through torch, whose tensors are views of the mapped file
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118  it is no dictionary
    except (FileNotFoundError, SafetensorError):
        arrays = make()
    with atomic_write(path) as new:
        new.write_bytes(save(arrays))
    return arrays


__all__ = ["cached_arrays", "file_digest", "tokenizer_digest"]
