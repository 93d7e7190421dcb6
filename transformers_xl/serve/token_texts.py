"""Log-probabilities in the three forms of OpenAI's protocol."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from transformers_xl.data.written_text import CONTEXT, joins_pieces, with_text
from transformers_xl.serve.text_request import TokenLogprob

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # a part of a character


def text_of(tokenizer: Any, token_id: int) -> str:
    """The text of a token after another one: at the beginning of a text some tokenizers drop a space. That of a token
    which the tokenizer does not have, as a model may, is empty."""
    if not with_text(tokenizer, [token_id]):
        return ""
    before = word_before(tokenizer)
    known, text = (str(tokenizer.decode(ids)) for ids in (before, [*before, token_id]))
    return text.removeprefix(known) if text.startswith(known) else str(tokenizer.decode([token_id]))


@lru_cache(maxsize=16)
def word_before(tokenizer: Any) -> tuple[int, ...]:
    """The last token of a letter; none for a tokenizer that joins words by rules."""
    return tuple(tokenizer.encode("a", add_special_tokens=False)[-1:]) if joins_pieces(tokenizer) else ()


def entries(tokenizer: Any, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """As chats and responses have them: every token with the most likely ones."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text = text_of(tokenizer, token_id)
        return {"token": text, "logprob": logprob, "bytes": bytes_of(tokenizer, token_id, text)}

    return [
        entry(each.token_id, each.logprob) | {"top_logprobs": [entry(*one) for one in each.top]} for each in logprobs
    ]


def bytes_of(tokenizer: Any, token_id: int, text: str) -> list[int]:
    """The bytes of a token; of a part of a character only a tokenizer of bytes can tell them."""
    if hasattr(tokenizer, "decode_bytes") and with_text(tokenizer, [token_id]):
        return list(tokenizer.decode_bytes([token_id]))
    return [] if INCOMPLETE in text else list(text.encode())


def key_of(tokenizer: Any, token_id: int) -> str:
    """The text of a token: parts of characters as OpenAI's API spells them, by their bytes if these are known, else by the
    number of the token."""
    text = text_of(tokenizer, token_id)
    if text and INCOMPLETE not in text:
        return text
    spelled = "".join(f"\\x{byte:02x}" for byte in bytes_of(tokenizer, token_id, text))
    return f"bytes:{spelled}" if spelled else f"token_id:{token_id}"


class Offsets:
    """Where tokens begin in a text: the number of characters before each. `before`: tokens before the text."""

    def __init__(self, tokenizer: Any, before: Sequence[int] = ()):
        self.tokenizer, self.length = tokenizer, 0
        self.before = with_text(tokenizer, before[-CONTEXT:])  # the last tokens whose text is whole
        self.open: list[int] = []

    def of(self, token_id: int) -> int:
        """Of the next token. The tokens of one character all have the place where it begins."""
        place = self.length
        self.open += with_text(self.tokenizer, [token_id])
        known, text = (
            self.tokenizer.decode(ids, skip_special_tokens=True) for ids in (self.before, self.before + self.open)
        )
        if not text.endswith(INCOMPLETE):
            self.length += len(text) - len(known.rstrip(INCOMPLETE))
            self.before, self.open = self.open, []
        return place


def by_text(tokenizer: Any, top: Sequence[tuple[int, float]]) -> dict[str, float]:
    """Log-probabilities by the texts of tokens, the most likely one first; of two with the same text the likelier one."""
    found: dict[str, float] = {}
    for token_id, logprob in top:
        found.setdefault(key_of(tokenizer, token_id), logprob)
    return found


def lists(
    tokenizer: Any, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None], offsets: Offsets
) -> dict[str, list]:
    """As completions have them: lists side by side. The first token of a text has no probability."""
    return {
        "tokens": [key_of(tokenizer, each) for each in ids],
        "token_logprobs": [None if each is None else each.logprob for each in logprobs],
        "top_logprobs": [None if each is None else by_text(tokenizer, each.top) for each in logprobs],
        "text_offset": [offsets.of(each) for each in ids],
    }


__all__ = ["Offsets", "entries", "lists"]
