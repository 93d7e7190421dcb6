"""Positions in a segment, added to the stream: learned (Al-Rfou et al., 2018) or sinusoids (Vaswani et al., 2017)."""

import torch
from torch import nn

from transformers_xl.configuration.configuration_absolute_positions import AbsolutePositionsConfig
from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer
from transformers_xl.modeling.memory.memory_value import LayerMemory
from transformers_xl.modeling.memory.segment import LayerContext, Segment
from transformers_xl.modeling.ops.relative_attention import sinusoids


class SinusoidPositions(nn.Module):
    """The sinusoids of https://arxiv.org/abs/1706.03762, section 3.5."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.hidden_size = hidden_size

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """`(batch or 1, length)` integers to `(batch or 1, length, hidden_size)`."""
        return sinusoids(positions, self.hidden_size, dtype)


class LearnedPositions(nn.Embedding):
    """A learned vector for each of `segment_length` positions."""

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return super().forward(positions).to(dtype)


class AbsolutePositionsLayer(MemoryLayer):
    """Positions, attention, feed-forward. With sinusoids, the first layer adds them for all. What the layer remembers has
    its positions in it. `context.plan` is the place of each token, `(B or 1, T)`."""

    attention_class = MemoryAttention

    def __init__(self, config: AbsolutePositionsConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.positions: nn.Module | None = None
        if config.position_type == "per_layer":
            self.positions = LearnedPositions(config.segment_length, config.hidden_size)
        elif layer_idx == 0:
            self.positions = SinusoidPositions(config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, past: LayerMemory, context: LayerContext, **kwargs) -> LayerOutput:
        if self.positions is not None:
            hidden_states = hidden_states + self.positions(context.plan, hidden_states.dtype)
        return super().forward(hidden_states, past, context, **kwargs)


def places_without_memory(config: MemoryConfig, segment: Segment) -> torch.Tensor:
    """The place of each token in its row or document, `(B, T)`, from 0, for a model that reads a text at once.

    Raises:
        ValueError: the text has more tokens than the model has positions.
    """
    if segment.length > config.segment_length:
        raise ValueError(
            f"`input_ids` holds {segment.length} tokens, but the model has `segment_length`={config.segment_length} "
            "positions and no memory: read the text in segments, as generate() and `score_moving_window` do, or make "
            "a model, such as an encoder, with more."
        )
    return segment.columns - segment.start


__all__ = ["AbsolutePositionsLayer", "LearnedPositions", "SinusoidPositions", "places_without_memory"]
