"""What a tokenizer begins a text with: the ids that a model which was trained with it has seen before every text.

Many language models of transformers (Llama, Gemma, Mistral) have learned from texts that begin with a special token,
and predict badly where it is missing. It stands wherever a model has read nothing yet, and nowhere else.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

PROBES = ("a", "1", ".")  # any text of at least one token


def beginning_of(tokenizer: Any) -> list[int]:
    """The ids that stand before the text in `tokenizer(text)`; none for the tokenizers of this package.

    An end of text, or what else is added after the text, is no part of it.

    Raises:
        ValueError: the tokenizer adds ids, and the text is not found among them.
    """
    if _ids(tokenizer, "") == tokenizer("", add_special_tokens=False)["input_ids"]:
        return []
    for probe in PROBES:
        try:
            text, whole = tokenizer(probe, add_special_tokens=False)["input_ids"], _ids(tokenizer, probe)
        except ValueError:  # a closed vocabulary
            continue
        starts = [start for start in range(len(whole)) if whole[start : start + len(text)] == text]
        if text and starts:
            return list(whole[: starts[0]])
    raise ValueError(
        f"`tokenizer` is a {type(tokenizer).__name__} that adds {_ids(tokenizer, '')} to a text, and what it puts before "
        "it cannot be told: give a tokenizer that adds its ids around the text."
    )


def begun(ids: Sequence[int], beginning: Sequence[int]) -> list[int]:
    """The ids of a text that begins with `beginning`, once, also where it does so already."""
    return [*beginning, *without_beginning(ids, beginning)]


def without_beginning(ids: Any, beginning: Sequence[int] | np.ndarray) -> Any:
    """The ids, a list or an array, without `beginning` where they begin with it."""
    size = len(beginning)
    return ids[size:] if size and list(ids[:size]) == list(beginning) else ids


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text)["input_ids"]


__all__ = ["beginning_of", "begun", "without_beginning"]
