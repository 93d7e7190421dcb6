"""Configuration of the Infini-Transformer (Munkhdalai et al., 2024, https://arxiv.org/abs/2404.07143)."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig

MEMORY_UPDATES = ("linear", "delta")


@strict
class InfiniTransformerConfig(AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Infini-Transformer. Further fields are those of [`AdaptiveSoftmaxConfig`], but `initial_memory`: a
    fresh row has written nothing. Blocks say how far a token sees exactly: `same_length` changes nothing.

    Args:
        mem_len (`int`, *optional*, defaults to 128):
            Positions of a block (a segment of length N in the paper). A token attends to those of its own block; when a
            block is whole, it is written into the matrix of the layer, and no longer attended to.
        segment_length (`int`, *optional*, defaults to 512):
            Tokens per training segment. Longer than `mem_len`: keys and values learn what is worth writing from tokens of
            the same training segment that read it.
        memory_update (`str`, *optional*, defaults to `"linear"`):
            How a block is written: `"linear"`, its values are added; `"delta"`, without what the matrix already holds for
            their keys.
        value_head_dim (`int`, *optional*):
            Width of the values of one head; `head_dim`, that of queries and keys, when not given.
        rope_theta (`float`, *optional*, defaults to 10000.0):
            Base of the rotary positions of the attention inside a block; None for no positions. What is written and read
            has none.
    """

    model_type = "infini_transformer"

    # what the base class reads, and no field: a type checker does not know that a dataclass drops it so
    initial_memory: ClassVar[str] = "empty"  # type: ignore[misc]

    mem_len: int = 128
    segment_length: int = 512
    memory_update: str = "linear"
    value_head_dim: int | None = None
    rope_theta: float | int | None = 10_000.0

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if self.mem_len < 1:
            raise ValueError(f"`mem_len`={self.mem_len} must be at least 1, the position of the token itself.")
        if self.memory_update not in MEMORY_UPDATES:
            raise ValueError(f"`memory_update`={self.memory_update!r} must be one of {MEMORY_UPDATES}.")
        if self.value_head_dim is not None and self.value_head_dim < 1:
            raise ValueError(f"`value_head_dim`={self.value_head_dim} must be at least 1, or None for `head_dim`.")
        if self.rope_theta is None:
            return
        if self.rope_theta <= 0:
            raise ValueError(f"`rope_theta`={self.rope_theta} must be above 0, or None for no positions.")
        if self.head_dim is not None and self.head_dim % 2:
            raise ValueError(
                f"`head_dim`={self.head_dim} must be even, for rotary positions turn pairs of features: change it, or set "
                "`rope_theta=None`."
            )

    @property
    def value_width(self) -> int:
        """Width of the values of all heads."""
        return self.num_attention_heads * (self.value_head_dim or self.head_dim or 0)

    @property
    def sliding_window(self) -> int:
        """Positions that the last token of a block attends to, itself included; what was written has no horizon."""
        return self.mem_len

    @property
    def layer_mem_lens(self) -> list[int]:
        """Positions of the open block, of which a whole one leaves none."""
        return [self.mem_len - 1] * self.num_hidden_layers


__all__ = ["InfiniTransformerConfig"]
