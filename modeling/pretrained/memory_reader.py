"""How a base reads with memory: the interface of the two kinds."""

from typing import Any, Protocol

import torch
from torch import nn
from transformers import Cache, PreTrainedModel
from transformers.utils import ModelOutput

from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.memory.segment import Call, LayerContext, Segment


class ModelAroundBase(Protocol):
    """What a reader asks of the model around a base."""

    backbone: PreTrainedModel
    training: bool

    def run_backbone(
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: Any,
        position_ids: torch.Tensor | None,
        past_key_values: Cache | None,
        **kwargs: Any,
    ) -> ModelOutput:
        """A call of the base: of its decoder, or with its head on it."""

    def contexts(
        self, segment: Segment, memory: Memory, plan: Any, cache: MemoryCache | None, like: torch.Tensor
    ) -> list[LayerContext]:
        """What each layer is told."""

    def lengths_after(self, segment: Segment, count: int) -> torch.Tensor:
        """How many of the newest `count` columns are real after a call, `(batch,)`."""


class MemoryReader(nn.Module):
    """What remembers, and how a segment is read with it. Its parameters are those that the memory adds to the base."""

    def __init__(self, config: SegmentMemoryConfig):
        super().__init__()
        self.config = config

    def new_memory(self, backbone: nn.Module, batch: int, counts: list[int], like: torch.Tensor) -> Memory:
        """What is remembered of `batch` new rows, in the type and on the device of `like`; `counts`: unused columns of each
        layer."""
        raise NotImplementedError

    def read(
        self,
        model: ModelAroundBase,
        inputs_embeds: torch.Tensor,
        memory: Memory,
        call: Call,
        cache: MemoryCache | None,
        **kwargs: Any,
    ) -> tuple[ModelOutput, Memory]:
        """Read a segment `(batch, length, width)` whose padding stands after its tokens: the base's output, `logits` or
        `last_hidden_state`, `(batch, length, ..)`, and the memory after it.

        Args:
            memory: what rows remember.
            call: which tokens are real, and where documents begin.
            cache: where generation keeps the memory, with room for what follows from it.
        """
        raise NotImplementedError


__all__ = ["MemoryReader", "ModelAroundBase"]
