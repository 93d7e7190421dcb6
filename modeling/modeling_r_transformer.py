"""R-Transformer: Wang et al., 2019, https://arxiv.org/abs/1907.05572. Code: DSE-MSU/R-transformer.

A recurrent network over the few positions up to each position comes first; it tells the attention after it about order,
so that no positions are needed.
"""

from typing import Any

import torch
from torch import nn
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_r_transformer import RTransformerConfig, RTransformerEncoderConfig
from transformers_xl.modeling.actor_critic import MemoryForActorCritic
from transformers_xl.modeling.encoder import encoder_forms
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.layers.local_rnn import LocalRNN
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.memory.segment import LayerContext, Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel


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

    def new_memory(self, batch: int, num_columns: int, like: torch.Tensor) -> LayerMemory:
        """`state` is the last inputs of each LocalRNN, `(batch, networks, local_window - 1, hidden_size)`."""
        memory = super().new_memory(batch, num_columns, like)
        return memory._replace(state=(like.new_zeros(batch, *self.tails_shape),))

    def forward(self, hidden_states: torch.Tensor, past: LayerMemory, context: LayerContext, **kwargs) -> LayerOutput:
        tails = []
        for local_rnn, tail in zip(self.local_rnns, past.state[0].unbind(1), strict=True):
            hidden_states, tail = local_rnn(hidden_states, tail, context.plan)
            tails.append(tail)
        return super().forward(hidden_states, past._replace(state=(torch.stack(tails, dim=1),)), context, **kwargs)


@auto_docstring(custom_intro="Base class for the R-Transformer: initialization and loading.")
class RTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: RTransformerConfig
    _no_split_modules = ["RTransformerLayer"]
    _is_stateful = True
    _can_compile_fullgraph = False  # TorchDynamo does not trace recurrent networks


@auto_docstring(custom_intro="The R-Transformer without a head.")
class RTransformerModel(RTransformerPreTrainedModel, MemoryModel):
    layer_class = RTransformerLayer
    positions_class = None

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, Any, tuple[torch.Tensor, ...]]:
        """`plan` is where the tokens stand after the inputs that the LocalRNNs remember."""
        num_before = self.config.local_window - 1
        return segment, segment.following(num_before), ()


@auto_docstring(custom_intro="The R-Transformer with a language modeling head.")
class RTransformerForCausalLM(RTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = RTransformerModel


@auto_docstring(custom_intro="The R-Transformer with a classification head on the last real token.")
class RTransformerForSequenceClassification(RTransformerPreTrainedModel, MemoryForSequenceClassification):
    model_class = RTransformerModel


@auto_docstring(custom_intro="The R-Transformer with a classification head on every token.")
class RTransformerForTokenClassification(RTransformerPreTrainedModel, MemoryForTokenClassification):
    model_class = RTransformerModel


@auto_docstring(custom_intro="The R-Transformer as an agent: a policy and a value at every step.")
class RTransformerForActorCritic(RTransformerPreTrainedModel, MemoryForActorCritic):
    model_class = RTransformerModel


(
    RTransformerEncoderModel,
    RTransformerEncoderForMaskedLM,
    RTransformerEncoderForSequenceClassification,
    RTransformerEncoderForTokenClassification,
) = encoder_forms(RTransformerEncoderConfig, RTransformerForCausalLM)


__all__ = [
    "RTransformerEncoderForMaskedLM",
    "RTransformerEncoderForSequenceClassification",
    "RTransformerEncoderForTokenClassification",
    "RTransformerEncoderModel",
    "RTransformerForActorCritic",
    "RTransformerForCausalLM",
    "RTransformerForSequenceClassification",
    "RTransformerForTokenClassification",
    "RTransformerModel",
    "RTransformerPreTrainedModel",
]
