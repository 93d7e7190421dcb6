"""The Macaron layer against numbers recorded from the authors' code (zhuohan123/macaron-net): encoder, decoder, and the
decoder without an encoder (`no_encoder_attn`), of which that code makes language models.

Those layers have no positions and no memory: here they stand on the attention without positions, with biases. Without
`macaron` they are ordinary layers. The attention to an encoder, which the model has not, is made of the same attention.
"""

from collections.abc import Callable
from pathlib import Path

import golden
import pytest
import torch
from contexts import context_of
from golden import Case
from torch.nn import functional as F

from transformers_xl import MacaronConfig, MacaronEncoderConfig, MacaronEncoderModel
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.layers.transformer_layer import MemoryLayer, SublayerLayerNorm
from transformers_xl.modeling.memory.memory_value import LayerMemory
from transformers_xl.modeling.modeling_macaron import HalfStepFeedForward, MacaronLayer

NAMES = {
    "self_attn.out_proj": "self_attn.o_proj",
    "encoder_attn.out_proj": "encoder_attn.o_proj",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
    "macaron_fc1": "macaron_mlp.fc1",
    "macaron_fc2": "macaron_mlp.fc2",
    # of the encoder
    "layer_norms.0": "input_layernorm",
    "layer_norms.1": "post_attention_layernorm",
    "layer_norms.2": "macaron_layernorm",
    # of the decoder
    "self_attn_layer_norm": "input_layernorm",
    "encoder_attn_layer_norm": "encoder_layernorm",
    "final_layer_norm": "post_attention_layernorm",
    "macaron_layer_norm": "macaron_layernorm",
}


KINDS = ("encoder", "decoder", "lm")
CAUSAL = ("decoder", "lm")
OWN_PADDING = ("padding_mask", "self_attn_padding_mask")  # of the keys of the layer's own sequence


class WithoutPositions(MacaronLayer):
    attention_class = MemoryAttention


class OrdinaryWithoutPositions(MemoryLayer):
    attention_class = MemoryAttention


