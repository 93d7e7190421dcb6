"""The fields of models with the local attention of Google's meliad: Wu et al., 2022, https://arxiv.org/abs/2203.08913, and
Hutchins et al., 2022, https://arxiv.org/abs/2203.07852."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_memory import MemoryConfig


@strict
class LocalAttentionConfig(MemoryConfig):
    r"""
    Base configuration of these models. Further fields are those of [`MemoryConfig`], except `same_length`: the attention
    has a sliding window.

    Args:
        relative_attention_num_buckets (`int`, *optional*, defaults to 32):
            Number of buckets of distances, each with a learned bias. The first half of the buckets hold one distance each;
            the others widen with the distance (https://arxiv.org/abs/1910.10683).
        relative_attention_max_distance (`int`, *optional*, defaults to 128):
            Distance in tokens from which on all distances share the last bucket.
        attend_to_self (`bool`, *optional*, defaults to `True`):
            `True`: a token sees itself and the `mem_len - 1` before it. `False`, as in the original code: the `mem_len`
            before it, and not itself.
    """

    # what the base class reads, and no field
    same_length: ClassVar[bool] = True  # type: ignore[misc]  # a ClassVar drops the field

    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    attend_to_self: bool = True

    def validate_architecture(self) -> None:
        if self.mem_len < 1:  # the shared check would advise `same_length=False`, which changes nothing here
            raise ValueError(f"`mem_len`={self.mem_len} must be at least 1: it is the window of the attention.")
        super().validate_architecture()
        if self.relative_attention_num_buckets < 2:
            raise ValueError(
                f"`relative_attention_num_buckets`={self.relative_attention_num_buckets} must be at least 2: one for near "
                "keys and one for the others."
            )
        if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 2:
            raise ValueError(
                f"`relative_attention_max_distance`={self.relative_attention_max_distance} must be above half of "
                f"`relative_attention_num_buckets`={self.relative_attention_num_buckets}: half of the buckets hold "
                "one distance each."
            )

    @property
    def sliding_window(self) -> int:
        """Positions from the farthest key that a token sees up to the token itself, whether it sees itself or not."""
        return self.mem_len if self.attend_to_self else self.mem_len + 1


__all__ = ["LocalAttentionConfig"]
