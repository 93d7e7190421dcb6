"""Calls inside and outside of autocast, one after the other: what is kept between them has the type of neither."""

import pytest
import torch
from tiny import ROWS, models, tiny_model, tokens, variants

from transformers_xl.modeling.memory.memory_cache import MemoryCache

# in bfloat16 a number has 8 bits; the weights of tiny models are large
CLOSE = {"atol": 0.3, "rtol": 0.1}


def in_bfloat16(is_cast: bool):
    return torch.autocast("cpu", torch.bfloat16, enabled=is_cast)


@pytest.mark.parametrize("model_type", variants())
@pytest.mark.parametrize("first_is_cast", [False, True])
def test_a_call_outside_is_as_if_none_was_inside(model_type, first_is_cast):
    """The projections of relative positions are kept from call to call."""
    model, ids = tiny_model(model_type, dtype=torch.float32), tokens(2, 6)
    with torch.no_grad():
        expected = {}
        for is_cast in (False, True):
            with in_bfloat16(is_cast):
                expected[is_cast] = tiny_model(model_type, dtype=torch.float32)(ids).last_hidden_state
        for is_cast in (first_is_cast, not first_is_cast):
            with in_bfloat16(is_cast):
                assert torch.equal(model(ids).last_hidden_state, expected[is_cast])


@pytest.mark.parametrize("model_type", [each for each in models() if ROWS[each].memory != "none"])
@pytest.mark.parametrize("first_is_cast", [False, True])
def test_a_cache_goes_on_outside(model_type, first_is_cast):
    model = tiny_model(model_type, dtype=torch.float32)
    with torch.no_grad():
        cache = MemoryCache()
        with in_bfloat16(first_is_cast):
            model(tokens(2, 6), past_key_values=cache)
            memory = cache.memory
        with in_bfloat16(not first_is_cast):
            output = model(tokens(2, 3, seed=1), past_key_values=cache)
            expected = model(tokens(2, 3, seed=1), past_key_values=MemoryCache(memory))
        torch.testing.assert_close(output.last_hidden_state, expected.last_hidden_state, **CLOSE)
