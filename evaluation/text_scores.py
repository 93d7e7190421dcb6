"""Texts scored one by one, each from an empty memory: what the modules of the `evaluate` library are made of."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from transformers_xl.evaluation.bits_per_byte import TextScore, score_text
from transformers_xl.streams.text_files import count_bytes


def score_texts(
    texts: Sequence[str],
    model: Any,
    tokenizer: Any = None,
    segment_length: int | None = None,
    memory: bool = True,
) -> list[TextScore]:
    """The score of each text, of which all tokens but the first are predicted.

    Args:
        texts: each of at least two tokens.
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
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) < 2:
        raise ValueError(f"`predictions` holds {text!r}, of {len(ids)} tokens: give texts of at least two.")
    first = len(tokenizer.decode_bytes(ids[:1])) if hasattr(tokenizer, "decode_bytes") else 0
    counts = count_bytes(text.encode("utf-8"), first)
    score = score_text(model, ids, segment_length, memory=memory, num_bytes=counts.bytes)
    return replace(score, characters=counts.characters, words=counts.words)


__all__ = ["score_texts"]
