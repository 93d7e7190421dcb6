"""Configuration of the Recurrent Memory Transformer (Bulatov et al., 2022, https://arxiv.org/abs/2207.06881)."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig


@strict
class RecurrentMemoryTransformerConfig(RelativeAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Recurrent Memory Transformer on Transformer-XL. Further fields are those of
    [`RelativeAttentionConfig`] and [`AdaptiveSoftmaxConfig`], except `initial_memory`: a new row has learned memory tokens
    and an empty cache, and `same_length`: a token sees the cache and its segment up to itself.

    Args:
        num_memory_tokens (`int`, *optional*, defaults to 10):
            Number of memory tokens before each segment (the read memory) and after it (the write memory); `num_mem_tokens`
            in the code.
        segment_length (`int`, *optional*, defaults to 128):
            Tokens in a segment, counted from the beginning of a text. The memory is written at the end of each segment. It
            learns what to write only from calls of several segments.
        mem_len (`int`, *optional*, defaults to 128):
            Positions before a segment that its tokens see, memory tokens included (the cache of Transformer-XL).
        bptt_segments (`int`, *optional*, defaults to 2):
            Number of segments in a group, counted from the end of a call. The gradient passes through the memory tokens
            inside a group and stops between groups.
        segment_reads_cache (`bool`, *optional*, defaults to `True`):
            Whether there is a cache. `False`: a segment sees only itself and the memory tokens, whatever `mem_len` is.
        memory_reads_cache (`bool`, *optional*, defaults to `False`):
            Whether memory tokens also see the cache (`read_mem_from_cache` in the code).
        memory_initializer_range (`float`, *optional*, defaults to 1.0):
            Standard deviation of the normal distribution from which the memory tokens of a new row are initialised.
    """

    model_type = "recurrent_memory_transformer"
    attribute_map = AdaptiveSoftmaxConfig.attribute_map | {
        "num_mem_tokens": "num_memory_tokens",
        "read_mem_from_cache": "memory_reads_cache",
    }

    # what the base class reads, and no field
    initial_memory: ClassVar[str] = "empty"  # type: ignore[misc]  # a ClassVar drops the field
    same_length: ClassVar[bool] = True  # type: ignore[misc]  # a ClassVar drops the field

    mem_len: int = 128
    segment_length: int = 128
    num_memory_tokens: int = 10
    bptt_segments: int = 2
    segment_reads_cache: bool = True
    memory_reads_cache: bool = False
    memory_initializer_range: float | int = 1.0

    def validate_architecture(self) -> None:
        if self.mem_len < 1:  # the shared check would advise `same_length=False`, which changes nothing here
            raise ValueError(
                f"`mem_len`={self.mem_len} must be at least 1; for a model without a cache set `segment_reads_cache=False`."
            )
        super().validate_architecture()
        for name in ("num_memory_tokens", "bptt_segments"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least 1.")
        if self.memory_reads_cache and not self.segment_reads_cache:
            raise ValueError(
                "`memory_reads_cache`=True needs a cache, which `segment_reads_cache`=False turns off: change one of them."
            )
        if not self.memory_initializer_range >= 0:  # NaN too
            raise ValueError(f"`memory_initializer_range`={self.memory_initializer_range} must not be negative.")

    @property
    def positions_per_segment(self) -> int:
        """Positions of a segment with the memory tokens on both sides."""
        return self.segment_length + 2 * self.num_memory_tokens

    @property
    def cache_len(self) -> int:
        """Positions before a segment that its tokens see."""
        return self.mem_len if self.segment_reads_cache else 0

    @property
    def sliding_window(self) -> int:
        """Positions that a token attends to at most, memory tokens included. Memory tokens carry more."""
        return self.cache_len + self.positions_per_segment

    @property
    def layer_mem_lens(self) -> list[int]:
        """The cache and the open segment."""
        return [self.sliding_window - 1] * self.num_hidden_layers


__all__ = ["RecurrentMemoryTransformerConfig"]
