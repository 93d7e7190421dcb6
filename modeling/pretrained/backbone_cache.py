"""What a base takes for its cache."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from transformers_xl.modeling.memory.memory_cache import Tensors
from transformers_xl.modeling.memory.memory_value import LayerMemory
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.pretrained.base_head import decoder_of
from transformers_xl.modeling.pretrained.places import Places


# B batch, C columns of the memory, T of the segment, H heads, D head dim
class KeyValueShape(NamedTuple):
    """Heads and widths of what a layer hands to its cache: keys `(B, key_heads, T, key_dim)`, and values."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int

    def new_columns(self, batch: int, count: int, like: torch.Tensor) -> Tensors:
        """Keys and values of zeros, each `(batch, H, count, D)`."""
        return (
            like.new_zeros(batch, self.key_heads, count, self.key_dim),
            like.new_zeros(batch, self.value_heads, count, self.value_dim),
        )


class BackboneLayer(CacheLayerMixin):
    """What a layer of the base takes for its cache: shows it the keys and values of `[memory; segment]`. It lives as long
    as one call of the base, in which a layer may run twice.

    Args:
        past: what the layer remembers.
        context: what its tokens see.
        is_sliding: whether the layer has its own window in the base.

    Attributes:
        after: what it remembers after the call.
    """

    num_extra = 0  # columns in front of the memory

    def __init__(self, past: LayerMemory, context: LayerContext, is_sliding: bool):
        super().__init__()
        self.past, self.context, self.is_sliding = past, context, is_sliding
        self.after = past

    @property
    def num_before(self) -> int:
        """Columns in front of the segment."""
        return self.num_extra + self.past.num_columns

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is held here."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Tensors:
        columns, kept = self.context.append(self.past.columns, (key_states, value_states))
        self.after = self.past._replace(columns=kept)
        return columns

    def sees(self, places: Places) -> Callable[..., Any]:
        """Which keys a query sees of those before it, as transformers' masks ask."""
        first = self.context.segment.first.expand(len(places.before), -1)

        def is_near(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> Any:
            return kv_idx - self.num_extra >= first[batch_idx, q_idx - self.num_before]

        return is_near

    def step(self, places: Places) -> int | None:
        """What differs between calls of one shape in what tokens see; None: it differs between rows, too."""
        return 0

    def get_seq_length(self) -> int:
        return self.num_before

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.num_before + query_length, 0

    def get_max_length(self) -> int:
        """-1: a text may have any length."""
        return -1


class RecordingCache(Cache):
    """Notes what the layers of a base hand to a cache: `written`, keys and values of each. It gives them zeros for values:
    no state depends on attention."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.written[layer_idx] = key_states, value_states
        # a base with learned sinks weighs values by scores, which are rounded differently at each position
        return key_states, torch.zeros_like(value_states)


@torch.no_grad()
def written_by(backbone: Any, num_tokens: int, positions: Sequence[int]) -> list[tuple[torch.Tensor, ...]]:
    """Keys and values of each layer, of the same `num_tokens` at each of the `positions`: rows of one token, which see only
    themselves, the tokens of a position side by side. What they are is no matter: vectors of normal numbers."""
    cache, was_training = RecordingCache(), [module for module in backbone.modules() if module.training]
    width = getattr(backbone.config, "embedding_size", None) or backbone.config.hidden_size
    tokens = torch.randn(num_tokens, 1, width, generator=torch.Generator().manual_seed(0))
    position_ids = torch.tensor(positions).repeat_interleave(num_tokens)[:, None]
    device = backbone.device.type
    nn.Module.eval(backbone)
    try:
        # autocast would bring the noise of another type; there is none on "meta"
        with nullcontext() if device == "meta" else torch.autocast(device, enabled=False):
            decoder_of(backbone)(
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


__all__ = ["BackboneLayer", "KeyValueShape", "RecordingCache", "key_value_shapes", "written_by"]
