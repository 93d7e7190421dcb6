"""Configuration of segment recurrence with absolute positions (Dai et al., 2019, https://arxiv.org/abs/1901.02860, 3.2)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_absolute_positions import AbsolutePositionsConfig
from transformers_xl.configuration.configuration_without_memory import WithoutMemoryConfig


@strict
class AbsoluteTransformerXLConfig(AbsolutePositionsConfig):
    r"""
    Configuration of Transformer-XL's recurrence with absolute positions. Fields are those of
    [`AbsolutePositionsConfig`]. Positions start again every `segment_length` tokens of a text.

    Args:
        position_type (`str`, *optional*, defaults to `"sinusoid"`):
            As in [`AbsolutePositionsConfig`].
    """

    model_type = "absolute_transformer_xl"

    position_type: str = "sinusoid"


@strict
class AbsoluteTransformerXLEncoderConfig(WithoutMemoryConfig, AbsoluteTransformerXLConfig):
    """The same without memory, for an encoder: a token sees all of its text."""

    model_type = "absolute_transformer_xl_encoder"


__all__ = ["AbsoluteTransformerXLConfig", "AbsoluteTransformerXLEncoderConfig"]
