"""What a base takes for its cache."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from transformers_xl.modeling.memory.key_value_memory import KeyValueShape


class BackboneLayer(CacheLayerMixin):
    """What a layer of the base takes for its cache: hands its keys and values to what remembers them. It lives as long as
    one call of the base.

    Args:
        read: what `update` asks, `(keys, values) -> (keys, values)` of `[memory; segment]`.
        num_before: columns in front of the segment.
        is_sliding: whether the layer has its own window.
    """

    def __init__(self, read: Callable[[torch.Tensor, torch.Tensor], Any], num_before: int, is_sliding: bool):
        super().__init__()
        self.read, self.num_before, self.is_sliding = read, num_before, is_sliding

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is held here."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.read(key_states, value_states)

    def get_seq_length(self) -> int:
        return self.num_before

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.num_before + query_length, 0

    def get_max_length(self) -> int:
        """-1: a text may have any length."""
        return -1


class RecordingCache(Cache):
    """Notes what the layers of a base hand to a cache: `written`, keys and values of each."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.written[layer_idx] = key_states, value_states
        return key_states, value_states


@torch.no_grad()
def written_by(backbone: Any, num_tokens: int, positions: Sequence[int]) -> list[tuple[torch.Tensor, ...]]:
    """Keys and values of each layer, of the same `num_tokens` at each of the `positions`: rows of one token, which see only
    themselves, the tokens of a position side by side. What they are is no matter: vectors of normal numbers."""
    cache, was_training = RecordingCache(), [module for module in backbone.modules() if module.training]
    width = getattr(backbone.config, "embedding_size", None) or backbone.config.hidden_size
    tokens = torch.randn(num_tokens, 1, width, generator=torch.Generator().manual_seed(0))
    position_ids = torch.tensor(positions).repeat_interleave(num_tokens)[:, None]
    nn.Module.eval(backbone)
    try:
        backbone.get_decoder()(
            inputs_embeds=tokens.repeat(len(positions), 1, 1).to(backbone.device, backbone.dtype),
            position_ids=position_ids.to(backbone.device),
            past_key_values=cache,
            use_cache=True,
        )
    finally:
        for module in was_training:
            module.training = True
    return [cache.written[layer] for layer in sorted(cache.written)]


def key_value_shapes(written: Sequence[tuple[torch.Tensor, ...]]) -> list[KeyValueShape]:
    """The shapes of what [`written_by`] gives."""
    return [KeyValueShape(keys.shape[1], keys.shape[3], values.shape[1], values.shape[3]) for keys, values in written]


__all__ = ["BackboneLayer", "RecordingCache", "key_value_shapes", "written_by"]
