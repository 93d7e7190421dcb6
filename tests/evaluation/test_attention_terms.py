"""The four terms of relative attention, against the equation in loops."""

import numpy as np
import pytest
import torch
from reference import sinusoid
from tiny import EXACT, tiny_model, tokens

from transformers_xl.evaluation.attention_terms import TERMS, attention_terms, term_weights


def capture(model, ids: torch.Tensor) -> list[tuple]:
    """What the attention of each layer is called with for the second segment, and its weights."""
    model.set_attn_implementation("eager")
    calls: list[tuple] = []
    handles = [
        layer.self_attn.register_forward_hook(
            lambda module, args, kwargs, output: calls.append((module, args, kwargs, output[1])), with_kwargs=True
        )
        for layer in model.layers
    ]
    with torch.no_grad():
        mems = model(ids[:, :6]).mems
        calls.clear()
        model(ids[:, 6:], mems=mems)
    for handle in handles:
        handle.remove()
    return calls


@pytest.mark.parametrize("share_relative_bias", [True, False])
def test_terms_are_those_of_the_equation(share_relative_bias: bool):
    model = tiny_model("transformer_xl", share_relative_bias=share_relative_bias)
    config = model.config
    for parameter in model.parameters():  # biases begin as zeros
        torch.nn.init.normal_(parameter, std=0.3)
    for module, args, kwargs, weights in capture(model, tokens(1, 11)):
        with torch.no_grad():
            found = dict(term_weights(module, *args, **kwargs))
            hidden, keys = args[:2]
            bias = model.positions.bias if share_relative_bias else module.bias
            length, num_keys = hidden.shape[1], keys.shape[2]
            for head in range(config.num_attention_heads):
                part = slice(head * config.head_dim, (head + 1) * config.head_dim)
                u, v = bias.content_bias[head], bias.position_bias[head]
                for i in range(length):
                    query = module.q_proj(hidden)[0, i, part]
                    scores = {term: [] for term in TERMS}
                    seen = []
                    for j in range(num_keys):
                        distance = num_keys - length + i - j
                        if not 0 <= distance < config.mem_len:
                            continue
                        key = keys[0, head, j]
                        r = module.r_proj(sinusoid(distance, config.hidden_size, -1, hidden.dtype))[part]
                        pairs = {"a": (query, key), "b": (query, r), "c": (u, key), "d": (v, r)}
                        seen.append(j)
                        for term, (left, right) in pairs.items():
                            scores[term].append(left @ right / config.head_dim**0.5)
                    for term in TERMS:
                        expected = torch.zeros(num_keys, dtype=hidden.dtype)
                        expected[seen] = torch.stack(scores[term]).softmax(0)
                        torch.testing.assert_close(found[term][0, head, i], expected, **EXACT)
        # the softmax of a sum is the product of the softmaxes, brought to a sum of one
        product = torch.stack(list(found.values())).prod(0)
        torch.testing.assert_close(product / product.sum(-1, keepdim=True), weights, **EXACT)


@pytest.mark.parametrize("model_type", ["transformer_xl", "gtrxl", "macaron", "pkm_transformer"])
def test_an_atlas_of_each_term(model_type: str):
    """Without biases, the terms of the biases are even over what a token sees."""
    model = tiny_model(model_type)
    torch.nn.init.zeros_(model.positions.bias.content_bias)
    torch.nn.init.zeros_(model.positions.bias.position_bias)
    mem_len = model.config.mem_len
    terms = attention_terms(model, tokens(1, 20)[0], skip=mem_len)
    assert list(terms) == list(TERMS)
    for term, atlas in terms.items():
        assert atlas.mean_weight.shape == (2, 4, mem_len)
        np.testing.assert_allclose(atlas.mean_weight.sum(-1), 1.0, **EXACT)
        is_even = np.allclose(atlas.mean_weight, 1 / mem_len, **EXACT)
        assert is_even == (term in "cd")


@pytest.mark.parametrize(
    "model_type", ["shaw_transformer", "universal_transformer", "causal_longformer", "transformer_xl_encoder"]
)
def test_other_attentions_have_no_such_terms(model_type: str):
    with pytest.raises(ValueError, match=model_type):
        attention_terms(tiny_model(model_type), tokens(1, 20)[0])
