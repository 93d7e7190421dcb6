"""Texts scored one by one, each from an empty memory: what the modules of the `evaluate` library are made of."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from transformers import AutoModelForCausalLM, AutoTokenizer

from transformers_xl.data.files import unpredicted_bytes
from transformers_xl.data.text_beginning import beginning_of, without_beginning
from transformers_xl.data.text_files import count_bytes
from transformers_xl.evaluation.bits_per_byte import TextScore, score_text


def score_texts(
    texts: Sequence[str],
    model: Any,
    tokenizer: Any = None,
    segment_length: int | None = None,
    memory: bool = True,
) -> list[TextScore]:
    """The score of each text, of which all tokens but the first are predicted: of a tokenizer that begins texts with its
    own id, all of the text.

    Args:
        texts: each of at least two tokens, that of the tokenizer included.
        model: a causal language model of this package, or its folder or repository on the Hub.
        tokenizer: its tokenizer; that of the folder or repository when not given.
        segment_length, memory: as in [`~transformers_xl.evaluation.bits_per_byte.score_text`].

    Raises:
        ValueError: a text has fewer than two tokens, there is no text, or `tokenizer` is missing.
    """
    if not texts:
        raise ValueError("`predictions` is empty: give at least one text.")
    if isinstance(model, str):
        tokenizer = AutoTokenizer.from_pretrained(model) if tokenizer is None else tokenizer
        model = AutoModelForCausalLM.from_pretrained(model)
    if tokenizer is None:
        raise ValueError("`tokenizer`=None: give that of the model, or a folder or repository as `model`.")
    return [_score(text, model, tokenizer, segment_length, memory) for text in texts]


def _score(text: str, model: Any, tokenizer: Any, segment_length: int | None, memory: bool) -> TextScore:
    beginning = beginning_of(tokenizer)
    ids = without_beginning(tokenizer(text, add_special_tokens=False)["input_ids"], beginning)
    least = 1 if beginning else 2
    if len(ids) < least:
        number = {1: "one", 2: "two"}[least]
        raise ValueError(f"`predictions` holds {text!r}, of {len(ids)} tokens: give texts of at least {number}.")
    counts = count_bytes(text.encode("utf-8"), unpredicted_bytes([np.array(ids)], tokenizer))
    score = score_text(model, ids, segment_length, memory=memory, num_bytes=counts.bytes, beginning=beginning)
    return replace(score, characters=counts.characters, words=counts.words)


__all__ = ["score_texts"]
