"""The R-Transformer against numbers recorded from the authors' code (DSE-MSU/R-transformer).

Its norms divide by `std + 1e-6` with the unbiased standard deviation: the same function as ours, up to the epsilon, with
the scale times sqrt((d - 1) / d).
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from transformers_xl import RTransformerConfig, RTransformerModel
from transformers_xl.modeling.layers.local_rnn import LocalRNN
from transformers_xl.modeling.ops.window import PackedRows


def pytest_generate_tests(metafunc):
    files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob("r_transformer__*.json"))
    metafunc.parametrize("case_file", files, ids=[file.stem for file in files])


NAMES = {
    "layers.0.connection.norm": "local_rnns.0.norm",
    "layers.0.local_rnn.rnn": "local_rnns.0.rnn",
    "connections.0.norm": "input_layernorm",
    "connections.1.norm": "post_attention_layernorm",
    "pooling.linears.0": "self_attn.q_proj",
    "pooling.linears.1": "self_attn.k_proj",
    "pooling.linears.2": "self_attn.v_proj",
    "pooling.linears.3": "self_attn.o_proj",
    "feed_forward.w_1": "mlp.fc1",
    "feed_forward.w_2": "mlp.fc2",
}


def translated(tensors: dict[str, torch.Tensor], prefix: str, scale: float) -> dict[str, torch.Tensor]:
    """Tensors under our names, the scales of the norms times `scale`; what is never used there is left out."""
    ours = {}
    for name, tensor in tensors.items():
        if not name.startswith(f"{prefix}forward_net.") or ".output." in name:
            continue
        layer, name = name.removeprefix(f"{prefix}forward_net.").split(".", 1)
        module, kind = name.rsplit(".", 1)
        if kind == "a_2":
            tensor = tensor * scale
        kind = {"a_2": "weight", "b_2": "bias"}.get(kind, kind)
        ours[f"layers.{layer}.{NAMES[module]}.{kind}"] = tensor
    return ours


def config_of(hyper: dict) -> RTransformerConfig:
    return RTransformerConfig(
        vocab_size=1,
        hidden_size=hyper["d_model"],
        num_attention_heads=hyper["h"],
        num_hidden_layers=hyper["n_level"],
        intermediate_size=4 * hyper["d_model"],
        rnn_type={"RNN": "tanh"}.get(hyper["rnn_type"], hyper["rnn_type"].lower()),
        local_window=hyper["ksize"],
        num_local_rnns=hyper["n"],
        mem_len=16,
        use_final_norm=False,
        layer_norm_eps=1e-12,
        dropout=0.0,
    )


def test_values_and_gradients(case_file: Path):
    case = json.loads(case_file.read_text())
    hyper, tolerance = case["hyper"], case["tolerance"]
    tensors = load_file(case_file.with_suffix(".safetensors"))
    model = RTransformerModel(config_of(hyper))
    scale = ((hyper["d_model"] - 1) / hyper["d_model"]) ** 0.5
    missing, unexpected = model.load_state_dict(translated(tensors, "w.", scale), strict=False)
    assert missing == ["embed_tokens.weight"]
    assert unexpected == []

    x = tensors["in.x"].clone().requires_grad_()
    y = model(inputs_embeds=x).last_hidden_state
    torch.testing.assert_close(y, tensors["out.y"], atol=tolerance["out_atol"], rtol=tolerance["out_rtol"])
    y.square().sum().backward()
    gradients = translated(tensors, "grad.", 1 / scale)
    found = {name: parameter.grad for name, parameter in model.named_parameters() if name in gradients}
    found["x"], gradients["x"] = x.grad, tensors["grad.in.x"]
    assert found.keys() == gradients.keys()
    for name, expected in gradients.items():
        atol = tolerance["grad_atol"] * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(
            found[name], expected, atol=atol, rtol=tolerance["grad_rtol"], msg=lambda m, n=name: f"{n}: {m}"
        )


class NoNorm(nn.Module):
    def before(self, states: torch.Tensor) -> torch.Tensor:
        return states

    after = before


def test_local_rnn(case_file: Path):
    """The network of the first layer, on inputs that no norm has touched."""
    case = json.loads(case_file.read_text())
    tensors = load_file(case_file.with_suffix(".safetensors"))
    hyper, tolerance, x = case["hyper"], case["tolerance"], tensors["in.x"]
    local = LocalRNN(config_of(hyper))
    prefix = "w.forward_net.0.layers.0.local_rnn.rnn."
    local.rnn.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
    local.norm = NoNorm()
    output, _ = local(x, x.new_zeros(len(x), hyper["ksize"] - 1, hyper["d_model"]), PackedRows())
    expected = tensors["out.local_rnn"]
    torch.testing.assert_close(output - x, expected, atol=tolerance["out_atol"], rtol=tolerance["out_rtol"])
