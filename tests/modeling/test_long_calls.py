"""A call that is much longer than the window is read in pieces: the same values and gradients, nothing of its square."""

import pytest
import torch
from tiny import EXACT, tiny_model, tokens, variants

from transformers_xl.modeling import modeling_compressive_transformer
from transformers_xl.modeling.layers import attention
from transformers_xl.modeling.memory.segment import Segment
from transformers_xl.modeling.ops import band

LENGTH = 70
WINDOWED = [
    each for each in variants(causal_lm=True, memory=("exact", "own")) if not each.startswith("segment_memory")
]


def told(model_type: str) -> dict[str, torch.Tensor]:
    """Padding in a row, and a document that begins inside."""
    mask, reset = torch.ones(2, LENGTH, dtype=torch.long), torch.zeros(2, LENGTH, dtype=torch.bool)
    mask[0, 5:20], reset[1, 33] = 0, True
    return {"attention_mask": mask, "reset": reset}


def read(model, ids: torch.Tensor, **kwargs) -> list[torch.Tensor]:
    """Hidden states of real tokens after a memory, and the gradients of all weights."""
    before = model(ids[:, :7]).mems
    states = model(ids, mems=before, **kwargs).last_hidden_state
    states = states[kwargs["attention_mask"].bool()] if kwargs else states
    model.zero_grad()
    states.square().sum().backward()
    return [states, *(each.grad for each in model.parameters() if each.grad is not None)]


@pytest.mark.parametrize("is_padded", [False, True], ids=["plain", "padded"])
@pytest.mark.parametrize("model_type", WINDOWED)
def test_pieces_are_all_pairs(model_type: str, is_padded: bool, monkeypatch):
    model, ids, kwargs = tiny_model(model_type), tokens(2, LENGTH), told(model_type) if is_padded else {}
    monkeypatch.setattr(attention, "PIECE_LENGTH", 4)
    monkeypatch.setattr(band, "PIECE_LENGTH", 4)
    ours = read(model, ids, **kwargs)
    monkeypatch.setattr(attention, "LONG", 1000)
    for mine, whole in zip(ours, read(model, ids, **kwargs), strict=True):
        torch.testing.assert_close(mine, whole, **EXACT)


@pytest.mark.parametrize("is_padded", [False, True], ids=["plain", "padded"])
@pytest.mark.parametrize("model_type", WINDOWED)
@torch.no_grad()
def test_no_mask_of_all_pairs_is_made(model_type: str, is_padded: bool, monkeypatch):
    """Models that cut a call themselves ask for masks of its parts."""
    sizes, visible_piece = [], Segment.visible_piece

    def noting(self, queries: slice, keys: slice) -> torch.Tensor:
        mask = visible_piece(self, queries, keys)
        sizes.append(mask[0].numel())
        return mask

    monkeypatch.setattr(Segment, "visible_piece", noting)
    for module in (attention, band, modeling_compressive_transformer):
        monkeypatch.setattr(module, "PIECE_LENGTH", 4)
    tiny_model(model_type)(tokens(2, LENGTH), **(told(model_type) if is_padded else {}))
    assert max(sizes, default=0) < LENGTH * LENGTH / 2


@pytest.mark.parametrize("is_padded", [False, True], ids=["plain", "padded"])
def test_attention_dropout_needs_no_mask_of_all_pairs(is_padded: bool, monkeypatch):
    """Relative attention with dropout of weights, here so little that none drops: values, gradients, and pieces."""
    model, kwargs = tiny_model("transformer_xl", attention_dropout=1e-12).train(), {}
    if is_padded:
        kwargs = told("transformer_xl")
    sizes, steps = [], attention.RelativeAttention.attend_in_steps

    def noting(self, query: torch.Tensor, key: torch.Tensor, *args, **kwargs):
        sizes.append(query.shape[2] * key.shape[2])
        return steps(self, query, key, *args, **kwargs)

    monkeypatch.setattr(attention.RelativeAttention, "attend_in_steps", noting)
    whole = read(model, tokens(2, LENGTH), **kwargs)
    assert max(sizes) >= LENGTH * LENGTH
    sizes.clear()
    monkeypatch.setattr(attention, "PIECE_LENGTH", 4)
    for mine, other in zip(read(model, tokens(2, LENGTH), **kwargs), whole, strict=True):
        torch.testing.assert_close(mine, other, **EXACT)
    assert max(sizes) < LENGTH * LENGTH / 2
