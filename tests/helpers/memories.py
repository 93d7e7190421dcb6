"""Memories of small models, for tests of their files."""

import pytest
import torch
from tiny import models, one_of_each_kind, tiny_model, tokens

from transformers_xl import Memory, cat_memories

CARRYING = models(memory=("exact", "own"))
GENERATING = models(causal=True, causal_lm=True, memory=("exact", "own"))
FEW = one_of_each_kind(CARRYING)
LENGTHS = (1, 5, 21)
FORMS = {"inputs": None, "keys and values": True}
in_both_forms = pytest.mark.parametrize("use_cache", FORMS.values(), ids=FORMS)


def head_of(model_type: str) -> str:
    return "causal_lm" if model_type in GENERATING else "model"


def model_of(model_type: str, dtype: torch.dtype = torch.float64, **fields):
    return tiny_model(model_type, head_of(model_type), dtype, **fields)


def memory_of_rows(model, use_cache: bool | None = True, lengths: tuple[int, ...] = LENGTHS) -> Memory:
    """Rows of different fill, side by side."""
    with torch.no_grad():
        return cat_memories([model(tokens(1, length, seed=length), use_cache=use_cache).mems for length in lengths])
