"""What training_metrics.json says of an evaluation: all that its figure depends on."""

import pytest
import torch
from tiny import tiny_model

from transformers_xl.evaluation.bits_per_byte import score_text
from transformers_xl.hub.measurements import lengths_of


@pytest.mark.parametrize("initial_memory", ["empty", "zeros"])
def test_lengths_without_memory_are_those_that_change_the_score(initial_memory: str):
    """A first memory of zeros is read too: of another length, it gives other figures."""
    ids = torch.randint(0, 29, (40,))
    models = [
        tiny_model("transformer_xl", "causal_lm", initial_memory=initial_memory, mem_len=mem_len, same_length=False)
        for mem_len in (4, 12)
    ]
    short, long = (score_text(model, ids, segment_length=5, memory=False).nats for model in models)
    assert (short == pytest.approx(long, rel=1e-9)) is (initial_memory == "empty")
    lengths = [lengths_of(model, 1, memory=False) for model in models]
    assert [each.mem_len for each in lengths] == ([0, 0] if initial_memory == "empty" else [4, 12])
