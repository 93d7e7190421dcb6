"""Small models in 8 bits, and how near they are to those they were made of."""

import pytest
import torch
from tiny import memory_of, tiny_model, variants

COMPLEX = "complex_order_transformer"  # its matrices are complex, and its linear layers none of torch's
remembering = pytest.mark.parametrize(
    "model_type", [name for name in variants(causal_lm=True, memory=("exact", "own")) if name != COMPLEX]
)


def small(model_type: str, **fields):
    return tiny_model(model_type, "causal_lm", torch.float32, **fields)


@torch.no_grad()
def log_probs(model, ids: torch.Tensor) -> torch.Tensor:
    """Two segments, the second with memory."""
    first, second = ids.chunk(2, dim=1)
    before = model(first)
    after = model(second, **memory_of(before))
    return torch.cat([before.logits, after.logits], dim=1).log_softmax(-1)


@torch.no_grad()
def goes_on(model, ids: torch.Tensor) -> torch.Tensor:
    settings = {"do_sample": False, "min_new_tokens": 4, "max_new_tokens": 4, "return_dict_in_generate": True}
    first = model.generate(ids, **settings)
    return model.generate(first.sequences[:, -1:], mems=first.mems, **settings).sequences


def is_near(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """By 8 bits: different, and not by much. Mean of the divergence in nats per token."""
    divergence = (theirs.exp() * (theirs - mine)).sum(-1).mean().item()
    return 0 < divergence < 0.02
