"""The LSTM that `compare` trains beside the variants: Hochreiter and Schmidhuber, 1997, with the projection of Sak et al.,
2014, https://arxiv.org/abs/1402.1128, by which it gets as many parameters as they have.

Its state is its memory: it goes from segment to segment as `mems`, so that the same commands train it, measure it and
generate with it. A baseline, not a row of the table of variants: it has no window to remember past.
"""

from typing import NamedTuple

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from transformers_xl.configuration.configuration_lstm import LSTMConfig
from transformers_xl.modeling.heads import MemoryForCausalLM
from transformers_xl.modeling.layers.dropout import Dropout
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.layers.segment_lstm import SegmentLSTM, SegmentLSTMContext
from transformers_xl.modeling.layers.transformer_layer import LayerOutput
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.memory.recurrent_memory import RecurrentMemory
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel


class LSTMMemory(NamedTuple):
    """The state of a layer: `hidden` (batch, hidden_size), `cell` (batch, intermediate_size)."""

    hidden: RecurrentMemory
    cell: RecurrentMemory


class LSTMLayer(GradientCheckpointingLayer):
    """An LSTM, and dropout."""

    def __init__(self, config: LSTMConfig, layer_idx: int):
        super().__init__()
        self.lstm = SegmentLSTM(config, config.intermediate_size)
        self.dropout = Dropout(config, config.residual_dropout)

    def memories(self) -> LSTMMemory:
        return LSTMMemory(RecurrentMemory((self.lstm.input_size,)), RecurrentMemory((self.lstm.hidden_size,)))

    def forward(
        self, hidden_states: torch.Tensor, memory: LSTMMemory, segment: SegmentLSTMContext, **kwargs
    ) -> LayerOutput:
        output, hidden, cell = self.lstm(hidden_states, memory.hidden.read(), memory.cell.read(), segment.chunks)
        memory.hidden.write(hidden)
        memory.cell.write(cell)
        return LayerOutput(self.dropout(output))


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

    def segment_context(
        self, hidden_states: torch.Tensor, segment: SegmentContext, memory: ModelMemory
    ) -> SegmentLSTMContext:
        return SegmentLSTMContext.of(segment, hidden_states.shape[1])


class LSTMForCausalLM(LSTMPreTrainedModel, MemoryForCausalLM):
    """With a language modeling head."""

    model_class = LSTMModel


__all__ = ["LSTMForCausalLM", "LSTMModel", "LSTMPreTrainedModel"]
