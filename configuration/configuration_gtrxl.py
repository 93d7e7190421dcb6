"""Configuration of Gated Transformer-XL (Parisotto et al., 2019, https://arxiv.org/abs/1910.06764)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig
from transformers_xl.configuration.configuration_without_memory import WithoutMemoryConfig

GATE_TYPES = ("gru", "highway", "input", "none", "output", "sigmoid_tanh")


@strict
class GTrXLConfig(RelativeAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of GTrXL. Further fields are those of [`RelativeAttentionConfig`] and [`AdaptiveSoftmaxConfig`];
    `norm_position` is always `"pre"`, which is the paper's identity map reordering.

    Args:
        gate_type (`str`, *optional*, defaults to `"gru"`):
            What joins a sub-layer to its residual stream: `"gru"`, `"highway"`, `"input"`, `"output"`, `"sigmoid_tanh"`, or
            `"none"` for the plain sum, which is TrXL-I.
        gate_bias (`float`, *optional*, defaults to 2.0):
            Initial value of the gates' bias b_g. Larger values start every sub-layer closer to the identity map. The input
            gate has none.
    """

    model_type = "gtrxl"

    gate_type: str = "gru"
    gate_bias: float | int = 2.0

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if self.gate_type not in GATE_TYPES:
            raise ValueError(f"`gate_type`={self.gate_type!r} must be one of {GATE_TYPES}.")
        if self.norm_position != "pre":
            raise ValueError(
                f"`norm_position`={self.norm_position!r} must be 'pre': the gates need a residual stream that no norm "
                "interrupts. For post-norm use TransformerXLConfig."
            )


@strict
class GTrXLEncoderConfig(WithoutMemoryConfig, GTrXLConfig):
    """The same without memory, for an encoder: a token sees all of its text."""

    model_type = "gtrxl_encoder"


__all__ = ["GTrXLConfig", "GTrXLEncoderConfig"]
