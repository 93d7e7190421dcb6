"""Transformer on complex-order embeddings: Wang et al., 2020, https://arxiv.org/abs/1912.12333.

A word is a wave over positions, with an amplitude, a frequency and a phase in every dimension, and all that follows is a
Transformer of complex vectors. Code: iclr-complex-order/complex-order.
"""

from typing import Any, cast

import torch
from torch import nn
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_complex_order_transformer import (
    ComplexOrderTransformerConfig,
    ComplexOrderTransformerEncoderConfig,
)
from transformers_xl.modeling.encoder import encoder_forms
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.complex_embedding import (
    AdaptiveComplexOrderEmbedding,
    AmplitudeDropout,
    ComplexOrderEmbedding,
    at_positions,
)
from transformers_xl.modeling.layers.complex_layers import (
    ComplexAttention,
    ComplexFeedForward,
    ComplexLayerNorm,
    modulus,
)
from transformers_xl.modeling.layers.transformer_layer import MemoryLayer
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.memory.segment import LayerContext, Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.outputs import MemoryModelOutput


class ComplexOrderTransformerLayer(MemoryLayer):
    """Attention and feed-forward of complex vectors, without further positions.

    Differs from the original: real and imaginary parts meet in complex maps, where the released code maps each part on its
    own; it has no relative positions beside those of the words; pre-norm keeps the residual of the attention.
    """

    attention_class = ComplexAttention
    feed_forward_class = ComplexFeedForward

    def __init__(self, config: ComplexOrderTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.input_layernorm = ComplexLayerNorm(config)
        self.post_attention_layernorm = ComplexLayerNorm(config)


@auto_docstring(custom_intro="Base class for the Transformer on complex-order embeddings: initialization and loading.")
class ComplexOrderTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: ComplexOrderTransformerConfig
    _no_split_modules = ["ComplexOrderTransformerLayer"]
    _keep_in_fp32_modules_strict = ["frequency", "phase"]  # when loaded: angles are sums over a whole text
    _can_compile_fullgraph = False  # a static cache has no place for the tokens read
    lora_targets = ()  # no matrix is an `nn.Linear`

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """Words have frequencies and phases too."""
        word_tables = cast(ComplexOrderEmbedding, self.get_input_embeddings()).word_tables()
        resized = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        for table in word_tables:
            self._get_resized_embeddings(table, self.config.vocab_size, mean_resizing=mean_resizing)
        return resized


@auto_docstring(
    custom_intro="""
    The Transformer on complex-order embeddings, without a head. Outputs and memory hold real parts, then imaginary parts.
    `inputs_embeds`, `(batch, length, 3 hidden_size / 2)`, are amplitudes, frequencies and phases, as
    `get_input_embeddings()` gives them. Positions count from 1 and run on from segment to segment: each row remembers how
    many tokens of its text it has read.
    """
)
class ComplexOrderTransformerModel(ComplexOrderTransformerPreTrainedModel, MemoryModel):
    layer_class = ComplexOrderTransformerLayer
    positions_class = None

    def __init__(self, config: ComplexOrderTransformerConfig):
        super().__init__(config)
        self.dropout = AmplitudeDropout(config, config.embedding_dropout)
        self.norm = ComplexLayerNorm(config) if config.use_final_norm else None
        self.post_init()

    def build_embedding(self, config: ComplexOrderTransformerConfig) -> nn.Module:
        return AdaptiveComplexOrderEmbedding(config) if config.is_adaptive else ComplexOrderEmbedding(config)

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, Any, tuple[torch.Tensor, ...]]:
        """`plan` is the position of each token, `(B, T)`, from 1."""
        return segment, segment.places + 1, ()

    def run_layers(
        self, hidden_states: torch.Tensor, memory: tuple[LayerMemory, ...], contexts: list[LayerContext], **kwargs
    ) -> tuple[MemoryModelOutput, list[LayerMemory]]:
        words = at_positions(hidden_states, contexts[0].plan).to(self.dtype)
        return super().run_layers(words, memory, contexts, **kwargs)


@auto_docstring(
    custom_intro="The Transformer on complex-order embeddings with a language modeling head, which reads the moduli."
)
class ComplexOrderTransformerForCausalLM(ComplexOrderTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = ComplexOrderTransformerModel

    def own_loss(self) -> str:
        return "that of moduli, which `lm_head` reads instead of `last_hidden_state`"

    def classifier_input(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return modulus(*hidden_states.chunk(2, dim=-1))


@auto_docstring(
    custom_intro="The Transformer on complex-order embeddings with a classification head on the last real token."
)
class ComplexOrderTransformerForSequenceClassification(
    ComplexOrderTransformerPreTrainedModel, MemoryForSequenceClassification
):
    model_class = ComplexOrderTransformerModel


@auto_docstring(custom_intro="The Transformer on complex-order embeddings with a classification head on every token.")
class ComplexOrderTransformerForTokenClassification(
    ComplexOrderTransformerPreTrainedModel, MemoryForTokenClassification
):
    model_class = ComplexOrderTransformerModel


(
    ComplexOrderTransformerEncoderModel,
    ComplexOrderTransformerEncoderForMaskedLM,
    ComplexOrderTransformerEncoderForSequenceClassification,
    ComplexOrderTransformerEncoderForTokenClassification,
) = encoder_forms(ComplexOrderTransformerEncoderConfig, ComplexOrderTransformerForCausalLM)


__all__ = [
    "ComplexOrderTransformerEncoderForMaskedLM",
    "ComplexOrderTransformerEncoderForSequenceClassification",
    "ComplexOrderTransformerEncoderForTokenClassification",
    "ComplexOrderTransformerEncoderModel",
    "ComplexOrderTransformerForCausalLM",
    "ComplexOrderTransformerForSequenceClassification",
    "ComplexOrderTransformerForTokenClassification",
    "ComplexOrderTransformerModel",
    "ComplexOrderTransformerPreTrainedModel",
]
