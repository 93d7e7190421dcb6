"""The causal Longformer's attention against numbers of a naive form of the paper's equations, without positions.

The paper's language model has no global tokens: cases that have some are left out.
"""

import golden
import pytest
import torch
from contexts import context_of
from golden import Case

from transformers_xl import CausalLongformerConfig
from transformers_xl.modeling.layers.attention import RelativePositions
from transformers_xl.modeling.layers.banded_attention import BandedAttention
from transformers_xl.modeling.ops import band


@golden.cases("longformer_causal")
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("piece_length", [1, 4, 64])
def test_values_and_gradients(case: Case, implementation: str, piece_length: int, monkeypatch):
    if any(case.hyper["global_positions"]):
        case.out_of_scope("the paper's language model has no global tokens", "global_positions", "separate_global")
    case.hyper.change_nothing("separate_global")  # of global tokens
    assert not case.inputs.get("global_mask", torch.zeros(1)).any()
    monkeypatch.setattr(band, "PIECE_LENGTH", piece_length)
    inputs = {name: case.leaf(name) for name in "qkv"}
    case.hyper.only_describe(**dict(zip(("batch", "heads", "len", "dim"), inputs["q"].shape, strict=True)))
    outputs = []
    for layer, fields in enumerate(case.hyper["layers"]):
        output, weights = attend(fields, case, implementation, list(inputs.values()))
        outputs.append(output)
        case.check(f"out_layer{layer}", output.transpose(1, 2))
        if implementation == "eager":
            case.check(f"mask_layer{layer}", weights > 0)
    total = golden.squares(*outputs)
    case.check("scalar", total)
    total.backward()
    case.check_gradients({f"in.{name}": tensor.grad for name, tensor in inputs.items()})
    case.finish("mask_layer*" if implementation != "eager" else "")


def attend(fields: dict, case: Case, implementation: str, inputs: list[torch.Tensor]) -> tuple:
    """One attention of the case, each of them over the same queries, keys and values."""
    heads, length, dim = inputs[0].shape[1:]
    window = fields["window"] - case.hyper["includes_self"]  # ours counts the positions before a token
    dilation = fields["dilation"] if isinstance(fields["dilation"], list) else [fields["dilation"]] * heads
    config = CausalLongformerConfig(
        hidden_size=heads * dim, num_attention_heads=heads, head_dim=dim, num_hidden_layers=1, same_length=False,
        attention_window=window, attention_dilation=[dilation], mem_len=window * max(dilation),
    )  # fmt: skip
    config._attn_implementation = implementation
    attention, positions = BandedAttention(config, layer_idx=0), RelativePositions(config)
    for module in (attention, positions):
        module.to(case.dtype)
    for parameter in (attention.r_proj.weight, *positions.parameters()):
        torch.nn.init.zeros_(parameter)  # the case has no positions
    table = positions(max(length, config.layer_windows[0]), inputs[0])
    told = {"window": config.layer_windows[0], "positions": table, "bias": positions.bias()}
    return attention.attend(*inputs, context_of(length, batch=len(inputs[0]), **told))
