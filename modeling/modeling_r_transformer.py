"""R-Transformer: Wang et al., 2019, https://arxiv.org/abs/1907.05572. Code: DSE-MSU/R-transformer.

A recurrent network over the few positions up to each position comes first; it tells the attention behind it about order,
so that no positions are needed.
"""

from typing import NamedTuple

import torch
from torch import nn
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_r_transformer import RTransformerConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.layers.local_rnn import LocalRNN, LocalRNNContext
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.memory.recurrent_memory import RecurrentMemory
from transformers_xl.modeling.memory.window_memory import WindowMemory
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.ops.window import pack_rows


class RTransformerMemory(NamedTuple):
    """What the attention read, and the last inputs of each LocalRNN, `(batch, networks, local_window - 1, hidden_size)`."""

    inputs: WindowMemory
    tails: RecurrentMemory


class RTransformerLayer(MemoryLayer):
    """LocalRNNs, attention without positions, feed-forward. It remembers what its attention reads, and the LocalRNNs.

    Differs from the original: it carries memory; the standard deviation of a norm is the biased one, its epsilon under
    the root.
    """

    attention_class = MemoryAttention

    def __init__(self, config: RTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.tails_shape = (config.num_local_rnns, config.local_window - 1, config.hidden_size)
        self.local_rnns = nn.ModuleList([LocalRNN(config) for _ in range(config.num_local_rnns)])

    def memories(self) -> RTransformerMemory:
        (inputs,) = super().memories()
        return RTransformerMemory(inputs, RecurrentMemory(self.tails_shape))

    def forward(
        self, hidden_states: torch.Tensor, memory: RTransformerMemory, segment: LocalRNNContext, **kwargs
    ) -> LayerOutput:
        new_tails = []
        for local_rnn, tail in zip(self.local_rnns, memory.tails.read().unbind(1), strict=True):
            hidden_states, new_tail = local_rnn(hidden_states, tail, segment.local_rows)
            new_tails.append(new_tail)
        memory.tails.write(torch.stack(new_tails, dim=1))
        return super().forward(hidden_states, memory, segment, **kwargs)


@auto_docstring(custom_intro="Weights, loading and the promises of the R-Transformer.")
class RTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: RTransformerConfig
    _no_split_modules = ["RTransformerLayer"]
    _is_stateful = True
    _can_compile_fullgraph = False  # TorchDynamo does not trace recurrent networks


@auto_docstring(custom_intro="The R-Transformer without a head.")
class RTransformerModel(RTransformerPreTrainedModel, MemoryModel):
    layer_class = RTransformerLayer
    positions_class = None

    def segment_context(
        self, hidden_states: torch.Tensor, segment: SegmentContext, memory: ModelMemory
    ) -> LocalRNNContext:
        shape = (*hidden_states.shape[:1], self.config.local_window - 1, hidden_states.shape[1])
        rows = pack_rows(shape, None, segment.segment_mask, segment.document_ids)
        return LocalRNNContext(**vars(segment), local_rows=rows)


@auto_docstring(custom_intro="The R-Transformer with a language modeling head.")
class RTransformerForCausalLM(RTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = RTransformerModel


@auto_docstring(custom_intro="The R-Transformer with a classification head on the last real token.")
class RTransformerForSequenceClassification(RTransformerPreTrainedModel, MemoryForSequenceClassification):
    model_class = RTransformerModel


@auto_docstring(custom_intro="The R-Transformer with a classification head on every token.")
class RTransformerForTokenClassification(RTransformerPreTrainedModel, MemoryForTokenClassification):
    model_class = RTransformerModel


__all__ = [
    "RTransformerForCausalLM",
    "RTransformerForSequenceClassification",
    "RTransformerForTokenClassification",
    "RTransformerModel",
    "RTransformerPreTrainedModel",
]
