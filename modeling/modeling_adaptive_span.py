"""Adaptive attention span: Sukhbaatar et al., 2019, https://arxiv.org/abs/1905.07799. Code: facebookresearch/adaptive-span.

Every head learns how far back it looks, and pays for it in the training loss. What no head of a layer sees is neither
remembered nor computed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_adaptive_span import AdaptiveSpanConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.adaptive_span import AdaptiveSpanAttention, SpanMask, SpanPositions
from transformers_xl.modeling.layers.transformer_layer import MemoryLayer
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.outputs import MemoryModelOutput


class AdaptiveSpanLayer(MemoryLayer):
    """The attention with learned spans, and a feed-forward.

    Differs from the original: pre-norm by default; a layer keeps exactly what its longest span reaches, where the code
    rounds to 64 positions; the weights are normalised without an epsilon.
    """

    attention_class = AdaptiveSpanAttention


@auto_docstring(
    custom_intro="Base class for the Transformer with adaptive attention span: initialization and loading."
)
class AdaptiveSpanPreTrainedModel(MemoryPreTrainedModel):
    config: AdaptiveSpanConfig
    _no_split_modules = ["AdaptiveSpanLayer"]

    def _span_masks(self) -> list[SpanMask]:
        decoder: Any = self.base_model
        return [layer.self_attn.span_mask for layer in decoder.layers]

    def spans(self) -> torch.Tensor:
        """How many positions before a token each head sees, its ramp included, `(layers, heads)` integers."""
        return torch.stack([mask.reach() for mask in self._span_masks()])

    @torch.no_grad()
    def trim_spans(self) -> None:
        """Let each layer read and keep no more than its longest span: `config.layer_spans`, which is saved with the model.

        To be called between steps: after a step of the optimizer, as [`~transformers_xl.training.trainer.SpanTrimming`]
        does, since spans may grow again. It also brings the parameters back to 0..1. A memory from before may be handed
        on.
        """
        for mask in self._span_masks():
            mask.span.clamp_(0.0, 1.0)
        self.config.layer_spans = self.spans().amax(dim=1).tolist()


@auto_docstring(custom_intro="The Transformer with adaptive attention span, without a head.")
class AdaptiveSpanModel(AdaptiveSpanPreTrainedModel, MemoryModel):
    layer_class = AdaptiveSpanLayer
    positions_class = SpanPositions
    positions: SpanPositions
    auxiliary_loss_coef = "span_loss_coef"

    def auxiliary_loss(self, outputs: MemoryModelOutput) -> torch.Tensor:
        """The mean span of a layer's heads in positions, without ramps, summed over layers."""
        return torch.stack([mask.lengths() for mask in self._span_masks()]).mean(dim=1).sum()

    def attention_windows(self) -> Sequence[int | None]:
        return self.config.layer_windows

    def position_embeddings(self, *args) -> tuple[torch.Tensor, None]:
        return self.positions(), None


@auto_docstring(custom_intro="The Transformer with adaptive attention span and a language modeling head.")
class AdaptiveSpanForCausalLM(AdaptiveSpanPreTrainedModel, MemoryForCausalLM):
    model_class = AdaptiveSpanModel

    def prepare_for_inference(self) -> None:
        """Keep no more than the spans that were learned."""
        self.trim_spans()


@auto_docstring(
    custom_intro="The Transformer with adaptive attention span and a classification head on the last real token."
)
class AdaptiveSpanForSequenceClassification(AdaptiveSpanPreTrainedModel, MemoryForSequenceClassification):
    model_class = AdaptiveSpanModel


@auto_docstring(custom_intro="The Transformer with adaptive attention span and a classification head on every token.")
class AdaptiveSpanForTokenClassification(AdaptiveSpanPreTrainedModel, MemoryForTokenClassification):
    model_class = AdaptiveSpanModel


__all__ = [
    "AdaptiveSpanForCausalLM",
    "AdaptiveSpanForSequenceClassification",
    "AdaptiveSpanForTokenClassification",
    "AdaptiveSpanModel",
    "AdaptiveSpanPreTrainedModel",
]
