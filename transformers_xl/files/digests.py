"""Hashes of files."""

import hashlib
from pathlib import Path


def sha256(*files: Path) -> str:
    """Of the contents of files, one after the other: what `cat FILES | sha256sum` prints."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


__all__ = ["sha256"]
