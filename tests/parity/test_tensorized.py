"""Multi-linear attention against numbers recorded from the authors' code (szhangtju/The-compression-of-Transformer).

Their layer sees what comes after a token; `NonCausalMultiLinearAttention` is theirs on the factors of ours. The language
model that they build of it is background.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from transformers_xl import TensorizedTransformerConfig
from transformers_xl.modeling.layers.multi_linear_attention import NonCausalMultiLinearAttention
from transformers_xl.modeling.layers.normalization import SublayerLayerNorm
from transformers_xl.modeling.layers.positions import RelativeBias


def pytest_generate_tests(metafunc):
    files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob("tensorized__*.json"))
    metafunc.parametrize("case_file", files, ids=[file.stem for file in files])


def translated(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Weights, or their gradients, under our names: theirs has one map of queries, keys and values, and one head."""
    query, key, value = tensors[f"{prefix}qkv_net.weight"].chunk(3)
    return {
        "attention.q_proj.weight": query,
        "attention.k_proj.weight": key,
        "attention.v_proj.weight": value,
        "attention.r_proj.weight": tensors[f"{prefix}r_net.weight"],
        "attention.o_proj.weight": tensors[f"{prefix}o_net.weight"],
        "attention.cores": tensors[f"{prefix}core_value"][None],
        "norm.weight": tensors[f"{prefix}layer_norm.weight"],
        "norm.bias": tensors[f"{prefix}layer_norm.bias"],
    }


def test_values_and_gradients(case_file: Path):
    case = json.loads(case_file.read_text())
    hyper, tolerance = case["hyper"], case["tolerance"]
    if hyper["kind"] != "attn":
        pytest.skip(f"background: {case['pins']}")
    tensors = load_file(case_file.with_suffix(".safetensors"))
    window = len(tensors["in.r"])
    config = TensorizedTransformerConfig(
        hidden_size=hyper["d_model"],
        num_attention_heads=hyper["n_head"],
        head_dim=hyper["d_head"],
        num_cores=hyper["core_nums"],
        attention_window=window,
        mem_len=window - 1,
        same_length=window > 1,
        norm_position="pre" if hyper["pre_lnorm"] else "post",
        share_relative_bias=True,
    )
    attention, norm, bias = NonCausalMultiLinearAttention(config, 0), SublayerLayerNorm(config), RelativeBias(config)
    sublayer = torch.nn.ModuleDict({"attention": attention, "norm": norm})
    sublayer.load_state_dict(translated(tensors, "w."))
    bias.load_state_dict({"content_bias": tensors["in.r_w_bias"], "position_bias": tensors["in.r_r_bias"]})

    x = tensors["in.w"].clone().requires_grad_()
    batch_first = x.transpose(0, 1)
    memory = norm.before(tensors["in.mems"].transpose(0, 1)) if "in.mems" in tensors else None
    attended = attention(norm.before(batch_first), tensors["in.r"].squeeze(1), bias, memory)
    y = norm.after(batch_first + attended).transpose(0, 1)
    torch.testing.assert_close(y, tensors["out.y"], atol=tolerance["out_atol"], rtol=tolerance["out_rtol"])

    t = torch.linspace(-1, 1, y.numel()).view(y.shape)
    (y.square().sum() + (y * t).sum()).backward()
    expected = translated(tensors, "grad.") | {"x": tensors["grad.in.w"]}
    found = {name: parameter.grad for name, parameter in sublayer.named_parameters()} | {"x": x.grad}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        atol = tolerance["grad_atol"] * max(1.0, gradient.abs().max().item())
        torch.testing.assert_close(
            found[name], gradient, atol=atol, rtol=tolerance["grad_rtol"], msg=lambda m, n=name: f"{n}: {m}"
        )
