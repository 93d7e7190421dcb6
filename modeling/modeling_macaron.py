"""Macaron Transformer: Lu et al., 2019, https://arxiv.org/abs/1906.02762, section 3.2. Code: zhuohan123/macaron-net.

A Transformer layer read as a step of an equation of many particles: a half step of the feed-forward, a step of the
attention, another half step of another feed-forward (Strang-Marchuk splitting).
"""

import torch
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_macaron import MacaronConfig, MacaronEncoderConfig
from transformers_xl.modeling.encoder import encoder_forms
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.transformer_layer import FeedForward, LayerOutput, MemoryLayer, SublayerLayerNorm
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel


class HalfStepFeedForward(FeedForward):
    """Half of what the feed-forward adds: `1/2 fc2(act(fc1(x)))`."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return 0.5 * super().forward(hidden_states)


class MacaronLayer(MemoryLayer):
    """A feed-forward on either side of the attention, each of them half a step, and each with a norm of its own.

        x = x + 1/2 FFN_1(x)        x = x + attention(x)        x = x + 1/2 FFN_2(x)

    Differs from the original: relative positions and memory, as in Transformer-XL; the memory is what the attention
    reads, after the first half step, so that no feed-forward runs over it again.
    """

    feed_forward_class = HalfStepFeedForward

    def __init__(self, config: MacaronConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.macaron_layernorm = SublayerLayerNorm(config)
        self.macaron_mlp = HalfStepFeedForward(config)

    def forward(self, hidden_states: torch.Tensor, *args, **kwargs) -> LayerOutput:
        mlp_output = self.macaron_mlp(self.macaron_layernorm.before(hidden_states))
        hidden_states = self.macaron_layernorm.after(hidden_states + mlp_output)
        return super().forward(hidden_states, *args, **kwargs)


@auto_docstring(custom_intro="Base class for the Macaron Transformer: initialization and loading.")
class MacaronPreTrainedModel(MemoryPreTrainedModel):
    config: MacaronConfig
    _no_split_modules = ["MacaronLayer"]


@auto_docstring(custom_intro="The Macaron Transformer without a head.")
class MacaronModel(MacaronPreTrainedModel, MemoryModel):
    layer_class = MacaronLayer


@auto_docstring(custom_intro="The Macaron Transformer with a language modeling head.")
class MacaronForCausalLM(MacaronPreTrainedModel, MemoryForCausalLM):
    model_class = MacaronModel


@auto_docstring(custom_intro="The Macaron Transformer with a classification head on the last real token.")
class MacaronForSequenceClassification(MacaronPreTrainedModel, MemoryForSequenceClassification):
    model_class = MacaronModel


@auto_docstring(custom_intro="The Macaron Transformer with a classification head on every token.")
class MacaronForTokenClassification(MacaronPreTrainedModel, MemoryForTokenClassification):
    model_class = MacaronModel


(
    MacaronEncoderModel,
    MacaronEncoderForMaskedLM,
    MacaronEncoderForSequenceClassification,
    MacaronEncoderForTokenClassification,
) = encoder_forms(MacaronEncoderConfig, MacaronForCausalLM)


__all__ = [
    "MacaronEncoderForMaskedLM",
    "MacaronEncoderForSequenceClassification",
    "MacaronEncoderForTokenClassification",
    "MacaronEncoderModel",
    "MacaronForCausalLM",
    "MacaronForSequenceClassification",
    "MacaronForTokenClassification",
    "MacaronModel",
    "MacaronPreTrainedModel",
]
