"""Bytes as they are generated."""

from collections.abc import Callable

import torch
from transformers.generation.streamers import BaseStreamer, TextStreamer


class ByteStreamer(BaseStreamer):
    """Hands every generated token to `write` as bytes at once, for `model.generate(streamer=...)` and one row.

    A character of several bytes arrives in pieces: a terminal or a file puts it together.

    Args:
        tokenizer: a byte-level tokenizer, with `decode_bytes`.
        write: takes the bytes of each new token; the prompt is left out.
    """

    def __init__(self, tokenizer, write: Callable[[bytes], object]):
        if not hasattr(tokenizer, "decode_bytes"):
            raise ValueError(
                f"`tokenizer` is a {type(tokenizer).__name__}, without `decode_bytes`: use `transformers.TextStreamer`."
            )
        self.tokenizer = tokenizer
        self.write = write
        self.prompt_is_next = True

    def put(self, value: torch.Tensor) -> None:
        if value.shape[0] > 1 and value.dim() > 1:
            raise ValueError(f"`input_ids` has {value.shape[0]} rows: a streamer takes one.")
        if not self.prompt_is_next:
            self.write(self.tokenizer.decode_bytes(value.flatten().tolist()))
        self.prompt_is_next = False

    def end(self) -> None:
        self.prompt_is_next = True


class TextContinuation(TextStreamer):
    """Prints the text that follows a prompt, joined to it as the tokenizer joins its words."""

    def put(self, value: torch.Tensor) -> None:
        if not self.next_tokens_are_prompt:
            super().put(value)
            return
        self.next_tokens_are_prompt = False
        self.token_cache = value.flatten().tolist()
        self.print_len = len(self.tokenizer.decode(self.token_cache, **self.decode_kwargs))

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        print(text, end="", flush=True)


__all__ = ["ByteStreamer", "TextContinuation"]
