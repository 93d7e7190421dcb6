"""Configuration of the Longformer encoder (Beltagy et al., 2020, https://arxiv.org/abs/2004.05150, sections 3 and 5)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_without_memory import WithoutMemoryConfig


@strict
class LongformerEncoderConfig(WithoutMemoryConfig):
    r"""
    Configuration of the Longformer encoder. Further fields are those of [`WithoutMemoryConfig`], with the defaults of
    RoBERTa's architecture.

    Args:
        attention_window (`int` or `list[int]`, *optional*, defaults to 512):
            Neighbours that a token sees, half of them on each side, itself extra: for all layers or for each. Even.
        segment_length (`int`, *optional*, defaults to 4096):
            Number of learned positions: the longest text of one call, in tokens.
    """

    model_type = "longformer_encoder"

    attention_window: int | list[int] = 512
    segment_length: int = 4096
    norm_position: str = "post"
    hidden_act: str = "gelu"
    attention_bias: bool = True
    scale_embedding: bool = False

    def validate_architecture(self) -> None:
        super().validate_architecture()
        given, layers = self.attention_window, self.num_hidden_layers
        if isinstance(given, list) and len(given) != layers:
            raise ValueError(
                f"`attention_window`={given} has {len(given)} entries: give one for each of `num_hidden_layers`={layers}, "
                "or one number for all."
            )
        if any(window < 2 or window % 2 for window in self.windows):
            raise ValueError(
                f"`attention_window`={given} must be an even number from 2 on: a token sees half of it on each side."
            )

    @property
    def windows(self) -> list[int]:
        """`attention_window` of each layer."""
        given = self.attention_window
        return given if isinstance(given, list) else [given] * self.num_hidden_layers


__all__ = ["LongformerEncoderConfig"]
