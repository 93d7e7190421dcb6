"""A step whose memory is a ring says what the model says: without a compiler, over all models that it fits."""

import pytest
import torch
from tiny import FLOAT32, MEM_LEN, tiny_model, tokens, variants

from transformers_xl.modeling.exporting import step_memory
from transformers_xl.runs.ring_step import RingMemory, RingStep

FITTING = ("transformer_xl", "gtrxl", "macaron", "pkm_transformer", "streaming_transformer")


def test_it_fits_where_the_attention_needs_no_order():
    models = {each: tiny_model(each, "causal_lm") for each in variants(causal_lm=True, memory=("exact", "own"))}
    assert {each for each, model in models.items() if RingStep.fits(model)} == set(FITTING)


@pytest.mark.parametrize("model_type", FITTING)
@pytest.mark.parametrize("fields", [{}, {"same_length": False}, {"initial_memory": "zeros"}, {"mem_len": 1}], ids=str)
@torch.no_grad()
def test_a_ring_is_the_window(model_type: str, fields: dict):
    """Rows that remember unequally much, until the window has moved on twice; one row ends on the way."""
    if model_type == "streaming_transformer" and "mem_len" in fields:
        fields = {"mem_len": 2}  # with 1 it remembers no column, and has no ring
    model = tiny_model(model_type, "causal_lm", torch.float32, **fields).eval()
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    output = model(tokens(2, 3), attention_mask=mask, use_cache=True)
    memory = step_memory(model, 2, output.mems)
    step, ring = RingStep(model, memory), RingMemory(memory, model.config.sliding_window)
    cache, kept, ended = output.past_key_values, None, None
    for index, column in enumerate(tokens(2, 2 * MEM_LEN, seed=1).split(1, dim=1)):
        if index == MEM_LEN - 2:
            kept, ended = cache.memory.rows([1]), torch.tensor([False, True])
        ring.note_ended(ended)
        logits, after = step(column, ring.rings)
        assert all(
            each.is_contiguous() for each in after.memory.named_tensors().values()
        )  # as compiled code reads them
        ring.close(after)
        expected = model(column, past_key_values=cache).logits[:, -1]
        torch.testing.assert_close(logits, expected, **FLOAT32)
    ours = ring.memory(ended)
    wanted = step_memory(model, 2, cache.memory).named_tensors()
    before = step_memory(model, 1, kept).named_tensors()
    for name, tensor in ours.named_tensors().items():
        columns = int(ours.lengths[1]) if ".columns." in name else None  # unused columns hold anything
        torch.testing.assert_close(tensor[:1], wanted[name][:1], **FLOAT32)
        mine, its = tensor[1:], before[name]
        if columns is not None:
            mine, its = (each[..., each.shape[-2] - columns :, :] for each in (mine, its))
        torch.testing.assert_close(mine, its, **FLOAT32)
