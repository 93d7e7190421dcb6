"""Multi-linear attention against numbers recorded from the authors' code (szhangtju/The-compression-of-Transformer).

Their layer sees what comes after a token; `NonCausalMultiLinearAttention` is theirs on the factors of ours. The language
model that they build of it is background.
"""

import golden
import torch
from golden import Case

from transformers_xl import TensorizedTransformerConfig
from transformers_xl.modeling.layers.attention import RelativeBias
from transformers_xl.modeling.layers.multi_linear_attention import NonCausalMultiLinearAttention
from transformers_xl.modeling.layers.transformer_layer import SublayerLayerNorm

NAMES = {
    "r_net.weight": "attention.r_proj.weight",
    "o_net.weight": "attention.o_proj.weight",
    "layer_norm.weight": "norm.weight",
    "layer_norm.bias": "norm.bias",
}


# what stands around an attention there
OF_THE_LANGUAGE_MODEL = (
    "n_token", "n_layer", "d_inner", "clamp_len", "cutoffs", "d_embed", "div_val", "tie_projs", "same_length", "tie_weight"
)  # fmt: skip


def translated(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights, or their gradients, under our names: theirs has one map of queries, keys and values, and one head."""
    ours = {}
    for name, tensor in tensors.items():
        if name == "qkv_net.weight":
            ours |= {f"attention.{part}_proj.weight": rows for part, rows in zip("qkv", tensor.chunk(3), strict=True)}
        elif name == "core_value":
            ours["attention.cores"] = tensor[None]
        else:
            ours[NAMES[name]] = tensor
    return ours


@golden.cases("tensorized")
def test_values_and_gradients(case: Case):
    hyper = case.hyper
    case.choice("kind", "attn", but=["lm"], reason="its language model sees the future")
    case.skip_background()
    window, (length, batch, _) = len(case.inputs["r"]), case.inputs["w"].shape
    hyper.only_describe(tgt_len=length, mem_len=window - length, batch=batch)
    hyper.change_nothing(*OF_THE_LANGUAGE_MODEL)
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
    sublayer = torch.nn.ModuleDict({"attention": attention, "norm": norm}).to(case.dtype)
    sublayer.load_state_dict(translated(case.weights))
    bias.to(case.dtype)
    bias.load_state_dict({"content_bias": case.inputs["r_w_bias"], "position_bias": case.inputs["r_r_bias"]})

    inputs = {name: case.leaf(name) for name in ("w", "r", "mems") if name in case.inputs}
    x = inputs["w"].transpose(0, 1)
    memory = norm.before(inputs["mems"].transpose(0, 1)) if "mems" in inputs else None
    attended = attention(norm.before(x), inputs["r"].squeeze(1), bias, memory)
    y = norm.after(x + attended).transpose(0, 1)
    case.check("y", y)
    scalar = golden.squares(y) + (y * golden.ramp(y)).sum()
    case.check("scalar", scalar)
    scalar.backward()
    of_biases = {"in.r_w_bias": bias.content_bias.grad, "in.r_r_bias": bias.position_bias.grad}
    case.check_gradients(golden.gradients_of(sublayer, **inputs) | of_biases, translated)
    case.finish()
