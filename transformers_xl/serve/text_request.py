"""What a scheduler is asked for, and what it answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from transformers_xl.modeling.memory.memory_value import Memory

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class TextRequest:
    """A text to continue, with its own settings.

    Args:
        input_ids: token ids to read, at least one. After an answer: its `unread_ids`, and what follows.
        memory: what was read before, one row, as `model(ids).mems`, `generate(..)` and the end of another request give it.
            Nothing in it is changed. None: the text begins here.
        max_new_tokens: tokens to write at most. 0: the prompt is read, but for its last token, and nothing is written.
        temperature: divides the logits; 0, or less than 1e-4: the most likely token.
        top_p: of the most likely tokens as many as have this probability together, at least one; 1: all.
        top_k: this many of the most likely tokens; 0: all.
        seed: makes sampling repeatable. None: another sample every time.
        stop: texts that end the output. They are no part of its text; their tokens are in its memory.
        stop_token_ids: tokens that end the output, the last of its tokens and no part of its text. None: those of the
            model's generation config.
        top_logprobs: how many of the most likely tokens to name for each new token, beside that itself. None: no
            log-probabilities. They are those of the model, before temperature, `top_k` and `top_p`, in nats.
        prompt_logprobs: whether to give the same for the tokens of the prompt.
        grammar: what the output must be, as llguidance's `LLMatcher.grammar_from_json_schema(schema)` or
            `grammar_from_regex` says it. It ends where the grammar allows nothing more. One that `max_new_tokens` cuts may
            be no whole text of the grammar. None: any text.

    Raises:
        ValueError: a value is of the wrong type or out of range.
    """

    input_ids: Sequence[int]
    memory: Memory | None = None
    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] | None = None
    top_logprobs: int | None = None
    prompt_logprobs: bool = False
    grammar: str | None = None

    def __post_init__(self) -> None:
        ids = self.input_ids
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Sequence) or not all(map(_is_integer, ids)) or not ids:
            raise ValueError(f"`input_ids`={_short(ids)} must be a list of token ids, at least one.")
        if self.memory is not None and not isinstance(self.memory, Memory):
            raise ValueError(
                f"`memory` is a {type(self.memory).__name__}: it must be a `Memory`, as `output.mems` is."
            )
        _check_integer("max_new_tokens", self.max_new_tokens, 0)
        _check_integer("top_k", self.top_k, 0)
        if self.seed is not None and not _is_integer(self.seed):
            raise ValueError(f"`seed`={_short(self.seed)} must be an integer, or None.")
        if self.top_logprobs is not None:
            _check_integer("top_logprobs", self.top_logprobs, 0)
        _check_number("temperature", self.temperature, math.inf)
        _check_number("top_p", self.top_p, 1.0)
        if not _is_tuple_of(self.stop, str) or not all(self.stop):
            raise ValueError(f"`stop`={_short(self.stop)} must be a tuple of texts, none of them empty.")
        stops = self.stop_token_ids
        if stops is not None and not (isinstance(stops, (tuple, list)) and all(map(_is_integer, stops))):
            raise ValueError(f"`stop_token_ids`={_short(stops)} must be a tuple of token ids, or None.")
        if not isinstance(self.prompt_logprobs, bool):
            raise ValueError(f"`prompt_logprobs`={_short(self.prompt_logprobs)} must be True or False.")
        if self.grammar is not None and not (isinstance(self.grammar, str) and self.grammar):
            raise ValueError(f"`grammar`={_short(self.grammar)} must be a grammar of llguidance, a string, or None.")
        if self.grammar is not None and self.max_new_tokens == 0:
            raise ValueError("`grammar` has no effect with `max_new_tokens`=0, which writes nothing: leave it out.")


class TokenLogprob(NamedTuple):
    """Log-probability of a token, in nats, and the most likely tokens in its place, `(token id, log-probability)` each."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Progress(NamedTuple):
    """What a step made for one request.

    Args:
        request_id: the number that `Scheduler.add` gave.
        token_ids: new tokens; the one that ended the output too.
        text: new text that can no longer change: the beginning of a stop text and of a character are held back. Without
            a tokenizer there is none.
        logprobs: of each new token, where the request asks for them.
        prompt_logprobs: of each token of the prompt, once, where the request asks for them. None for the first one: what
            came before it says nothing here.
        finish_reason: "stop": a stop text or token, or the end of the grammar; "length": `max_new_tokens` are written;
            "cancelled"; None: more will come.
        memory: at the end, one row: a copy that continues the text with `unread_ids` before what follows. None where
            nothing was read.
        unread_ids: at the end: tokens that the memory does not hold yet.
    """

    request_id: int
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    finish_reason: FinishReason | None = None
    memory: Memory | None = None
    unread_ids: tuple[int, ...] = ()


class Written(NamedTuple):
    """All that was made for a request, what its [`Progress`] says joined; `number`: which request, from 0."""

    number: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    memory: Memory | None
    unread_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_integer(name: str, value: Any, least: int) -> None:
    if not _is_integer(value) or value < least:
        raise ValueError(f"`{name}`={_short(value)} must be an integer, at least {least}.")


def _check_number(name: str, value: Any, most: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most or math.isinf(value):
        bound = "a number, at least 0" if math.isinf(most) else f"a number in 0..{most:g}"
        raise ValueError(f"`{name}`={_short(value)} must be {bound}.")


def _is_tuple_of(values: Any, kind: type) -> bool:
    return isinstance(values, (tuple, list)) and all(isinstance(value, kind) for value in values)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}.."


__all__ = ["FinishReason", "Progress", "TextRequest", "TokenLogprob", "Written"]