class ReadsEncoder:
    """A sub-layer between attention and feed-forward: attention to the output of an encoder, taken as it is. A mixin."""

    def __init__(self, config: MacaronConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.encoder_attn, self.encoder_layernorm = MemoryAttention(config, layer_idx), SublayerLayerNorm(config)

    def after_attention(self, hidden_states, attn_output, context, encoded, encoded_visible, **kwargs):
        hidden_states = self.input_layernorm.after(hidden_states + attn_output)
        queries = self.encoder_layernorm.before(hidden_states)
        of_encoder = context_of(queries.shape[1], mask=encoded_visible)
        attended, self.encoder_weights = self.encoder_attn(queries, *self.encoder_attn.project(encoded), of_encoder)
        hidden_states = self.encoder_layernorm.after(hidden_states + attended)
        mlp_output = self.feed_forward(self.post_attention_layernorm.before(hidden_states), context)
        return self.post_attention_layernorm.after(hidden_states + mlp_output)


class DecoderLayer(ReadsEncoder, WithoutPositions):
    pass


class OrdinaryDecoderLayer(ReadsEncoder, OrdinaryWithoutPositions):
    pass


# by whether the layer has a first half step, and whether it reads an encoder
LAYERS = {
    (True, False): WithoutPositions,
    (False, False): OrdinaryWithoutPositions,
    (True, True): DecoderLayer,
    (False, True): OrdinaryDecoderLayer,
}


def translated(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under our names."""
    ours = {}
    for name, tensor in tensors.items():
        module, kind = name.rsplit(".", 1)
        if kind.startswith("in_proj_"):  # q, k and v
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                ours[f"{module}.{part}_proj.{kind.removeprefix('in_proj_')}"] = rows
        else:
            ours[f"{NAMES[module]}.{kind}"] = tensor
    return ours


def describe(case: Case, weights: dict[str, torch.Tensor]) -> None:
    """What tensors show too; sizes of a part that a kind has not are there all the same."""
    hyper, (length, batch, _) = case.hyper, case.inputs["x"].shape
    hyper.only_describe(len=length, batch=batch, ffn=len(weights["mlp.fc1.bias"]))
    encoded = case.inputs.get("encoder_out")
    assert (encoded is not None) == (case.choice("kind", *KINDS) == "decoder"), "a decoder alone reads an encoder"
    hyper.only_describe(src_len=hyper.get("src_len") if encoded is None else len(encoded))
    masked = any(name.endswith("padding_mask") for name in case.inputs)
    if not case.choice("padding", True, False):
        assert not masked, "padding=False, but there is a mask"
    assert masked or not hyper["padding"] or hyper["kind"] == "lm", "padding=True, but there is no mask"


def build(case: Case) -> MemoryLayer:
    hyper, weights = case.hyper, translated(case.weights)
    describe(case, weights)
    config = MacaronConfig(
        hidden_size=hyper["dim"],
        num_attention_heads=hyper["heads"],
        intermediate_size=len(weights["mlp.fc1.bias"]),
        norm_position="pre" if hyper["normalize_before"] else "post",
        attention_bias=True,
        dropout=0.0,
    )
    config._attn_implementation = "eager"
    reads_encoder = any(name.startswith("encoder_attn") for name in weights)
    layer = LAYERS[hyper["macaron"], reads_encoder](config, layer_idx=0)
    if hyper["macaron"]:  # in the decoder of that code its width is the encoder's
        config.intermediate_size = len(weights["macaron_mlp.fc1.bias"])
        layer.macaron_mlp = HalfStepFeedForward(config)
    layer.to(case.dtype).load_state_dict(weights)
    return layer


def visible_pairs(case: Case) -> torch.Tensor:
    length = len(case.inputs["x"])
    visible = torch.ones(1, 1, length, length, dtype=torch.bool)
    if case.choice("kind", *KINDS) in CAUSAL:
        visible = visible.tril()
    for name in OWN_PADDING:
        if name in case.inputs:
            visible = visible & ~case.inputs[name].bool()[:, None, None, :]
    return visible


@golden.cases("macaron")
def test_values_and_gradients(case: Case):
    layer, context = build(case), {}
    inputs = {name: case.leaf(name) for name in ("x", "encoder_out") if name in case.inputs}
    if "encoder_out" in inputs:
        context["encoded"] = inputs["encoder_out"].transpose(0, 1)
        padding = case.inputs.get("encoder_padding_mask", torch.zeros(context["encoded"].shape[:2]))
        context["encoded_visible"] = ~padding.bool()[:, None, None, :]
    x, pairs = inputs["x"].transpose(0, 1), visible_pairs(case)  # time-major there
    y = layer(x, LayerMemory(), context_of(x.shape[1], mask=pairs), **context)[0].transpose(0, 1)
    case.check("y", y)
    if "encoder_out" in inputs:
        case.check("encoder_attn_weights", layer.encoder_weights.mean(dim=1))
    scalar = golden.squares(y) + (y * golden.ramp(y)).sum()
    case.check("scalar", scalar)
    scalar.backward()
    case.check_gradients(golden.gradients_of(layer, **inputs), translated)
    case.finish()


ENCODERS = [file for file in golden.files_of("macaron") if golden.described_in(file.parent)[file]["hyper"]["macaron"]]
ENCODERS = [file for file in ENCODERS if golden.described_in(file.parent)[file]["hyper"]["kind"] == "encoder"]


@pytest.mark.parametrize("case", ENCODERS, ids=[file.stem for file in ENCODERS], indirect=True)
def test_the_encoder_of_one_layer(case: Case):
    """`MacaronEncoderModel` itself: with projections of positions and biases of zero its attention is the recorded one."""
    hyper, weights = case.hyper, translated(case.weights)
    describe(case, weights)
    case.choice("macaron", True)
    config = MacaronEncoderConfig(
        vocab_size=3,
        hidden_size=hyper["dim"],
        num_hidden_layers=1,
        num_attention_heads=hyper["heads"],
        intermediate_size=len(weights["mlp.fc1.bias"]),
        norm_position="pre" if hyper["normalize_before"] else "post",
        use_final_norm=False,
        attention_bias=True,
        dropout=0.0,
    )
    model = MacaronEncoderModel(config).to(case.dtype)
    for name, parameter in model.named_parameters():
        if "r_proj" in name or "content_bias" in name or "position_bias" in name:
            torch.nn.init.zeros_(parameter)
    assert not model.layers[0].load_state_dict(weights, strict=False).unexpected_keys
    x, padding = case.leaf("x"), [case.inputs[name] for name in OWN_PADDING if name in case.inputs]
    mask = None if not padding else ~padding[0].bool()
    y = model(inputs_embeds=x.transpose(0, 1), attention_mask=mask).last_hidden_state.transpose(0, 1)
    case.check("y", y)
    scalar = golden.squares(y) + (y * golden.ramp(y)).sum()
    case.check("scalar", scalar)
    scalar.backward()
    case.check_gradients(golden.gradients_of(model.layers[0], x=x), translated)
    case.finish()


def sublayers(weights: dict[str, torch.Tensor], hyper: dict, x: torch.Tensor) -> torch.Tensor:
    """The layer of a language model by its equations, time-major: half a feed-forward, causal attention, another half."""

    def around(norm: str, x: torch.Tensor, inner: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        def normed(states: torch.Tensor) -> torch.Tensor:
            return F.layer_norm(states, states.shape[-1:], weights[f"{norm}.weight"], weights[f"{norm}.bias"])

        return x + inner(normed(x)) if hyper["normalize_before"] else normed(x + inner(x))

    def feed_forward(prefix: str) -> Callable[[torch.Tensor], torch.Tensor]:
        (w1, b1), (w2, b2) = ([weights[f"{prefix}fc{i}.{kind}"] for kind in ("weight", "bias")] for i in (1, 2))
        return lambda states: 0.5 * F.linear(F.linear(states, w1, b1).relu(), w2, b2)

    def attend(states: torch.Tensor) -> torch.Tensor:
        future = torch.ones(len(states), len(states), dtype=torch.bool).triu(1)
        width, heads = states.shape[-1], hyper["heads"]
        maps = [weights[f"self_attn.{name}"] for name in ("in_proj_weight", "in_proj_bias")]
        out = [weights[f"self_attn.out_proj.{kind}"] for kind in ("weight", "bias")]
        given = (states, states, states, width, heads, *maps, None, None, False, 0.0, *out)
        return F.multi_head_attention_forward(*given, attn_mask=future, need_weights=False)[0]

    x = around("macaron_layer_norm", x, feed_forward("macaron_"))
    x = around("self_attn_layer_norm", x, attend)
    return around("final_layer_norm", x, feed_forward(""))


@pytest.mark.parametrize("normalize_before", [False, True])
def test_a_layer_of_a_language_model(normalize_before: bool, tmp_path: Path):
    """A decoder of that code without an encoder; it has the fields of the other kinds all the same."""
    hyper = {"kind": "lm", "dim": 12, "heads": 3, "ffn": 20, "normalize_before": normalize_before, "macaron": True}
    hyper |= {"len": 5, "src_len": 6, "batch": 2, "padding": True}
    shapes = {
        "self_attn.in_proj_weight": (36, 12),
        "self_attn.in_proj_bias": (36,),
        "self_attn.out_proj.weight": (12, 12),
    }
    shapes |= {"self_attn.out_proj.bias": (12,)}
    for name, out, inner in (("fc1", 20, 12), ("fc2", 12, 20)):
        for prefix in ("", "macaron_"):
            shapes |= {f"{prefix}{name}.weight": (out, inner), f"{prefix}{name}.bias": (out,)}
    for norm in ("macaron_layer_norm", "self_attn_layer_norm", "final_layer_norm"):
        shapes |= {f"{norm}.weight": (12,), f"{norm}.bias": (12,)}
    weights = {name: torch.randn(shape).mul(0.5).requires_grad_() for name, shape in shapes.items()}
    x = torch.randn(5, 2, 12)
    y = sublayers(weights, hyper, x)
    (golden.squares(y) + (y * golden.ramp(y)).sum()).backward()
    tensors = {"in.x": x, "out.y": y} | {f"w.{name}": each for name, each in weights.items()}
    tensors |= {f"grad.{name}": each.grad for name, each in weights.items()}
    case = golden.write_case(tmp_path / "made.json", "macaron", hyper, tensors, out_atol=1e-4, grad_atol=1e-4)
    test_values_and_gradients(case)
    case.check_all_read()
