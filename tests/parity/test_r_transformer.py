"""The R-Transformer against numbers recorded from the authors' code (DSE-MSU/R-transformer).

Its norms divide by `std + 1e-6` with the unbiased standard deviation. Up to the epsilon that is our function with the scale
times sqrt((d - 1) / d); deep stacks make a difference of it, so theirs stand here in the places of ours.
"""

import golden
import pytest
import torch
from contexts import context_of
from golden import Case
from torch import nn

from transformers_xl import RTransformerConfig, RTransformerModel
from transformers_xl.modeling.layers.local_rnn import LocalRNN
from transformers_xl.modeling.layers.transformer_layer import SublayerLayerNorm

NAMES = {
    "connections.0.norm": "input_layernorm",
    "connections.1.norm": "post_attention_layernorm",
    "pooling.linears.0": "self_attn.q_proj",
    "pooling.linears.1": "self_attn.k_proj",
    "pooling.linears.2": "self_attn.v_proj",
    "pooling.linears.3": "self_attn.o_proj",
    "feed_forward.w_1": "mlp.fc1",
    "feed_forward.w_2": "mlp.fc2",
}
FIRST_RNN = "forward_net.0.layers.0.local_rnn.rnn."


class TheirNorm(SublayerLayerNorm):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        centred = states - states.mean(-1, keepdim=True)
        return self.weight * centred / (states.std(-1, keepdim=True) + 1e-6) + self.bias


def test_our_norm_is_theirs_up_to_the_epsilon():
    config = RTransformerConfig(hidden_size=8, num_attention_heads=1, layer_norm_eps=1e-12)
    ours, theirs = SublayerLayerNorm(config), TheirNorm(config)
    for norm, scale in ((ours, (7 / 8) ** 0.5), (theirs, 1.0)):
        torch.nn.init.constant_(norm.weight, 3.0 * scale)
    states = torch.randn(5, 8)
    torch.testing.assert_close(ours(states), theirs(states))


def translated(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under our names; what is never used there is left out."""
    ours = {}
    for name, tensor in tensors.items():
        if not name.startswith("forward_net.") or ".output." in name:
            continue
        match name.split("."):
            case [_, level, "layers", index, "connection", "norm", kind]:
                place = f"layers.{level}.local_rnns.{index}.norm"
            case [_, level, "layers", index, "local_rnn", "rnn", kind]:
                place = f"layers.{level}.local_rnns.{index}.rnn"
            case [_, level, *module, kind]:
                place = f"layers.{level}.{NAMES['.'.join(module)]}"
        ours[f"{place}.{ {'a_2': 'weight', 'b_2': 'bias'}.get(kind, kind) }"] = tensor
    return ours


def config_of(case: Case) -> RTransformerConfig:
    hyper = case.hyper
    batch, length, _ = case.inputs["x"].shape
    hyper.only_describe(batch=batch, length=length)
    return RTransformerConfig(
        vocab_size=1,
        hidden_size=hyper["d_model"],
        num_attention_heads=hyper["h"],
        num_hidden_layers=hyper["n_level"],
        intermediate_size=len(case.weights["forward_net.0.feed_forward.w_1.bias"]),
        rnn_type={"RNN": "tanh", "GRU": "gru", "LSTM": "lstm"}[case.choice("rnn_type", "RNN", "GRU", "LSTM")],
        local_window=hyper["ksize"],
        num_local_rnns=hyper["n"],
        same_length=False,  # all that came before is seen
        use_final_norm=False,
        dropout=0.0,
    )


@golden.cases("r_transformer")
def test_values_and_gradients(case: Case):
    model = RTransformerModel(config_of(case)).to(case.dtype)
    for module in model.modules():
        if isinstance(module, SublayerLayerNorm):
            module.__class__ = TheirNorm
    missing, unexpected = model.load_state_dict(translated(case.weights), strict=False)
    assert (missing, unexpected) == (["embed_tokens.weight"], [])
    x = case.leaf("x")
    y = model(inputs_embeds=x).last_hidden_state
    case.check("y", y)
    case.check("scalar", golden.squares(y))
    golden.squares(y).backward()
    case.check_gradients(golden.gradients_of(model, x=x), translated)
    case.finish("local_rnn")  # the next test


class NoNorm(nn.Module):
    def before(self, states: torch.Tensor) -> torch.Tensor:
        return states

    after = before


@golden.cases("r_transformer")
def test_local_rnn(case: Case):
    """The network of the first layer, on inputs that no norm has touched."""
    if not case.has("local_rnn"):
        pytest.skip("the case has no outputs of the network alone")
    local, x = LocalRNN(config_of(case)).to(case.dtype), case.inputs["x"]
    weights = {name.removeprefix(FIRST_RNN): each for name, each in case.weights.items() if name.startswith(FIRST_RNN)}
    local.rnn.load_state_dict(weights)
    local.norm = NoNorm()
    num_before = case.hyper["ksize"] - 1
    segment = context_of(x.shape[1], num_before, len(x)).segment
    output, _ = local(x, x.new_zeros(len(x), num_before, x.shape[-1]), segment)
    case.check("local_rnn", output - x)
    case.finish("y", "scalar")
