"""The LSTM that `compare` trains beside the variants: Hochreiter and Schmidhuber, 1997, with the projection of Sak et al.,
2014, https://arxiv.org/abs/1402.1128, by which it gets as many parameters as they have.

Its state is its memory: it goes from segment to segment as `mems`, so that the same commands train it, measure it and
generate with it. A baseline, not a row of the table of variants: it has no window to remember past.
"""

from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from transformers_xl.configuration.configuration_lstm import LSTMConfig
from transformers_xl.modeling.heads import MemoryForCausalLM
from transformers_xl.modeling.layers.segment_lstm import SegmentLSTM, split_chunks
from transformers_xl.modeling.layers.transformer_layer import Dropout, LayerOutput
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.memory.segment import LayerContext, Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel


class LSTMLayer(GradientCheckpointingLayer):
    """An LSTM, and dropout."""

    def __init__(self, config: LSTMConfig, layer_idx: int):
        super().__init__()
        self.lstm = SegmentLSTM(config, config.intermediate_size)
        self.dropout = Dropout(config, config.residual_dropout)

    def new_memory(self, batch: int, num_columns: int, like: torch.Tensor) -> LayerMemory:
        """`state` is h and c."""
        return LayerMemory(state=self.lstm.new_state(batch, like))

    def forward(self, hidden_states: torch.Tensor, past: LayerMemory, context: LayerContext, **kwargs) -> LayerOutput:
        output, *state = self.lstm(hidden_states, *past.state, context.plan)
        return LayerOutput(self.dropout(output), LayerMemory(state=tuple(state)))


class LSTMPreTrainedModel(MemoryPreTrainedModel):
    config: LSTMConfig
    _no_split_modules = ["LSTMLayer"]
    _is_stateful = True
    _can_compile_fullgraph = False  # TorchDynamo does not trace recurrent networks
    lora_targets = ()  # no matrix is an `nn.Linear`


class LSTMModel(LSTMPreTrainedModel, MemoryModel):
    """Without a head."""

    layer_class = LSTMLayer
    positions_class = None

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, Any, tuple[torch.Tensor, ...]]:
        return segment, split_chunks(segment), ()


class LSTMForCausalLM(LSTMPreTrainedModel, MemoryForCausalLM):
    """With a language modeling head."""

    model_class = LSTMModel


__all__ = ["LSTMForCausalLM", "LSTMModel", "LSTMPreTrainedModel"]
