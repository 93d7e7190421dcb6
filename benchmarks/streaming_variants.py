r"""The Streaming Transformer with one part exchanged, for its ablation, and the command line that knows these models.

    python benchmarks/streaming_variants.py compare benchmarks/streaming_ablation.yaml \
        -o benchmarks/results/streaming_ablation

The model itself has no options for what it is not. Heads with gates: Qiu et al., 2025, https://arxiv.org/abs/2505.06708.
Values of the first layer in all layers: Zhou et al., 2024, https://arxiv.org/abs/2410.17897.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import initialization as init

from transformers_xl.cli.main import app
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig
from transformers_xl.configuration.configuration_streaming_transformer import StreamingTransformerConfig
from transformers_xl.modeling.auto import VARIANTS, Variant
from transformers_xl.modeling.layers.attention import RelativeAttention, RelativePositions
from transformers_xl.modeling.layers.rotary_attention import RotaryAttention
from transformers_xl.modeling.layers.rotary_positions import Rotation
from transformers_xl.modeling.layers.transformer_layer import FeedForward
from transformers_xl.modeling.memory.memory_value import LayerMemory
from transformers_xl.modeling.modeling_streaming_transformer import (
    StreamingTransformerForCausalLM,
    StreamingTransformerLayer,
    StreamingTransformerModel,
)
from transformers_xl.runs.comparison_models import register_variant


class PlainFeedForwardLayer(StreamingTransformerLayer):
    """Two matrices with `config.hidden_act` between them, and no gate."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.mlp = FeedForward(config)


class WithoutQKNormLayer(StreamingTransformerLayer):
    """Queries and keys as they were projected."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.self_attn.q_norm = self.self_attn.k_norm = nn.Identity()


class RMSNormLayer(StreamingTransformerLayer):
    """RMS norms where the model has layer norms; its model has one after the last layer too."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.self_attn.q_norm = nn.RMSNorm(config.head_dim, eps=config.layer_norm_eps)
        self.self_attn.k_norm = nn.RMSNorm(config.head_dim, eps=config.layer_norm_eps)


@strict
class RelativeStreamingConfig(RelativeAttentionConfig, StreamingTransformerConfig):
    """With the fields of relative positions."""

    model_type = "relative_streaming_transformer"


class RelativeKeysAttention(RelativeAttention):
    """Transformer-XL's relative positions, with norms of queries and keys; it remembers keys and values."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.q_norm = nn.LayerNorm(config.head_dim, eps=config.layer_norm_eps, bias=False)
        self.k_norm = nn.LayerNorm(config.head_dim, eps=config.layer_norm_eps, bias=False)

    def queries(self, hidden_states):
        return self.q_norm(super().queries(hidden_states))

    def project(self, hidden_states):
        key, value = super().project(hidden_states)
        return self.k_norm(key), value

    def columns(self, hidden_states, past, context):
        """Keys and values of `[past; segment]`, and what is remembered of them."""
        return context.append(past, self.project(hidden_states))

    def attend_to_past(self, hidden_states, past, rotation, context, **kwargs):
        columns, kept = self.columns(hidden_states, past, context)
        return self(hidden_states, *columns, context, **kwargs)[0], kept


class RelativeInputsAttention(RelativeKeysAttention):
    """The same, and it remembers inputs as Transformer-XL does: gradients reach the projections of the past."""

    def columns(self, hidden_states, past, context):
        return context.extend(past, hidden_states, self.project(hidden_states), self.project)


class RelativeKeysLayer(StreamingTransformerLayer):
    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.self_attn = RelativeKeysAttention(config, layer_idx)


class RelativeInputsLayer(StreamingTransformerLayer):
    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.self_attn = RelativeInputsAttention(config, layer_idx)

    def new_memory(self, batch, num_columns, like):
        inputs = like.new_zeros(batch, num_columns, self.self_attn.config.hidden_size)
        return LayerMemory((inputs,), super().new_memory(batch, 0, like).state)


class HeadGateAttention(RotaryAttention):
    """What a head attended to is multiplied by `2 sigmoid(gate(x))`, a number for each head and token."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.gate = nn.Linear(config.hidden_size, self.num_heads, bias=False)

    def forward(self, hidden_states, key, value, context, **kwargs):
        attn_output, weights = self.attend(self.queries(hidden_states), key, value, context, **kwargs)
        gates = 2 * self.gate(hidden_states).sigmoid()
        return self.merge_heads(attn_output * gates[..., None]), weights


class HeadGateLayer(StreamingTransformerLayer):
    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.self_attn = HeadGateAttention(config, layer_idx)


class SharedValuesPlan(NamedTuple):
    """What the layers are told of a call; the first one leaves its values there for the others."""

    rotation: Rotation
    ngrams: torch.Tensor | None
    first_values: list[torch.Tensor]


class ValueResidualAttention(RotaryAttention):
    """`value = a value + b value of the first layer`, a and b learned from 1/2 on."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.value_shares = nn.Parameter(torch.empty(2))

    def init_weights(self, config):
        init.constant_(self.value_shares, 0.5)

    def attend_to_past(self, hidden_states, past, rotation, context, **kwargs):
        key, value = self.project(hidden_states)
        shared = context.plan.first_values
        if self.layer_idx == 0:
            shared.append(value)
        else:
            value = self.value_shares[0] * value + self.value_shares[1] * shared[0]
        columns, kept = context.append(past, (rotation.turn(key), value))
        return self(hidden_states, *columns, context, rotation=rotation, **kwargs)[0], kept


class ValueResidualLayer(StreamingTransformerLayer):
    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.self_attn = ValueResidualAttention(config, layer_idx)


class ValueResidualModel(StreamingTransformerModel):
    layer_class = ValueResidualLayer

    def plan(self, segment, memory):
        segment, plan, state = super().plan(segment, memory)
        return segment, SharedValuesPlan(*plan, []), state


def with_layer(
    layer: type[nn.Module], config=StreamingTransformerConfig, base=StreamingTransformerModel, **parts
) -> Variant:
    """The row of a Streaming Transformer that has these layers, and other classes where `parts` name some."""
    name = layer.__name__.removesuffix("Layer")
    model = type(f"{name}Model", (base,), {"layer_class": layer} | parts)
    head = type(f"{name}ForCausalLM", (StreamingTransformerForCausalLM,), {"model_class": model})
    return replace(VARIANTS["streaming_transformer"], config_class=config, model_class=model, causal_lm_class=head)


RELATIVE = {"config": RelativeStreamingConfig, "positions_class": RelativePositions}
STREAMING_VARIANTS = {
    "streaming_plain_feed_forward": with_layer(PlainFeedForwardLayer),
    "streaming_without_qk_norm": with_layer(WithoutQKNormLayer),
    "streaming_rms_norm": with_layer(RMSNormLayer, norm_class=nn.RMSNorm),
    "streaming_relative_keys": with_layer(RelativeKeysLayer, **RELATIVE),
    "streaming_relative_inputs": with_layer(RelativeInputsLayer, **RELATIVE),
    "streaming_head_gates": with_layer(HeadGateLayer),
    "streaming_value_residual": with_layer(ValueResidualLayer, base=ValueResidualModel),
}
# where this file is imported: by tests, and by the processes of a comparison, which import what was started
for _name, _variant in STREAMING_VARIANTS.items():
    register_variant(_name, _variant)


if __name__ == "__main__":
    app(prog_name="streaming_variants.py")
