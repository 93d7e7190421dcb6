"""Calls that compute shapes and no numbers, on the meta device and with fake tensors, and leave nothing behind."""

import pytest
import torch
from tiny import NOT_ONE_GRAPH, VARIANTS, VOCAB_SIZE, tiny_model
from torch._subclasses.fake_tensor import FakeTensorMode

LENGTH = 11
VARIANTS_OF_ONE_GRAPH = [
    name for name, row in VARIANTS.items() if row.causal_lm_class is not None and name not in NOT_ONE_GRAPH
]


def logits_of(model, ids: torch.Tensor) -> list[torch.Tensor]:
    """Of two segments, the second with padding."""
    mask = torch.ones_like(ids)
    mask[:, -2:] = 0
    with torch.no_grad():
        first = model(ids)
        return [first.logits, model(ids, mems=first.mems, attention_mask=mask).logits]


@pytest.mark.parametrize("model_type", VARIANTS_OF_ONE_GRAPH)
def test_shapes_of_a_call(model_type: str):
    model = tiny_model(model_type, "causal_lm", torch.float32)
    ids = torch.randint(VOCAB_SIZE, (2, LENGTH))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = logits_of(model, mode.from_tensor(ids))
    real = logits_of(model, ids)
    assert all(type(each) is torch.Tensor for each in real)
    for each, again in zip(real, logits_of(tiny_model(model_type, "causal_lm", torch.float32), ids), strict=True):
        assert torch.equal(each, again)
    meta = logits_of(model.to("meta"), ids.to("meta"))
    for each, of_fake, of_meta in zip(real, fake, meta, strict=True):
        assert each.shape == of_fake.shape == of_meta.shape
        assert each.dtype == of_fake.dtype == of_meta.dtype
