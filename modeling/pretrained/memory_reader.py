"""How a base reads with memory: the interface of the two kinds."""

from typing import Any, Protocol

import torch
from torch import nn
from transformers import Cache
from transformers.utils import ModelOutput

from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.modeling.memory.layer_memory import LayerMemory
from transformers_xl.modeling.memory.model_memory import ModelMemory


class RunBackbone(Protocol):
    """A call of the base: of its decoder, or with its head on it."""

    def __call__(
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: Any,
        position_ids: torch.Tensor | None,
        past_key_values: Cache | None,
        **kwargs: Any,
    ) -> ModelOutput: ...


class MemoryReader(nn.Module):
    """What remembers, and how a segment is read with it. Its parameters are those that the memory adds to the base."""

    def __init__(self, config: SegmentMemoryConfig):
        super().__init__()
        self.config = config

    def layer_memories(self, backbone: nn.Module) -> list[LayerMemory]:
        """What each layer remembers."""
        return []

    def own_memories(self, backbone: nn.Module) -> LayerMemory:
        """What the model itself remembers."""
        return ()

    def read(
        self,
        backbone: nn.Module,
        run: RunBackbone,
        inputs_embeds: torch.Tensor,
        segment_mask: torch.Tensor | None,
        document_ids: torch.Tensor | None,
        memory: ModelMemory,
        **kwargs: Any,
    ) -> ModelOutput:
        """Read a segment `(batch, length, width)` whose padding stands on the left, with `memory`, and write to it.

        Args:
            run: runs the base, whose output comes back: `logits` or `last_hidden_state`, `(batch, length, ...)`.
            segment_mask: `(batch, length)` bool, real tokens; None where all are.
            document_ids: `(batch, length)` number of the document of each token, 0 for that of the memory; None: one.
        """
        raise NotImplementedError


__all__ = ["MemoryReader", "RunBackbone"]
