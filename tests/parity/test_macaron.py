"""The Macaron layer against numbers recorded from the authors' code (zhuohan123/macaron-net): encoder and decoder.

Those layers have no positions and no memory: here they stand on the attention without positions, with biases. Without
`macaron` they are ordinary layers. The attention to an encoder, which the model has not, is made of the same attention.
"""

import golden
import torch
from golden import Case

from transformers_xl import MacaronConfig
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.layers.normalization import SublayerLayerNorm
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.layers.transformer_layer import MemoryLayer
from transformers_xl.modeling.memory.column_memory import ColumnMemory
from transformers_xl.modeling.memory.window_memory import AttentionMemory
from transformers_xl.modeling.modeling_macaron import HalfStepFeedForward, MacaronLayer
from transformers_xl.modeling.ops.key_mask import KeyMask

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


class WithoutPositions(MacaronLayer):
    attention_class = MemoryAttention


class OrdinaryWithoutPositions(MemoryLayer):
    attention_class = MemoryAttention


class ReadsEncoder:
    """A sub-layer between attention and feed-forward: attention to the output of an encoder, taken as it is. A mixin."""

    def __init__(self, config: MacaronConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.encoder_attn, self.encoder_layernorm = MemoryAttention(config, layer_idx), SublayerLayerNorm(config)

    def after_attention(self, hidden_states, attn_output, segment, encoded, encoded_visible, **kwargs):
        hidden_states = self.input_layernorm.after(hidden_states + attn_output)
        queries = self.encoder_layernorm.before(hidden_states)
        memory = ColumnMemory.with_mask(KeyMask(encoded_visible))
        attended, self.encoder_weights = self.encoder_attn(queries, None, memory, key_states=encoded)
        hidden_states = self.encoder_layernorm.after(hidden_states + attended)
        mlp_output = self.feed_forward(self.post_attention_layernorm.before(hidden_states), segment)
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


def build(case: Case) -> MemoryLayer:
    hyper, weights = case.hyper, translated(case.weights)
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
    if case.hyper["kind"] == "decoder":
        visible = visible.tril()
    if "padding_mask" in case.inputs:
        visible = visible & ~case.inputs["padding_mask"].bool()[:, None, None, :]
    return visible


@golden.cases("macaron")
def test_values_and_gradients(case: Case):
    layer, context = build(case), {}
    inputs = {name: case.leaf(name) for name in ("x", "encoder_out") if name in case.inputs}
    if "encoder_out" in inputs:
        context["encoded"] = inputs["encoder_out"].transpose(0, 1)
        padding = case.inputs.get("encoder_padding_mask")
        context["encoded_visible"] = None if padding is None else ~padding.bool()[:, None, None, :]
    memory = AttentionMemory(ColumnMemory.with_mask(KeyMask(visible_pairs(case))))
    y = layer(inputs["x"].transpose(0, 1), memory, SegmentContext(), **context)[0].transpose(0, 1)  # time-major there
    case.check("y", y)
    if "encoder_out" in inputs:
        case.check("encoder_attn_weights", layer.encoder_weights.mean(dim=1))
    scalar = golden.squares(y) + (y * golden.ramp(y)).sum()
    case.check("scalar", scalar)
    scalar.backward()
    case.check_gradients(golden.gradients_of(layer, **inputs), translated)
    case.finish()
