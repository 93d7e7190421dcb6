"""What a misspelled name may have meant."""

import difflib
from collections.abc import Iterable


def nearest_names(name: str, known: Iterable[str], cutoff: float) -> list[str]:
    """Up to three of the `known` names that are spelled like `name`, nearest first; only those with which it begins, if
    there are such: `mem_length` is rather `mem_len` than `segment_length`.

    Args:
        cutoff: the least similarity, between 0 and 1, as `difflib` measures it.
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=max(len(known), 1), cutoff=cutoff)
    return ([each for each in close if name.startswith(each)] or close)[:3]


__all__ = ["nearest_names"]
