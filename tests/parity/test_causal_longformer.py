"""The causal Longformer's attention against numbers of a naive form of the paper's equations, without positions.

The case with global tokens is background: the paper's language model has none.
"""

import json

import pytest
import torch
from safetensors.torch import load_file

from transformers_xl import CausalLongformerConfig
from transformers_xl.modeling.layers.banded_attention import BandedAttention
from transformers_xl.modeling.layers.positions import RelativePositions
from transformers_xl.modeling.ops import band
from transformers_xl.modeling.ops.window import PackedRows

CASE = "longformer_causal__a.json"


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("piece_length", [1, 4, 64])
def test_values_and_gradients(request: pytest.FixtureRequest, implementation: str, piece_length: int, monkeypatch):
    monkeypatch.setattr(band, "PIECE_LENGTH", piece_length)
    path = request.config.getoption("--golden-dir") / CASE
    case, tensors = json.loads(path.read_text()), load_file(path.with_suffix(".safetensors"))
    hyper, tolerance = case["hyper"], case["tolerance"]
    inputs = [tensors[f"in.{name}"].clone().requires_grad_() for name in "qkv"]
    total = 0.0
    for layer, fields in enumerate(hyper["layers"]):
        output, weights = attend(fields, hyper, implementation, inputs)
        expected = tensors[f"out.out_layer{layer}"]
        torch.testing.assert_close(
            output.transpose(1, 2), expected, atol=tolerance["out_atol"], rtol=tolerance["out_rtol"]
        )
        if implementation == "eager":
            assert torch.equal(weights > 0, tensors[f"out.mask_layer{layer}"].bool())
        total = total + output.square().sum()
    torch.testing.assert_close(total, tensors["out.scalar"][0], atol=tolerance["out_atol"], rtol=tolerance["out_rtol"])
    for name, gradient in zip("qkv", torch.autograd.grad(total, inputs), strict=True):
        expected = tensors[f"grad.in.{name}"]
        atol = tolerance["grad_atol"] * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(gradient, expected, atol=atol, rtol=tolerance["grad_rtol"])


def attend(fields: dict, hyper: dict, implementation: str, inputs: list[torch.Tensor]) -> tuple:
    """One attention of the case, each of them over the same queries, keys and values."""
    config = CausalLongformerConfig(
        hidden_size=hyper["heads"] * hyper["dim"], num_attention_heads=hyper["heads"], num_hidden_layers=1,
        attention_window=fields["window"], attention_dilation=[fields["dilation"]], mem_len=hyper["len"],
    )  # fmt: skip
    config._attn_implementation = implementation
    attention, positions = BandedAttention(config, layer_idx=0), RelativePositions(config)
    for parameter in (attention.r_proj.weight, *positions.parameters()):
        torch.nn.init.zeros_(parameter)  # the case has no positions
    table = positions(hyper["len"], inputs[0]), positions.bias
    return attention.attend(
        *inputs, None, False, {"position_embeddings": table}, rows=PackedRows(), window=config.layer_windows[0]
    )
