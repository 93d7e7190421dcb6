"""Configuration of the Star-Transformer (Guo et al., 2019, https://arxiv.org/abs/1902.09113)."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_memory import MemoryConfig

RINGS = ("cyclic", "open")


@strict
class StarTransformerConfig(MemoryConfig):
    r"""
    Configuration of the Star-Transformer. Further fields are those of [`MemoryConfig`], except `intermediate_size`, because
    there are no feed-forwards, `initial_memory`: a new row starts with zeros, and `lm_head_bias`: it predicts no words. The
    memory is always one relay: `mem_len` turns it on or, at 0 with `same_length=False`, off.

    The defaults are the paper's. Those of the released code: `ring="open"`, `norm_position="pre"`, `use_final_norm=False`,
    `hidden_act="leaky_relu"`, `attention_bias=True`, `layer_norm_eps=1e-6`.

    Args:
        ring (`str`, *optional*, defaults to `"cyclic"`):
            Neighbours of the first and the last token: each other (`"cyclic"`), or a key and value of zeros (`"open"`).
        max_position_embeddings (`int`, *optional*, defaults to 512):
            Number of learned positions, that is the longest segment in tokens; None for no positions and no limit.
        norm_position (`str`, *optional*, defaults to `"post"`):
            `"post"` normalises satellites and relay after their activation, `"pre"` the satellites before their attention.
    """

    model_type = "star_transformer"

    # what the base class reads, and no fields
    intermediate_size: ClassVar[int] = 2048  # type: ignore[misc]  # a ClassVar drops the field
    initial_memory: ClassVar[str] = "empty"  # type: ignore[misc]  # a ClassVar drops the field
    lm_head_bias: ClassVar[bool] = True  # type: ignore[misc]  # a ClassVar drops the field

    norm_position: str = "post"
    ring: str = "cyclic"
    max_position_embeddings: int | None = 512

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if self.ring not in RINGS:
            raise ValueError(f"`ring`={self.ring!r} must be one of {RINGS}.")
        if self.max_position_embeddings is not None and self.max_position_embeddings < 1:
            raise ValueError(
                f"`max_position_embeddings`={self.max_position_embeddings} must be at least 1, or None for no positions."
            )

    @property
    def layer_mem_lens(self) -> list[int]:
        """No layer remembers anything: the model does."""
        return []


__all__ = ["StarTransformerConfig"]
