"""The Macaron layer against numbers recorded from the authors' code (zhuohan123/macaron-net).

That layer has no positions and no memory: here it stands on the attention without positions, with biases.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from transformers_xl import MacaronConfig
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.modeling_macaron import MacaronLayer


class LayerWithoutPositions(MacaronLayer):
    attention_class = MemoryAttention


def pytest_generate_tests(metafunc):
    files = sorted(Path(metafunc.config.getoption("--golden-dir")).glob("macaron__*.json"))
    metafunc.parametrize("case_file", files, ids=[file.stem for file in files])


NAMES = {
    "self_attn.out_proj": "self_attn.o_proj",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
    "macaron_fc1": "macaron_mlp.fc1",
    "macaron_fc2": "macaron_mlp.fc2",
}
NORMS = ("input_layernorm", "post_attention_layernorm", "macaron_layernorm")


def translated(
    tensors: dict[str, torch.Tensor], prefix: str, norms: tuple[str, ...] = NORMS
) -> dict[str, torch.Tensor]:
    """Tensors under our names."""
    ours = {}
    for name, tensor in tensors.items():
        if not name.startswith(prefix) or name.startswith("grad.in."):
            continue
        module, kind = name.removeprefix(prefix).rsplit(".", 1)
        if module == "self_attn":  # in_proj_weight and in_proj_bias hold q, k and v
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                ours[f"self_attn.{part}_proj.{kind.removeprefix('in_proj_')}"] = rows
        elif module.startswith("layer_norms."):
            ours[f"{norms[int(module.removeprefix('layer_norms.'))]}.{kind}"] = tensor
        else:
            ours[f"{NAMES[module]}.{kind}"] = tensor
    return ours


def test_values_and_gradients(case_file: Path):
    case = json.loads(case_file.read_text())
    hyper, tolerance = case["hyper"], case["tolerance"]
    if case["use"] == "background":
        pytest.skip(f"background: {case['pins']}")
    if not hyper["macaron"]:
        pytest.skip("this case has no first half step: it is an ordinary Transformer layer")
    tensors = load_file(case_file.with_suffix(".safetensors"))
    if any(name.startswith("w.encoder_attn") for name in tensors):
        pytest.skip("attention to an encoder is not part of the model")
    config = MacaronConfig(
        hidden_size=hyper["dim"],
        num_attention_heads=hyper["heads"],
        intermediate_size=hyper["ffn"],
        norm_position="pre" if hyper["normalize_before"] else "post",
        attention_bias=True,
        dropout=0.0,
    )
    layer = LayerWithoutPositions(config, layer_idx=0)
    layer.load_state_dict(translated(tensors, "w."))

    x = tensors["in.x"].transpose(0, 1).clone().requires_grad_()  # time-major there
    length = x.shape[1]
    visible = torch.ones(1, 1, length, length, dtype=torch.bool)
    if hyper["kind"] == "decoder":
        visible = visible.tril()
    if "in.padding_mask" in tensors:
        visible = visible & ~tensors["in.padding_mask"].bool()[:, None, None, :]
    y = layer(x, visible=visible)[0].transpose(0, 1)
    torch.testing.assert_close(y, tensors["out.y"], atol=tolerance["out_atol"], rtol=tolerance["out_rtol"])

    weights = torch.linspace(-1, 1, y.numel()).view_as(y)
    scalar = y.square().sum() + (y * weights).sum()
    torch.testing.assert_close(scalar.detach(), tensors["out.scalar"].squeeze(), atol=1e-3, rtol=1e-4)
    scalar.backward()
    gradients = translated(tensors, "grad.")
    assert gradients
    found = {name: parameter.grad for name, parameter in layer.named_parameters() if name in gradients}
    found["x"], gradients["x"] = x.grad.transpose(0, 1), tensors["grad.in.x"]
    assert found.keys() == gradients.keys()
    for name, expected in gradients.items():
        atol = tolerance["grad_atol"] * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(
            found[name], expected, atol=atol, rtol=tolerance["grad_rtol"], msg=lambda m, n=name: f"{n}: {m}"
        )
