"""Outlines, which keeps what a model writes to a form: after a memory it is the most probable text of that form."""

import json
import re
import string
from typing import Any

import pytest
import torch
from optional_packages import needs
from tiny import tiny_model
from tiny_bases import tiny_base

from transformers_xl import ByteTokenizer, add_memory

TOKENIZER = ByteTokenizer()
BEFORE = [b"The quick brown fox jumps over the lazy dog. " * 4, b"A short text."]


def model_of(kind: str) -> Any:
    """A model of bytes whose predictions depend on what it remembers."""
    torch.manual_seed(0)
    if kind == "window":
        return add_memory(tiny_base("llama", vocab_size=len(TOKENIZER)).float(), mem_len=8)
    return tiny_model(kind, "causal_lm", torch.float32, vocab_size=len(TOKENIZER), initializer_range=0.3)


def written(model: Any, prompt: bytes, mems: Any, allowed: bytes, length: int) -> str:
    """The reference: token by token, the best of the bytes that may follow."""
    ids, found = torch.tensor([list(prompt)]), b""
    for _ in range(length):
        with torch.no_grad():
            output = model(ids, mems=mems)
        mems = output.mems
        found += bytes([max(allowed, key=output.logits[0, -1].__getitem__)])
        ids = torch.tensor([[found[-1]]])
    return found.decode()


@pytest.mark.parametrize("kind", ["transformer_xl", "streaming_transformer", "window"])
def test_a_form_after_a_memory(kind: str):
    outlines, model = needs("outlines"), model_of(kind)
    writer = outlines.Generator(outlines.from_transformers(model, TOKENIZER), outlines.regex("[a-z]{12}"))
    texts = []
    for before in BEFORE:
        with torch.no_grad():
            mems = model(torch.tensor([list(before)])).mems
        texts.append(writer("So: ", mems=mems, max_new_tokens=20, do_sample=False))
        assert texts[-1] == written(model, b"So: ", mems, string.ascii_lowercase.encode(), 12)
    assert texts[0] != texts[1]


def test_choices_and_json():
    outlines, model = needs("outlines"), model_of("transformer_xl")
    model = outlines.from_transformers(model, TOKENIZER)
    choice = outlines.Generator(model, outlines.types.Choice(["yes", "no"]))
    assert set(choice.batch(["Is it? ", "Or not? "], max_new_tokens=5)) <= {"yes", "no"}
    schema = {"type": "object", "properties": {"old": {"type": "boolean"}}, "required": ["old"]}
    text = model("A: ", outlines.json_schema(json.dumps(schema)), max_new_tokens=400, do_sample=False)
    assert re.fullmatch(r"\s*\{.*", text, flags=re.DOTALL)
