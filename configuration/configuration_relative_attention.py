"""The fields of models with the relative attention of Transformer-XL: Dai et al., 2019, https://arxiv.org/abs/1901.02860."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_memory import MemoryConfig


@strict
class RelativeAttentionConfig(MemoryConfig):
    r"""
    Base configuration of these models. Further fields are those of
    [`MemoryConfig`].

    Args:
        clamp_len (`int`, *optional*, defaults to -1):
            Relative distances above this many positions are treated as this distance; -1 turns it off.
        share_relative_bias (`bool`, *optional*, defaults to `True`):
            Whether all layers share one pair of biases u, v of the relative attention, or each layer has its own
            (`untie_r`).
        recompute_attention (`bool`, *optional*, defaults to `False`):
            Whether the backward pass computes the attention weights once more instead of keeping them: less memory for
            about a tenth more time.
    """

    clamp_len: int = -1
    share_relative_bias: bool = True
    recompute_attention: bool = False

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if self.clamp_len < 1 and self.clamp_len != -1:
            raise ValueError(f"`clamp_len`={self.clamp_len} must be at least 1, or -1, which turns it off.")


__all__ = ["RelativeAttentionConfig"]
