"""What GTrXL changes: a path of identity maps that gates open."""

import pytest
import torch
from tiny import tiny_model, tokens

from transformers_xl import GTrXLConfig
from transformers_xl.configuration.configuration_gtrxl import GATE_TYPES
from transformers_xl.modeling.layers.gating import GATES


@pytest.mark.parametrize("gate_type", ["gru", "highway", "output", "sigmoid_tanh"])
def test_a_large_bias_makes_every_layer_the_identity(gate_type):
    model = tiny_model("gtrxl", gate_type=gate_type, gate_bias=40.0)
    states = model(tokens(2, 10), output_hidden_states=True).hidden_states
    torch.testing.assert_close(states[0], states[1])
    moved = tiny_model("gtrxl", gate_type=gate_type, gate_bias=0.0)
    states = moved(tokens(2, 10), output_hidden_states=True).hidden_states
    assert not torch.allclose(states[0], states[1], atol=1e-2)


@pytest.mark.parametrize("gate_type", GATE_TYPES)
def test_a_layer_is_its_equations(gate_type):
    """Identity map reordering and ReLU on the sub-layers' outputs, written out for one layer."""
    model = tiny_model("gtrxl", gate_type=gate_type, num_hidden_layers=1)
    layer, ids = model.layers[0], tokens(2, 6)
    output = model(ids, output_hidden_states=True)
    x = output.hidden_states[0]
    calls = []
    handle = layer.self_attn.register_forward_hook(
        lambda module, arguments, result: calls.append((arguments[0], result[0]))
    )
    model(ids)
    handle.remove()
    ((attention_input, attention_output),) = calls
    torch.testing.assert_close(attention_input, layer.input_layernorm(x))
    x = layer.attn_gate(x, attention_output.clamp(min=0))
    x = layer.mlp_gate(x, layer.mlp(layer.post_attention_layernorm(x)).clamp(min=0))
    torch.testing.assert_close(output.last_hidden_state, model.norm(x))


def test_trxl_i_is_the_plain_sum():
    x, y = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    assert torch.equal(GATES["none"](GTrXLConfig(hidden_size=8, num_attention_heads=2))(x, y), x + y)
    assert set(GATES) == set(GATE_TYPES)


@pytest.mark.parametrize("fields", [{"gate_type": "lstm"}, {"norm_position": "post"}])
def test_what_is_no_gtrxl_is_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        GTrXLConfig(**fields)
