"""Texts of a given form: which tokens may come next, by llguidance (https://github.com/guidance-ai/llguidance).

A grammar is a string, as `LLMatcher.grammar_from_json_schema`, `grammar_from_regex` and `grammar_from_lark` of llguidance
make it. It is read without running anything in it, and within bounds of time and memory.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from transformers_xl.files.blaming import sentence

MAX_STATES = 2**14  # of the automaton of a grammar, each one or two kB


class Matcher(Protocol):
    """What is read of llguidance's `LLMatcher`."""

    def compute_logit_bias(self) -> bytes: ...
    def consume_token(self, sampled_token: int) -> bool: ...
    def is_stopped(self) -> bool: ...
    def is_error(self) -> bool: ...


class _Bytes:
    """A tokenizer of bytes, as llguidance asks for one."""

    bos_token_id = None

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_id: int):
        self.eos_token_id, self.special_token_ids = eos_token_id, [*tokenizer.all_special_ids]
        names = {each: tokenizer.convert_ids_to_tokens(each).encode() for each in self.special_token_ids}
        self.tokens = [names.get(each) or tokenizer.decode_bytes([each]) for each in range(len(tokenizer))]
        self.tokens += [b""] * (vocab_size - len(tokenizer))  # logits of no token

    def __call__(self, text: bytes) -> list[int]:
        return [self.tokens.index(text[place : place + 1]) for place in range(len(text))]


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise ValueError("a grammar needs the package llguidance: pip install llguidance") from error
    return llguidance


@lru_cache(maxsize=2)
def _tokens_of(tokenizer: PreTrainedTokenizerBase, vocab_size: int, ends: frozenset[int]) -> Any:
    """The bytes of all tokens, llguidance's `LLTokenizer`."""
    library = _library()
    from llguidance.hf import from_tokenizer

    eos = sorted(ends) or [each for each in [tokenizer.eos_token_id] if each is not None]
    if not eos:
        raise ValueError("neither the generation config nor the tokenizer has a token that ends a text")
    if hasattr(tokenizer, "decode_bytes"):
        wrapped = library.TokenizerWrapper(_Bytes(tokenizer, vocab_size, eos[0]))
        return library.LLTokenizer(wrapped, eos_token=eos)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError("the tokenizer is not one of the library `tokenizers`")
    return from_tokenizer(tokenizer, n_vocab=vocab_size, eos_token=eos)


def matcher_of(grammar: str, tokenizer: PreTrainedTokenizerBase, vocab_size: int, ends: frozenset[int]) -> Matcher:
    """What says which tokens may come next in a text of this grammar.

    Args:
        grammar: as llguidance makes it.
        tokenizer: its tokens are bytes of text: a tokenizer of bytes, a byte-level BPE, or one with bytes to fall back to.
        vocab_size: how many logits the model has.
        ends: the tokens that end a text; the tokenizer's own where there are none.

    Raises:
        ValueError: llguidance is not installed, or does not read the grammar or the tokenizer, or this has more tokens than
            the model.
    """
    library = _library()
    try:
        tokens = _tokens_of(tokenizer, vocab_size, ends)
    except ValueError as error:
        said = f"no grammar holds for the tokens of this {type(tokenizer).__name__}: {sentence(error)}"
        raise ValueError(said) from error
    if tokens.vocab_size != vocab_size:
        raise ValueError(f"the tokenizer has {tokens.vocab_size} tokens, and the model words for {vocab_size}")
    limits = library.LLParserLimits(max_lexer_states=MAX_STATES, verbose_errors=False)
    matcher = library.LLMatcher(tokens, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(sentence(ValueError(matcher.get_error())))
    return matcher


def json_grammar(schema: dict[str, Any]) -> str:
    """The grammar of JSON that fits a schema, without white space between its parts.

    Raises:
        ValueError: llguidance is not installed.
    """
    return _library().LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})


def allowed(logits: torch.Tensor, matchers: Sequence[Matcher | None]) -> torch.Tensor:
    """The logits `(B, V)` of a batch, -inf where the matcher of a row excludes a token."""
    if all(each is None for each in matchers):
        return logits
    mask = torch.ones(logits.shape, dtype=torch.bool)
    for row, matcher in enumerate(matchers):
        if matcher is not None:
            mask[row] = torch.from_numpy(np.frombuffer(matcher.compute_logit_bias(), dtype=np.uint8) > 0)
    return logits.masked_fill(~mask.to(logits.device), -torch.inf)


__all__ = ["Matcher", "allowed", "json_grammar", "matcher_of"]
