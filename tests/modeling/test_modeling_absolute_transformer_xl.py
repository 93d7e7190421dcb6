"""Recurrence with absolute positions: what a token and its memory are told of places, and what they cannot tell apart."""

import pytest
import torch
from tiny import EXACT, tiny_model, tokens
from torch.nn import functional as F

MEM_LEN, SEGMENT, LENGTH = 8, 6, 14


def naive_states(model, ids: torch.Tensor) -> torch.Tensor:
    """The last layer's output (T, E) of one row, token by token, each behind the `MEM_LEN` positions that it sees."""
    heads, inputs = model.config.num_attention_heads, model.embed_tokens(ids)
    for layer in model.layers:
        if layer.positions is not None:
            places = torch.tensor([[position % SEGMENT for position in range(len(ids))]])
            inputs = inputs + layer.positions(places, inputs.dtype)[0]
        normed, attention, outputs = layer.input_layernorm.before(inputs), layer.self_attn, []
        for position in range(len(ids)):
            seen = normed[max(0, position - MEM_LEN + 1) : position + 1]
            query = attention.q_proj(normed[position]).view(heads, -1)
            key, value = (each(seen).view(len(seen), heads, -1) for each in (attention.k_proj, attention.v_proj))
            weights = (torch.einsum("hd,khd->hk", query, key) / query.shape[-1] ** 0.5).softmax(-1)
            outputs.append(attention.o_proj(torch.einsum("hk,khd->hd", weights, value).flatten()))
        inputs = inputs + torch.stack(outputs)
        inputs = inputs + layer.mlp(layer.post_attention_layernorm.before(inputs))
    return model.norm(inputs)


@pytest.mark.parametrize("position_type", ["per_layer", "sinusoid"])
def test_values_and_gradients_of_a_naive_loop(position_type: str):
    model = tiny_model("absolute_transformer_xl", position_type=position_type)
    ids = tokens(1, LENGTH)
    (found, expected) = (model(ids).last_hidden_state[0], naive_states(model, ids[0]))
    torch.testing.assert_close(found, expected, **EXACT)
    gradients = [torch.autograd.grad(F.silu(states).sum(), list(model.parameters())) for states in (found, expected)]
    torch.testing.assert_close(*gradients, **EXACT)


@pytest.mark.parametrize("model_type", ["absolute_transformer_xl", "transformer_xl"])
def test_tokens_of_one_place_in_two_segments_are_confused(model_type: str):
    """One layer, two whole segments before the query: tokens of one place change segments, and nothing else changes."""
    model = tiny_model(model_type, num_hidden_layers=1, mem_len=2 * SEGMENT + 1)
    ids = tokens(1, 2 * SEGMENT + 1)
    confused = ids.clone()
    confused[0, [2, SEGMENT + 2]] = ids[0, [SEGMENT + 2, 2]]
    assert ids[0, 2] != ids[0, SEGMENT + 2]
    last, other = (model(text).last_hidden_state[0, -1] for text in (ids, confused))
    assert torch.allclose(last, other, **EXACT) == (model_type == "absolute_transformer_xl")
