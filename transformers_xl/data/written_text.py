"""The text of tokens as they are written: what can no longer change, without the texts that end it."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

CONTEXT = 16  # tokens of the prompt that say how the first new one is joined to it
PART = 32  # a text that is decoded as a whole waits until it has grown by a 32nd
INCOMPLETE = "\ufffd"  # what stands for the bytes of a character whose end is not there yet


class PieceDecoder:
    """Text of a tokenizer whose tokens become text one after another: that of a token depends on the one before it."""

    def __init__(self, tokenizer: Any, context: Sequence[int]):
        self.decode = tokenizer.backend_tokenizer.decode
        self.before, self.pending = list(context), list[int]()
        self.shown = self.decode(self.before)

    def length_of_shown(self, text: str) -> int:
        """How much of `text` was there before: without the end of a prompt that new tokens have made a character of."""
        return max(len(self.shown.rstrip(INCOMPLETE)), len(same_beginning(text, self.shown)))

    def add(self, token_id: int) -> str:
        """New text, without a character whose end is missing."""
        self.pending.append(token_id)
        text = self.decode(self.before + self.pending)
        start = self.length_of_shown(text)
        if text.endswith(INCOMPLETE) or not text.startswith(self.shown[:start]) or len(text) == start:
            return ""  # after a token without a text, too, the next one is joined to the text before
        new, self.before, self.pending = text[start:], self.pending, []
        self.shown = self.decode(self.before)
        return new

    def unsettled(self) -> str:
        """What the tokens say that `add` has held back."""
        text = self.decode(self.before + self.pending)
        return text[self.length_of_shown(text) :] if self.pending else ""


class WholeDecoder:
    """Text of any other tokenizer, such as one that joins words by rules: all of it is decoded again, and what the last two
    tokens have not changed is taken for settled. It is decoded with every token while it is short, and later with so many
    at a time that a token costs the same; `unsettled` decodes what waits."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, context: Sequence[int]):
        self.tokenizer, self.ids, self.waiting = tokenizer, with_text(tokenizer, context), 0
        self.silent = {*tokenizer.all_special_ids}  # what is skipped says nothing of the text before it
        self.text = self.prompt = self._decoded(self.ids)
        self.settled = self.text.rstrip(INCOMPLETE)

    def _decoded(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _before_the_last_two(self) -> list[int]:
        places = (place for place in reversed(range(len(self.ids))) if self.ids[place] not in self.silent)
        return self.ids[: next(islice(places, 1, None), 0)]

    def add(self, token_id: int) -> str:
        self.ids += with_text(self.tokenizer, [token_id])
        self.waiting += 1
        if self.waiting * PART < len(self.ids):
            return ""
        self.text, self.waiting = self._decoded(self.ids), 0
        settled = same_beginning(self._decoded(self._before_the_last_two()), self.text).rstrip(INCOMPLETE)
        if self.text.startswith(self.prompt) and len(self.settled) < len(self.prompt) < len(self.text):
            self.settled = self.prompt  # its end was no part of a character
            settled = max(settled, self.prompt, key=len)
        if self.settled.startswith(settled):
            return ""
        # new words may have joined the last ones of the prompt, which nobody can take back
        new, self.settled = settled[len(same_beginning(self.settled, settled)) :], settled
        return new

    def unsettled(self) -> str:
        text = self._decoded(self.ids) if self.waiting else self.text
        return text[len(same_beginning(self.settled, text)) :]


class WrittenText:
    """The text of one output.

    Args:
        tokenizer: that of the model.
        prompt: token ids before the output.
        stop: texts that end it.

    Attributes:
        has_ended: whether one of them was written.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int], stop: Sequence[str]):
        decoder = PieceDecoder if joins_pieces(tokenizer) else WholeDecoder
        self.decoder, self.stop = decoder(tokenizer, prompt[-CONTEXT:]), stop
        self.held, self.has_ended = "", False

    def add(self, token_id: int) -> str:
        """New text that can no longer change."""
        text = self.held + self.decoder.add(token_id)
        if not self.stop:
            return text
        end = first_of(self.stop, text + self.decoder.unsettled())
        if end is not None:
            text, self.held, self.has_ended = (text + self.decoder.unsettled())[:end], "", True
            return text
        keep = max(begun_by(text, stop) for stop in self.stop)
        text, self.held = text[: len(text) - keep], text[len(text) - keep :]
        return text

    def finish(self) -> str:
        """What was held back."""
        return "" if self.has_ended else self.held + self.decoder.unsettled()


def joins_pieces(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer of the `tokenizers` library decodes by that alone."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.clean_up_tokenization_spaces:
        return False
    return type(tokenizer).convert_tokens_to_string is PreTrainedTokenizerFast.convert_tokens_to_string


def with_text(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """The tokens that a tokenizer has: a model may have more."""
    return [each for each in ids if each < len(tokenizer)]


def same_beginning(first: str, second: str) -> str:
    """The beginning that two texts share."""
    differs = (place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return first[: next(differs, min(len(first), len(second)))]


def first_of(stop: Sequence[str], text: str) -> int | None:
    """Where the first of the stop texts begins; None: there is none."""
    return min((place for each in stop if (place := text.find(each)) >= 0), default=None)


def begun_by(text: str, stop: str) -> int:
    """How many characters at the end of `text` may be the beginning of `stop`."""
    most = min(len(text), len(stop) - 1)
    return next((count for count in range(most, 0, -1) if stop.startswith(text[len(text) - count :])), 0)


__all__ = ["WrittenText", "begun_by", "first_of", "joins_pieces", "same_beginning", "with_text"]
