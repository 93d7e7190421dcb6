"""Causal Longformer: Beltagy et al., 2020, https://arxiv.org/abs/2004.05150, section 4. Code: allenai/longformer.

A token attends to a window of earlier positions, small in the lower layers and larger in the upper ones, with gaps in some
heads. Time and memory grow linearly with the length of the text, and a window is all that a layer needs to remember.
"""

from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_causal_longformer import CausalLongformerConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.banded_attention import BandedAttention
from transformers_xl.modeling.layers.transformer_layer import MemoryLayer
from transformers_xl.modeling.memory.segment import Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel


class CausalLongformerLayer(MemoryLayer):
    """Banded attention with relative positions, and a feed-forward.

    Differs from the original: it carries the window from segment to segment, where the paper trains and evaluates on long
    segments; the language model has no global attention there either.
    """

    attention_class = BandedAttention


@auto_docstring(custom_intro="Base class for the causal Longformer: initialization and loading.")
class CausalLongformerPreTrainedModel(MemoryPreTrainedModel):
    config: CausalLongformerConfig
    _no_split_modules = ["CausalLongformerLayer"]


@auto_docstring(custom_intro="The causal Longformer without a head.")
class CausalLongformerModel(CausalLongformerPreTrainedModel, MemoryModel):
    layer_class = CausalLongformerLayer

    def attention_windows(self) -> list[int]:
        return self.config.layer_windows

    def key_mask(self, segment: Segment) -> None:
        """None: it would have T x K entries."""

    def num_distances(self, num_keys: int) -> int:
        """No token is seen from farther than the longest window."""
        return min(num_keys, self.config.sliding_window)


@auto_docstring(custom_intro="The causal Longformer with a language modeling head.")
class CausalLongformerForCausalLM(CausalLongformerPreTrainedModel, MemoryForCausalLM):
    model_class = CausalLongformerModel


@auto_docstring(custom_intro="The causal Longformer with a classification head on the last real token.")
class CausalLongformerForSequenceClassification(CausalLongformerPreTrainedModel, MemoryForSequenceClassification):
    model_class = CausalLongformerModel


@auto_docstring(custom_intro="The causal Longformer with a classification head on every token.")
class CausalLongformerForTokenClassification(CausalLongformerPreTrainedModel, MemoryForTokenClassification):
    model_class = CausalLongformerModel


__all__ = [
    "CausalLongformerForCausalLM",
    "CausalLongformerForSequenceClassification",
    "CausalLongformerForTokenClassification",
    "CausalLongformerModel",
    "CausalLongformerPreTrainedModel",
]
