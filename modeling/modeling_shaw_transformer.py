"""Relative position representations: Shaw et al., 2018, https://arxiv.org/abs/1803.02155. Code: tensor2tensor.

Every clipped distance has a learned vector that is added to the keys, and another that is added to the values.
"""

from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_shaw_transformer import (
    ShawTransformerConfig,
    ShawTransformerEncoderConfig,
)
from transformers_xl.modeling.encoder import encoder_forms
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.shaw_attention import ShawAttention
from transformers_xl.modeling.layers.transformer_layer import MemoryLayer
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel


class ShawTransformerLayer(MemoryLayer):
    """The attention with learned relative positions, and a feed-forward.

    Differs from the original: a causal decoder with memory. What is clipped are distances, so that the memory needs no
    positions of its own.
    """

    attention_class = ShawAttention


@auto_docstring(
    custom_intro="Base class for the Transformer with Shaw's relative positions: initialization and loading."
)
class ShawTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: ShawTransformerConfig
    _no_split_modules = ["ShawTransformerLayer"]


@auto_docstring(custom_intro="A Transformer with Shaw's relative positions, without a head.")
class ShawTransformerModel(ShawTransformerPreTrainedModel, MemoryModel):
    layer_class = ShawTransformerLayer
    positions_class = None


@auto_docstring(custom_intro="A Transformer with Shaw's relative positions and a language modeling head.")
class ShawTransformerForCausalLM(ShawTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = ShawTransformerModel


@auto_docstring(
    custom_intro="A Transformer with Shaw's relative positions and a classification head on the last real token."
)
class ShawTransformerForSequenceClassification(ShawTransformerPreTrainedModel, MemoryForSequenceClassification):
    model_class = ShawTransformerModel


@auto_docstring(custom_intro="A Transformer with Shaw's relative positions and a classification head on every token.")
class ShawTransformerForTokenClassification(ShawTransformerPreTrainedModel, MemoryForTokenClassification):
    model_class = ShawTransformerModel


(
    ShawTransformerEncoderModel,
    ShawTransformerEncoderForMaskedLM,
    ShawTransformerEncoderForSequenceClassification,
    ShawTransformerEncoderForTokenClassification,
) = encoder_forms(ShawTransformerEncoderConfig, ShawTransformerForCausalLM)


__all__ = [
    "ShawTransformerEncoderForMaskedLM",
    "ShawTransformerEncoderForSequenceClassification",
    "ShawTransformerEncoderForTokenClassification",
    "ShawTransformerEncoderModel",
    "ShawTransformerForCausalLM",
    "ShawTransformerForSequenceClassification",
    "ShawTransformerForTokenClassification",
    "ShawTransformerModel",
    "ShawTransformerPreTrainedModel",
]
