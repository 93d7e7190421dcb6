"""Configuration of relative position representations (Shaw et al., 2018, https://arxiv.org/abs/1803.02155)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_without_memory import WithoutMemoryConfig


@strict
class ShawTransformerConfig(AdaptiveSoftmaxConfig):
    r"""
    Configuration of a Transformer with Shaw's relative positions. Further fields are those of
    [`AdaptiveSoftmaxConfig`].

    Args:
        max_relative_distance (`int`, *optional*, defaults to 16):
            The clipping distance k, in positions: all distances from k on share one vector; with 0 all distances do.
        use_key_table (`bool`, *optional*, defaults to `True`):
            Whether relative positions are added to the keys.
        use_value_table (`bool`, *optional*, defaults to `True`):
            Whether relative positions are added to the values.
        tables_per_head (`bool`, *optional*, defaults to `False`):
            Whether each head has its own tables, or all heads of a layer share them (as in the paper).
        value_head_dim (`int`, *optional*):
            Width of the values of one head; `head_dim` when not given.
    """

    model_type = "shaw_transformer"

    max_relative_distance: int = 16
    use_key_table: bool = True
    use_value_table: bool = True
    tables_per_head: bool = False
    value_head_dim: int | None = None

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if self.max_relative_distance < 0:
            raise ValueError(
                f"`max_relative_distance`={self.max_relative_distance} must not be negative; 0: one vector for all."
            )
        if not self.use_key_table and not self.use_value_table:
            raise ValueError("`use_key_table`=False and `use_value_table`=False leave no positions: set one to True.")
        if self.value_head_dim is not None and self.value_head_dim < 1:
            raise ValueError(f"`value_head_dim`={self.value_head_dim} must be at least 1.")


@strict
class ShawTransformerEncoderConfig(WithoutMemoryConfig, ShawTransformerConfig):
    """The same without memory, for an encoder: a token sees all of its text."""

    model_type = "shaw_transformer_encoder"


__all__ = ["ShawTransformerConfig", "ShawTransformerEncoderConfig"]
