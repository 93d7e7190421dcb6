"""Transformer with product-key memory: Lample et al., 2019, https://arxiv.org/abs/1907.05242. Code: facebookresearch/XLM.

In chosen layers, a large memory of learned values takes the place of the feed-forward; a token reads a few of its slots.
"""

from dataclasses import dataclass

import torch
from transformers.utils import auto_docstring
from transformers.utils.output_capturing import OutputRecorder

from transformers_xl.configuration.configuration_pkm_transformer import (
    PKMTransformerConfig,
    PKMTransformerEncoderConfig,
)
from transformers_xl.modeling.encoder import encoder_forms
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.product_key_memory import KeyUsage, ProductKeyMemory
from transformers_xl.modeling.layers.transformer_layer import MemoryLayer
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.outputs import MemoryHeadOutput, MemoryModelOutput


@dataclass
class PKMTransformerModelOutput(MemoryModelOutput):
    """
    Args:
        key_usage (`tuple[KeyUsage]`, *optional*):
            With `output_key_usage=True`, for each memory layer: the sum of the read weights on each slot (`weights`), the
            share of the slots that were read (`used`), and the divergence of that sum from uniform (`kl`, in nats).
    """

    key_usage: tuple[KeyUsage, ...] | None = None


@dataclass
class PKMTransformerHeadOutput(MemoryHeadOutput):
    """`key_usage` as in [`PKMTransformerModelOutput`]."""

    key_usage: tuple[KeyUsage, ...] | None = None


class PKMTransformerLayer(MemoryLayer):
    """A Transformer-XL layer that may have a product-key memory in place of its feed-forward."""

    def __init__(self, config: PKMTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        if layer_idx in config.memory_layers:
            self.mlp = ProductKeyMemory(config)

    def feed_forward(
        self, hidden_states: torch.Tensor, context: LayerContext, output_key_usage: bool = False, **kwargs
    ) -> torch.Tensor:
        if not isinstance(self.mlp, ProductKeyMemory):
            return super().feed_forward(hidden_states, context)
        return self.mlp(hidden_states, context.segment.mask, output_key_usage)[0]


@auto_docstring(custom_intro="Base class for the Transformer with product-key memory: initialization and loading.")
class PKMTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: PKMTransformerConfig
    _no_split_modules = ["PKMTransformerLayer"]
    _can_record_outputs = {
        **MemoryPreTrainedModel._can_record_outputs,
        "key_usage": OutputRecorder(ProductKeyMemory, index=1),
    }


@auto_docstring(custom_intro="The Transformer with product-key memory, without a head.")
class PKMTransformerModel(PKMTransformerPreTrainedModel, MemoryModel):
    layer_class = PKMTransformerLayer
    output_class = PKMTransformerModelOutput
    extra_arguments = ("output_key_usage",)


@auto_docstring(custom_intro="The Transformer with product-key memory and a language modeling head.")
class PKMTransformerForCausalLM(PKMTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = PKMTransformerModel
    output_class = PKMTransformerHeadOutput


@auto_docstring(
    custom_intro="The Transformer with product-key memory and a classification head on the last real token."
)
class PKMTransformerForSequenceClassification(PKMTransformerPreTrainedModel, MemoryForSequenceClassification):
    model_class = PKMTransformerModel
    output_class = PKMTransformerHeadOutput


@auto_docstring(custom_intro="The Transformer with product-key memory and a classification head on every token.")
class PKMTransformerForTokenClassification(PKMTransformerPreTrainedModel, MemoryForTokenClassification):
    model_class = PKMTransformerModel
    output_class = PKMTransformerHeadOutput


(
    PKMTransformerEncoderModel,
    PKMTransformerEncoderForMaskedLM,
    PKMTransformerEncoderForSequenceClassification,
    PKMTransformerEncoderForTokenClassification,
) = encoder_forms(PKMTransformerEncoderConfig, PKMTransformerForCausalLM)


__all__ = [
    "PKMTransformerEncoderForMaskedLM",
    "PKMTransformerEncoderForSequenceClassification",
    "PKMTransformerEncoderForTokenClassification",
    "PKMTransformerEncoderModel",
    "PKMTransformerForCausalLM",
    "PKMTransformerForSequenceClassification",
    "PKMTransformerForTokenClassification",
    "PKMTransformerModel",
    "PKMTransformerPreTrainedModel",
]
