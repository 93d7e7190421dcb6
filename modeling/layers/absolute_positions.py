"""Positions in a segment, added to the stream: learned (Al-Rfou et al., 2018) or sinusoids (Vaswani et al., 2017)."""

from dataclasses import dataclass

import torch
from torch import nn

from transformers_xl.configuration.configuration_absolute_positions import AbsolutePositionsConfig
from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer
from transformers_xl.modeling.memory.counter_memory import CounterMemory
from transformers_xl.modeling.memory.window_memory import AttentionMemory
from transformers_xl.modeling.ops.sinusoids import sinusoids


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


@dataclass(frozen=True, kw_only=True)
class AbsolutePositionsContext(SegmentContext):
    """`places` (B or 1, T): that of each token in its segment, row or document."""

    places: torch.Tensor


class AbsolutePositionsLayer(MemoryLayer):
    """Positions, attention, feed-forward. With sinusoids, the first layer adds them for all. What the layer remembers has
    its positions in it."""

    attention_class = MemoryAttention

    def __init__(self, config: AbsolutePositionsConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.positions: nn.Module | None = None
        if config.position_type == "per_layer":
            self.positions = LearnedPositions(config.segment_length, config.hidden_size)
        elif layer_idx == 0:
            self.positions = SinusoidPositions(config.hidden_size)

    def forward(
        self, hidden_states: torch.Tensor, memory: AttentionMemory, segment: AbsolutePositionsContext, **kwargs
    ) -> LayerOutput:
        if self.positions is not None:
            hidden_states = hidden_states + self.positions(segment.places, hidden_states.dtype)
        return super().forward(hidden_states, memory, segment, **kwargs)


def positions_in_row(
    length: int, segment_mask: torch.Tensor | None, document_ids: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """Place of each token in its row or document, from 0, `(B or 1, T)`, for rows whose padding stands on the left.

    `segment_mask` (B, T) bool and `document_ids` (B, T) are None where no row needs them. Padding gets 0.
    """
    columns = torch.arange(length, device=device)[None]
    begins = torch.zeros_like(columns) if segment_mask is None else (~segment_mask).sum(dim=1, keepdim=True)
    if document_ids is not None:
        is_new = torch.cat([torch.zeros_like(document_ids[:, :1]), document_ids.diff(dim=1)], dim=1) != 0
        begins = torch.maximum(begins, (columns * is_new).cummax(dim=1).values)
    return (columns - begins).clamp(min=0)


def positions_without_memory(
    config: MemoryConfig, length: int, segment: SegmentContext, device: torch.device
) -> torch.Tensor:
    """`positions_in_row`, for a model that reads a text at once.

    Raises:
        ValueError: the text has more tokens than the model has positions.
    """
    if length > config.segment_length:
        raise ValueError(
            f"`input_ids` holds {length} tokens, but the model has `segment_length`={config.segment_length} positions "
            "and no memory: read the text in segments, as generate() and `score_moving_window` do."
        )
    return positions_in_row(length, segment.segment_mask, segment.document_ids, device)


def positions_in_text(tokens_read: CounterMemory, length: int, segment: SegmentContext) -> torch.Tensor:
    """Place of each token in its text or document, from 0 in its first segment, `(B, T)`; `tokens_read` takes them in."""
    before, segment_mask, document_ids = tokens_read.read(), segment.segment_mask, segment.document_ids
    of_text = before[:, None] if document_ids is None else before[:, None] * (document_ids == 0)
    places = of_text + positions_in_row(length, segment_mask, document_ids, before.device)
    after = places[:, -1] + 1
    # the padding of a row stands on its left: where the last column is padding, there is no token
    tokens_read.write(after if segment_mask is None else after.where(segment_mask[:, -1], before))
    return places
