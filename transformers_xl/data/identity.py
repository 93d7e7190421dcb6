"""What a stream must have in common with the one that a run began on, for the run to resume."""

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np


def digest_of(rows: Iterable[np.ndarray]) -> str:
    """SHA-256 of rows of integers, joined, whatever the type that holds them."""
    digest = hashlib.sha256()
    for row in rows:
        for start in range(0, len(row), 1 << 20):  # a memory map is read in pieces
            digest.update(row[start : start + (1 << 20)].astype("<i8").tobytes())
    return digest.hexdigest()


def check_identity(saved: Mapping[str, int | str], found: Mapping[str, int | str]) -> None:
    """Compare the `identity` of the stream that a checkpoint was written on with that of the stream at hand.

    Raises:
        ValueError: a field differs; the message names it, with both values.
    """
    for field in sorted(saved.keys() | found.keys()):
        if saved.get(field) != found.get(field):
            raise ValueError(
                f"`{field}`={found.get(field)!r} is not that of the checkpoint, {saved.get(field)!r}: a run resumes only "
                "where its rows find their next tokens. Give the original value, or start a new run."
            )


__all__ = ["check_identity", "digest_of"]
