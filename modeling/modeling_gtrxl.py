"""Gated Transformer-XL: Parisotto et al., 2019, https://arxiv.org/abs/1910.06764, section 3.

Transformer-XL for unsteady objectives: the norm moves to the input of each sub-layer, which leaves a path of identity maps
from the first layer to the last, and a gate takes the place of the residual sum.
"""

import torch
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_gtrxl import GTrXLConfig, GTrXLEncoderConfig
from transformers_xl.modeling.actor_critic import MemoryForActorCritic
from transformers_xl.modeling.encoder import encoder_forms
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.gating import GATES
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer
from transformers_xl.modeling.memory.memory_value import LayerMemory
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel


class GTrXLLayer(MemoryLayer):
    """Gated sub-layers: `x = gate(x, relu(f(norm(x))))`.

    Differs from the original: dropout, which the paper does not use, falls on the outputs of the sub-layers.
    """

    def __init__(self, config: GTrXLConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.attn_gate = GATES[config.gate_type](config)
        self.mlp_gate = GATES[config.gate_type](config)

    def forward(self, hidden_states: torch.Tensor, past: LayerMemory, context: LayerContext, **kwargs) -> LayerOutput:
        attn_output, kept = self.attend(hidden_states, past.columns, context, **kwargs)
        gated = self.read_source(self.attn_gate(hidden_states, attn_output.relu()), context)
        mlp_output = self.mlp(self.post_attention_layernorm.before(gated))
        return LayerOutput(self.mlp_gate(gated, mlp_output.relu()), LayerMemory(kept))


@auto_docstring(custom_intro="Base class for GTrXL: initialization and loading.")
class GTrXLPreTrainedModel(MemoryPreTrainedModel):
    config: GTrXLConfig
    _no_split_modules = ["GTrXLLayer"]


@auto_docstring(custom_intro="GTrXL without a head.")
class GTrXLModel(GTrXLPreTrainedModel, MemoryModel):
    layer_class = GTrXLLayer


@auto_docstring(custom_intro="GTrXL with a language modeling head.")
class GTrXLForCausalLM(GTrXLPreTrainedModel, MemoryForCausalLM):
    model_class = GTrXLModel


@auto_docstring(custom_intro="GTrXL with a classification head on the last real token.")
class GTrXLForSequenceClassification(GTrXLPreTrainedModel, MemoryForSequenceClassification):
    model_class = GTrXLModel


@auto_docstring(custom_intro="GTrXL with a classification head on every token.")
class GTrXLForTokenClassification(GTrXLPreTrainedModel, MemoryForTokenClassification):
    model_class = GTrXLModel


@auto_docstring(custom_intro="GTrXL as an agent: a policy and a value at every step.")
class GTrXLForActorCritic(GTrXLPreTrainedModel, MemoryForActorCritic):
    model_class = GTrXLModel


(
    GTrXLEncoderModel,
    GTrXLEncoderForMaskedLM,
    GTrXLEncoderForSequenceClassification,
    GTrXLEncoderForTokenClassification,
) = encoder_forms(GTrXLEncoderConfig, GTrXLForCausalLM)


__all__ = [
    "GTrXLEncoderForMaskedLM",
    "GTrXLEncoderForSequenceClassification",
    "GTrXLEncoderForTokenClassification",
    "GTrXLEncoderModel",
    "GTrXLForActorCritic",
    "GTrXLForCausalLM",
    "GTrXLForSequenceClassification",
    "GTrXLForTokenClassification",
    "GTrXLModel",
    "GTrXLPreTrainedModel",
]
