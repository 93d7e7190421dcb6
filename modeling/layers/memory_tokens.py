"""Memory tokens: Bulatov et al., 2022, https://arxiv.org/abs/2207.06881, section 3."""

import torch
from torch import nn
from transformers import initialization as init
from transformers.utils import logging

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig

logger = logging.get_logger(__name__)


class MemoryTokens(nn.Module):
    """What rows read that have not written: learned vectors `start` `(num_tokens, width)`."""

    def __init__(self, num_tokens: int, width: int):
        super().__init__()
        self.start = nn.Parameter(torch.empty(num_tokens, width))

    def init_weights(self, config: MemoryConfig | SegmentMemoryConfig) -> None:
        init.normal_(self.start, mean=0.0, std=config.memory_initializer_range)

    def forward(self, written: torch.Tensor, begun: torch.Tensor) -> torch.Tensor:
        """What rows read, `(B, num_tokens, width)`: what they have `written`, or `start` where they have not `begun` `(B,)`
        to write."""
        return torch.where(begun[:, None, None], written, self.start.to(written.dtype))


def warn_of_writing(num_segments: int, segment_length: int, bptt_segments: int) -> None:
    """Warn if a training call gives no gradient to the writing of memory tokens, with this number of segments."""
    if not torch.is_grad_enabled() or min(num_segments, bptt_segments) > 1:
        return
    logger.warning_once(
        f"A call of {num_segments} segment(s) of `segment_length`={segment_length} with `bptt_segments`={bptt_segments} "
        "trains what reads memory tokens, and nothing that writes them. Pass at least two segments per call (the stream's "
        "`segment_length`), and set `bptt_segments` to at least 2."
    )


__all__ = ["MemoryTokens", "warn_of_writing"]
