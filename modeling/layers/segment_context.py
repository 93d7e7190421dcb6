"""What layers know about a segment."""

from dataclasses import dataclass
from typing import cast

import torch

from transformers_xl.modeling.layers.positions import Biases
from transformers_xl.modeling.ops.key_mask import DeviceMovable
from transformers_xl.modeling.ops.token_order import TokenOrder

PositionEmbeddings = tuple[torch.Tensor | None, Biases | None] | torch.Tensor


@dataclass(frozen=True)
class SegmentContext(DeviceMovable):
    """What all layers know about a segment. A variant adds fields of its own in a subclass.

    Args:
        segment_mask: `(B, T)` bool, real tokens; padding stands on the left. None where all are real.
        document_ids: `(B, T)`, number of the document of each token, 0 for that of the memory; None where all are of one.
        position_embeddings: what the model's positions made for all layers.
        token_order: the order in which hidden states and weights are shown; None where nobody asks for them.
    """

    segment_mask: torch.Tensor | None = None
    document_ids: torch.Tensor | None = None
    position_embeddings: PositionEmbeddings | None = None
    token_order: TokenOrder | None = None

    @property
    def relative_positions(self) -> tuple[torch.Tensor | None, Biases | None]:
        """What `RelativePositions` made: the table, None where a cache has its projections, and biases that all share."""
        return cast(tuple, self.position_embeddings)


PLAIN_SEGMENT = SegmentContext()  # what a layer is told that nobody tells anything

__all__ = ["PLAIN_SEGMENT", "PositionEmbeddings", "SegmentContext"]
