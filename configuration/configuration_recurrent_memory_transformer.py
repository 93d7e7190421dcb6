"""Configuration of the Recurrent Memory Transformer (Bulatov et al., 2022, https://arxiv.org/abs/2207.06881)."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig


@strict
class RecurrentMemoryTransformerConfig(RelativeAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Recurrent Memory Transformer on Transformer-XL. Further fields are those of
    [`RelativeAttentionConfig`] and [`AdaptiveSoftmaxConfig`], but `initial_memory`: a fresh row has a learned start, and
    an empty cache. A token sees all of its segment and the cache before it: `same_length` changes nothing.

    Args:
        num_memory_tokens (`int`, *optional*, defaults to 10):
            Vectors that stand in front of every segment, where it reads them, and behind it, where it writes them.
        segment_length (`int`, *optional*, defaults to 128):
            Tokens of a segment, counted from the beginning of a text: what lies between two writings. A training segment
            of several of them learns what to write.
        mem_len (`int`, *optional*, defaults to 128):
            Positions before a segment, those of memory tokens included, that its tokens see (the cache of
            Transformer-XL).
        bptt_segments (`int`, *optional*, defaults to 2):
            Segments of a call that learn together, counted from its end: what earlier ones wrote is read without a
            gradient.
        segment_reads_cache (`bool`, *optional*, defaults to `True`):
            Whether there is a cache. `False`: a segment sees itself and memory tokens alone, whatever `mem_len`.
        memory_reads_cache (`bool`, *optional*, defaults to `False`):
            Whether memory tokens see the cache too (`read_mem_from_cache` in the code).
        memory_initializer_range (`float`, *optional*, defaults to 1.0):
            Standard deviation of the normal distribution that the first memory tokens start from.
    """

    model_type = "recurrent_memory_transformer"

    # what the base class reads, and no field: a type checker does not know that a dataclass drops it so
    initial_memory: ClassVar[str] = "empty"  # type: ignore[misc]

    mem_len: int = 128
    segment_length: int = 128
    num_memory_tokens: int = 10
    bptt_segments: int = 2
    segment_reads_cache: bool = True
    memory_reads_cache: bool = False
    memory_initializer_range: float | int = 1.0

    def validate_architecture(self) -> None:
        super().validate_architecture()
        for name in ("mem_len", "num_memory_tokens", "bptt_segments"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least 1.")
        if self.memory_reads_cache and not self.segment_reads_cache:
            raise ValueError("`memory_reads_cache`=True needs the cache of `segment_reads_cache`=True: leave one out.")
        if self.memory_initializer_range < 0:
            raise ValueError(f"`memory_initializer_range`={self.memory_initializer_range} must not be negative.")

    @property
    def positions_per_segment(self) -> int:
        """Those of a segment and of the memory tokens on both sides of it."""
        return self.segment_length + 2 * self.num_memory_tokens

    @property
    def cache_len(self) -> int:
        """Positions before a segment that it sees."""
        return self.mem_len if self.segment_reads_cache else 0

    @property
    def sliding_window(self) -> int:
        """Positions that a layer attends to at most, those of memory tokens included; what was written has no horizon."""
        return self.cache_len + self.positions_per_segment

    @property
    def layer_mem_lens(self) -> list[int]:
        """The cache, and what is open of a segment."""
        return [self.sliding_window - 1] * self.num_hidden_layers


__all__ = ["RecurrentMemoryTransformerConfig"]
