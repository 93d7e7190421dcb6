"""Tensorized Transformer: Ma et al., 2019, https://arxiv.org/abs/1906.09777.

Code: szhangtju/The-compression-of-Transformer. Multi-linear attention in the place of attention: no softmax, and an output
map that reads all pairs of nearby positions.
"""

from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_tensorized_transformer import TensorizedTransformerConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.multi_linear_attention import MultiLinearAttention
from transformers_xl.modeling.layers.transformer_layer import MemoryLayer
from transformers_xl.modeling.modeling_memory import HIDDEN_STATES, MemoryModel, MemoryPreTrainedModel


class TensorizedTransformerLayer(MemoryLayer):
    """Multi-linear attention and a feed-forward.

    Differs from the original: causal, see [`MultiLinearAttention`]; the memory of a new row is empty (zeros there).
    """

    attention_class = MultiLinearAttention


@auto_docstring(custom_intro="Base class for the Tensorized Transformer: initialization and loading.")
class TensorizedTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: TensorizedTransformerConfig
    _no_split_modules = ["TensorizedTransformerLayer"]
    _can_record_outputs = {"hidden_states": HIDDEN_STATES}  # there are no weights that sum to one


@auto_docstring(custom_intro="The Tensorized Transformer without a head.")
class TensorizedTransformerModel(TensorizedTransformerPreTrainedModel, MemoryModel):
    layer_class = TensorizedTransformerLayer

    def num_distances(self, num_keys: int) -> int:
        return self.config.sliding_window


@auto_docstring(custom_intro="The Tensorized Transformer with a language modeling head.")
class TensorizedTransformerForCausalLM(TensorizedTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = TensorizedTransformerModel


@auto_docstring(custom_intro="The Tensorized Transformer with a classification head on the last real token.")
class TensorizedTransformerForSequenceClassification(
    TensorizedTransformerPreTrainedModel, MemoryForSequenceClassification
):
    model_class = TensorizedTransformerModel


@auto_docstring(custom_intro="The Tensorized Transformer with a classification head on every token.")
class TensorizedTransformerForTokenClassification(TensorizedTransformerPreTrainedModel, MemoryForTokenClassification):
    model_class = TensorizedTransformerModel


__all__ = [
    "TensorizedTransformerForCausalLM",
    "TensorizedTransformerForSequenceClassification",
    "TensorizedTransformerForTokenClassification",
    "TensorizedTransformerModel",
    "TensorizedTransformerPreTrainedModel",
]
