"""How `transformers-xl serve` reads a prompt: it begins as texts begin, and does not end."""

from typing import Any

from tokenizers.processors import TemplateProcessing

from transformers_xl.data.text_beginning import beginning_of


def open_ended(tokenizer: Any) -> Any:
    """The tokenizer, which begins texts as before and ends none: the server gives it prompts, which an answer continues."""
    beginning = beginning_of(tokenizer)
    if tokenizer("")["input_ids"] != beginning:
        tokens = tokenizer.convert_ids_to_tokens(beginning)
        special = list(zip(tokens, beginning, strict=True))
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=[*tokens, "$A"], special_tokens=special)
    return tokenizer


__all__ = ["open_ended"]
