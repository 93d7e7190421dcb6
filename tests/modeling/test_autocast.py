"""Calls inside and outside of autocast, one after the other: what is kept between them has the type of neither."""

import pytest
import torch
from tiny import ROWS, models, tiny_model, tokens, variants

from transformers_xl.configuration.configuration_lstm import LSTMConfig
from transformers_xl.modeling.layers.depth_halting import correctness, oracle_layers
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.modeling_lstm import LSTMForCausalLM

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("sha_rnn", {}),
        ("r_transformer", {"rnn_type": "lstm"}),
        ("r_transformer", {"rnn_type": "gru"}),
        ("lstm", {"intermediate_size": 16}),
        ("lstm", {"intermediate_size": 32}),
    ],
)
def test_recurrent_networks_learn_inside(model_type: str, fields: dict, dtype: torch.dtype):
    """Torch's LSTM reads numbers of autocast's type alone, where a processor has no AVX-512."""
    if model_type == "lstm":
        torch.manual_seed(0)
        sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2}
        model = LSTMForCausalLM(LSTMConfig(**sizes, **fields))
    else:
        model = tiny_model(model_type, "causal_lm", torch.float32, **fields)
    model, ids = model.eval(), tokens(2, 6)
    mask = torch.ones_like(ids).index_fill(1, torch.tensor([5]), 0)
    losses, gradients = [], []
    for is_cast in (False, True):
        with torch.autocast("cpu", dtype, enabled=is_cast):
            memory = model(ids, attention_mask=mask).mems
            loss = model(ids, labels=ids, mems=memory, attention_mask=mask).loss
        loss.backward()
        losses.append(loss.detach())
        gradients.append(torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]))
        model.zero_grad()
    torch.testing.assert_close(losses[1], losses[0], atol=0.05, rtol=0.02)
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.98


def test_a_padded_call_remembers_in_the_type_of_the_model():
    """Rows that are all padding keep their states, and those were of another type."""
    memory = tiny_model("sha_rnn", dtype=torch.float64)(tokens(2, 6)).mems
    mask = torch.ones(2, 6, dtype=torch.long).index_fill(1, torch.tensor([4, 5]), 0)
    mask[0] = 1
    memory = tiny_model("sha_rnn", dtype=torch.float32)(tokens(2, 6), attention_mask=mask, mems=memory).mems
    types = {each.dtype for each in memory.named_tensors().values() if each.is_floating_point()}
    assert types == {torch.float32}


def test_the_oracle_of_halting_counts_exactly():
    """bfloat16 has no odd number above 256: neighbours stood on one position, and products were rounded."""
    torch.manual_seed(0)
    logits, targets = [torch.randint(0, 9, (2, 600, 5)).float() for _ in range(3)], torch.randint(0, 5, (2, 600))
    for sigma in (1.0, None):
        for score in (correctness, lambda logits, _: torch.stack([each.sum(-1) / 7 for each in logits])):
            expected = oracle_layers(score(logits, targets), 0.05, sigma)
            with torch.autocast("cpu", torch.bfloat16):
                assert torch.equal(oracle_layers(score(logits, targets), 0.05, sigma), expected)
        short = [each.bfloat16() for each in logits]
        expected = oracle_layers(correctness(logits, targets), 0.05, sigma)
        assert torch.equal(oracle_layers(correctness(short, targets), 0.05, sigma), expected)
