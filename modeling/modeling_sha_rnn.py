"""SHA-RNN: Merity, 2019, https://arxiv.org/abs/1911.11423. Code: Smerity/sha-rnn.

A stack of LSTMs, each followed by a wide feed-forward without a second matrix; one block, or more, also attends, with a
single head, to the memory of its own LSTM's outputs.
"""

from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_sha_rnn import ShaRNNConfig
from transformers_xl.modeling.actor_critic import MemoryForActorCritic
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.boom import Boom
from transformers_xl.modeling.layers.segment_lstm import SegmentLSTM, split_chunks
from transformers_xl.modeling.layers.single_head_attention import SingleHeadAttention
from transformers_xl.modeling.layers.transformer_layer import Dropout, LayerOutput
from transformers_xl.modeling.layers.weight_dropout import call_with_weight_dropout
from transformers_xl.modeling.memory.memory_cache import Tensors
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.memory.segment import LayerContext, Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel


class ShaRNNLayer(GradientCheckpointingLayer):
    """LSTM, in some blocks attention, Boom (`Block` in the code, whose norms these are).

        x = LSTM(norm(x))        x = norm(x) + attention(norm(x), [memory; norm'(x)])        x = norm(x) + boom(norm'(x))

    No sum leads around the LSTM. It remembers norm'(x), which its attention's keys and values are made of, and the
    LSTM's state.

    Differs from the original: the norm of each block that nothing uses (`lnout`) does not exist.
    """

    def __init__(self, config: ShaRNNConfig, layer_idx: int):
        super().__init__()
        self.layer_idx, self.hidden_size = layer_idx, config.hidden_size
        self.input_layernorm = self.layer_norm(config)
        self.lstm = SegmentLSTM(config)
        self.weight_dropout = config.weight_dropout
        self.has_attention = config.has_attention(layer_idx)
        if self.has_attention:
            self.self_attn = SingleHeadAttention(config, layer_idx)
            self.query_layernorm = self.layer_norm(config)
            self.memory_layernorm = self.layer_norm(config)
        self.residual_layernorm = self.layer_norm(config)
        self.mlp_layernorm = self.layer_norm(config)
        self.mlp = Boom(config)
        self.dropout = Dropout(config, config.residual_dropout)

    @staticmethod
    def layer_norm(config: ShaRNNConfig) -> nn.LayerNorm:
        return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def new_memory(self, batch: int, num_columns: int, like: torch.Tensor) -> LayerMemory:
        """`state` is that of the LSTM, h and c, each `(batch, hidden_size)`."""
        columns = (like.new_zeros(batch, num_columns, self.hidden_size),) if self.has_attention else ()
        return LayerMemory(columns, self.lstm.new_state(batch, like))

    def project(self, inputs: torch.Tensor) -> Tensors:
        """Keys and values of what was normalised when it was remembered."""
        return self.self_attn.project(inputs)

    def forward(self, hidden_states: torch.Tensor, past: LayerMemory, context: LayerContext, **kwargs) -> LayerOutput:
        inputs = (self.input_layernorm(hidden_states), *past.state, context.plan)
        hidden_states, *state = call_with_weight_dropout(self.lstm, self.weight_dropout, *inputs)
        hidden_states, kept = self.dropout(hidden_states), past.columns
        if self.has_attention:
            key_states, hidden_states = self.memory_layernorm(hidden_states), self.query_layernorm(hidden_states)
            columns, kept = context.extend(past.columns, key_states, self.project(key_states), self.project)
            attn_output, _ = self.self_attn(hidden_states, *columns, context, **kwargs)
            hidden_states = hidden_states + self.dropout(attn_output)
        mlp_output = self.mlp(self.mlp_layernorm(hidden_states))
        return LayerOutput(self.residual_layernorm(hidden_states) + mlp_output, LayerMemory(kept, tuple(state)))


@auto_docstring(custom_intro="Base class for SHA-RNN: initialization and loading.")
class ShaRNNPreTrainedModel(MemoryPreTrainedModel):
    config: ShaRNNConfig
    _no_split_modules = ["ShaRNNLayer"]
    _is_stateful = True
    lora_targets = ("q_proj", "fc1")  # few layers attend; all have a Boom
    _can_compile_fullgraph = False  # TorchDynamo does not trace recurrent networks


@auto_docstring(custom_intro="SHA-RNN without a head.")
class ShaRNNModel(ShaRNNPreTrainedModel, MemoryModel):
    layer_class = ShaRNNLayer
    positions_class = None

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, Any, Tensors]:
        return segment, split_chunks(segment), ()


@auto_docstring(custom_intro="SHA-RNN with a language modeling head.")
class ShaRNNForCausalLM(ShaRNNPreTrainedModel, MemoryForCausalLM):
    model_class = ShaRNNModel

    def prepare_for_inference(self) -> None:
        """Drop the matrix that over-parameterises the gate of the values: no output changes."""
        for module in self.model.layers.modules():
            if isinstance(module, SingleHeadAttention):
                module.collapse()
        self.config.collapsed_gate = True


@auto_docstring(custom_intro="SHA-RNN with a classification head on the last real token.")
class ShaRNNForSequenceClassification(ShaRNNPreTrainedModel, MemoryForSequenceClassification):
    model_class = ShaRNNModel


@auto_docstring(custom_intro="SHA-RNN with a classification head on every token.")
class ShaRNNForTokenClassification(ShaRNNPreTrainedModel, MemoryForTokenClassification):
    model_class = ShaRNNModel


@auto_docstring(custom_intro="SHA-RNN as an agent: a policy and a value at every step.")
class ShaRNNForActorCritic(ShaRNNPreTrainedModel, MemoryForActorCritic):
    model_class = ShaRNNModel


__all__ = [
    "ShaRNNForActorCritic",
    "ShaRNNForCausalLM",
    "ShaRNNForSequenceClassification",
    "ShaRNNForTokenClassification",
    "ShaRNNModel",
    "ShaRNNPreTrainedModel",
]
