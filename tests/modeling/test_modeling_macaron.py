"""What the Macaron Transformer changes: half a step before the attention, half a step after it."""

import torch
from tiny import EXACT, tiny_model, tokens


def test_a_layer_is_its_equations():
    model = tiny_model("macaron", num_hidden_layers=1)
    layer, ids = model.layers[0], tokens(2, 6)
    output = model(ids, output_hidden_states=True)
    calls = []
    handle = layer.self_attn.register_forward_hook(
        lambda module, arguments, result: calls.append((arguments[0], result[0]))
    )
    model(ids)
    handle.remove()
    ((attention_input, attention_output),) = calls

    def feed_forward(mlp, x):
        return mlp.fc2(mlp.fc1(x).relu())

    x = output.hidden_states[0]
    x = x + feed_forward(layer.macaron_mlp, layer.macaron_layernorm(x)) / 2
    # the memory is what the attention reads
    torch.testing.assert_close(output.mems.layers[0].columns, (x[:, -8:].detach(),), **EXACT)
    torch.testing.assert_close(attention_input, layer.input_layernorm(x), **EXACT)
    x = x + attention_output
    x = x + feed_forward(layer.mlp, layer.post_attention_layernorm(x)) / 2
    torch.testing.assert_close(output.last_hidden_state, model.norm(x), **EXACT)
