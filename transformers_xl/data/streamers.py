"""Text and bytes as they are generated."""

from collections.abc import Callable

import torch
from transformers import PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from transformers_xl.data.written_text import WrittenText


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


class WrittenTextStreamer(BaseStreamer):
    """Hands the text of what is generated to `write` as soon as it can no longer change, for one row.

    Unlike transformers' `TextStreamer` it knows that a tokenizer may join words that stand apart: `1 @,@ 000` is `1,000`.

    Args:
        tokenizer: any tokenizer.
        write: takes each new piece of text, without special tokens; the prompt is left out.
        continues: whether the text is joined to the prompt as the tokenizer joins its words, or stands alone.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, write: Callable[[str], object], continues: bool = False):
        self.tokenizer, self.write, self.continues = tokenizer, write, continues
        self.written: WrittenText | None = None

    def put(self, value: torch.Tensor) -> None:
        if value.shape[0] > 1 and value.dim() > 1:
            raise ValueError(f"`input_ids` has {value.shape[0]} rows: a streamer takes one.")
        if self.written is None:  # the prompt
            self.written = WrittenText(self.tokenizer, value.flatten().tolist() if self.continues else [], ())
            return
        for token_id in value.flatten().tolist():
            self.write(self.written.add(token_id))

    def end(self) -> None:
        if self.written is not None:
            self.write(self.written.finish())
        self.written = None


__all__ = ["ByteStreamer", "WrittenTextStreamer"]
