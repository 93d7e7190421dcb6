"""What the R-Transformer adds: a network that reads the few positions up to each position, whatever the segments."""

import pytest
import torch
from tiny import EXACT, tiny_model, tokens
from torch import nn

rnn_types = pytest.mark.parametrize("rnn_type", ["gru", "lstm", "tanh"])


def local_by_hand(rnn: nn.Module, inputs: torch.Tensor, window: int) -> torch.Tensor:
    """The network over the window of each position of `(length, width)` in turn, zeros before the first."""
    outputs = []
    for position in range(len(inputs)):
        seen = inputs[max(0, position - window + 1) : position + 1]
        missing = inputs.new_zeros(window - len(seen), inputs.shape[1])
        outputs.append(rnn(torch.cat([missing, seen])[None])[0][0, -1])
    return torch.stack(outputs)


@rnn_types
@pytest.mark.parametrize("window", [1, 3, 9])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_layer_is_its_equations(rnn_type, window, norm_position):
    """Values and gradients of a layer with two LocalRNNs, of segments with memory, against one long loop."""
    model = tiny_model(
        "r_transformer",
        num_hidden_layers=1,
        rnn_type=rnn_type,
        local_window=window,
        num_local_rnns=2,
        norm_position=norm_position,
        mem_len=16,
    )
    layer, ids = model.layers[0], tokens(1, 11)
    is_pre = norm_position == "pre"

    x = model.embed_tokens(ids)[0]
    for local in layer.local_rnns:
        norm = nn.functional.layer_norm
        weights = (local.norm.weight, local.norm.bias, local.norm.eps)
        inputs = norm(x, x.shape[-1:], *weights) if is_pre else x
        x = x + local_by_hand(local.rnn, inputs, window)
        x = x if is_pre else norm(x, x.shape[-1:], *weights)
    reads = x
    attended = layer.input_layernorm.before(x)
    heads = [(projection(attended).unflatten(-1, (4, 8)).transpose(0, 1)) for projection in
             (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)]  # fmt: skip
    scores = heads[0] @ heads[1].transpose(1, 2) / 8**0.5
    scores = scores.masked_fill(torch.ones(11, 11).triu(1).bool(), -torch.inf)
    attended = layer.self_attn.o_proj((scores.softmax(-1) @ heads[2]).transpose(0, 1).flatten(1))
    x = layer.input_layernorm.after(x + attended)
    x = layer.post_attention_layernorm.after(x + layer.mlp(layer.post_attention_layernorm.before(x)))
    expected = model.norm(x) if is_pre else x

    output = model(ids)
    torch.testing.assert_close(output.last_hidden_state[0], expected, **EXACT)
    torch.testing.assert_close(output.mems.layers[0].columns[0][0], reads.detach(), **EXACT)
    direction = torch.randn_like(expected)
    parameters = [p for name, p in model.named_parameters()]
    by_hand, ours = (
        torch.autograd.grad((result * direction).sum(), parameters)
        for result in (expected, output.last_hidden_state[0])
    )
    torch.testing.assert_close(ours, by_hand, **EXACT)

    mems, parts = None, []
    for segment in ids.split(3, dim=1):
        output = model(segment, mems=mems)
        mems = output.mems
        parts.append(output.last_hidden_state[0])
    torch.testing.assert_close(torch.cat(parts), expected, **EXACT)


@rnn_types
def test_memory_holds_the_last_inputs_of_each_local_rnn(rnn_type):
    model = tiny_model("r_transformer", rnn_type=rnn_type, local_window=4, num_local_rnns=2)
    inputs = []
    for layer in model.layers:
        for local in layer.local_rnns:
            local.register_forward_pre_hook(lambda module, arguments: inputs.append(module.norm.before(arguments[0])))
    states = [layer.state[0] for layer in model(tokens(2, 9)).mems.layers]
    assert [state.shape for state in states] == [(2, 2, 3, 32)] * 2  # of each layer: rows, networks, positions
    tails = [tail for state in states for tail in state.unbind(1)]
    for state, expected in zip(tails, inputs, strict=True):
        torch.testing.assert_close(state, expected[:, -3:], **EXACT)
    short = [layer.state[0] for layer in model(tokens(2, 2)).mems.layers]
    assert all((state[:, :, 0] == 0).all() and (state[:, :, 1:] != 0).any() for state in short)


def test_without_positions_or_local_rnn_order_is_lost():
    """The network is what tells the attention of order: with a window of one, the last output ignores it."""
    ids = tokens(1, 8)
    shuffled = torch.cat([ids[:, torch.tensor([3, 0, 6, 2, 5, 1, 4])], ids[:, 7:]], dim=1)
    for window, same in ((1, True), (3, False)):
        model = tiny_model("r_transformer", local_window=window, num_hidden_layers=1)
        ours, other = (model(text).last_hidden_state[:, -1] for text in (ids, shuffled))
        assert torch.allclose(ours, other, **EXACT) == same
