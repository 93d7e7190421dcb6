"""Configuration of the Infini-Transformer (Munkhdalai et al., 2024, https://arxiv.org/abs/2404.07143)."""

import math
from typing import ClassVar

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig

MEMORY_UPDATES = ("linear", "delta")


@strict
class InfiniTransformerConfig(AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Infini-Transformer. Further fields are those of [`AdaptiveSoftmaxConfig`], except `initial_memory`:
    the memory of a new row is empty, and `same_length`: a token attends to its own block only.

    Args:
        mem_len (`int`, *optional*, defaults to 128):
            Tokens in a block (the paper's segment of length N). A token attends to its own block up to itself. When a
            block is complete, it is written into the memory matrix of the layer, where later tokens read it.
        segment_length (`int`, *optional*, defaults to 512):
            Tokens in a training segment. It should be longer than `mem_len`: a write learns only from later blocks of the
            same training segment.
        memory_update (`str`, *optional*, defaults to `"linear"`):
            How a block is written: `"linear"` adds its values; `"delta"` first subtracts from them what the matrix already
            returns for their keys.
        value_head_dim (`int`, *optional*):
            Width of the values of one head; `head_dim`, the width of queries and keys, when not given.
        rope_theta (`float`, *optional*, defaults to 10000.0):
            Base of the rotary position embedding (RoPE) of the attention inside a block; None for no positions. Keys and
            queries of the memory matrix have no positions.
    """

    model_type = "infini_transformer"

    # what the base class reads, and no field
    initial_memory: ClassVar[str] = "empty"  # type: ignore[misc]  # a ClassVar drops the field
    same_length: ClassVar[bool] = True  # type: ignore[misc]  # a ClassVar drops the field

    mem_len: int = 128
    segment_length: int = 512
    memory_update: str = "linear"
    value_head_dim: int | None = None
    rope_theta: float | int | None = 10_000.0

    def validate_architecture(self) -> None:
        if self.mem_len < 1:  # the shared check would advise `same_length=False`, which changes nothing here
            raise ValueError(f"`mem_len`={self.mem_len} must be at least 1: it is the number of tokens in a block.")
        super().validate_architecture()
        if self.memory_update not in MEMORY_UPDATES:
            raise ValueError(f"`memory_update`={self.memory_update!r} must be one of {MEMORY_UPDATES}.")
        if self.value_head_dim is not None and self.value_head_dim < 1:
            raise ValueError(f"`value_head_dim`={self.value_head_dim} must be at least 1, or None for `head_dim`.")
        if self.rope_theta is None:
            return
        if not 0 < self.rope_theta < math.inf:
            raise ValueError(f"`rope_theta`={self.rope_theta} must be above 0 and finite, or None for no positions.")
        if self.head_dim is not None and self.head_dim % 2:
            raise ValueError(
                f"`head_dim`={self.head_dim} must be even, because rotary positions rotate pairs of features: change it, "
                "or set `rope_theta=None`."
            )

    @classmethod
    def _objection(cls, name: str) -> str | None:
        if name in ("rope_parameters", "rope_scaling"):  # transformers would keep them without effect
            return "has no effect here: set `rope_theta`"
        return super()._objection(name)

    @property
    def value_width(self) -> int:
        """Width of the values of all heads together."""
        return self.num_attention_heads * (self.value_head_dim or self.head_dim or 0)

    @property
    def sliding_window(self) -> int:
        """Positions that the last token of a block attends to, itself included. The memory matrix has no such limit."""
        return self.mem_len

    @property
    def layer_mem_lens(self) -> list[int]:
        """Positions of the open block, at most one fewer than a complete one."""
        return [self.mem_len - 1] * self.num_hidden_layers


__all__ = ["InfiniTransformerConfig"]
