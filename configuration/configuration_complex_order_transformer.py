"""Configuration of the Transformer on complex-order embeddings (Wang et al., 2020, https://arxiv.org/abs/1912.12333)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_without_memory import WithoutMemoryConfig

SHARING = ("word_and_dimension", "word", "dimension")


@strict
class ComplexOrderTransformerConfig(AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Transformer on complex-order embeddings. Further fields are those of
    [`AdaptiveSoftmaxConfig`].

    `hidden_size`, `head_dim` and `intermediate_size` count real numbers: half of them are real parts, half imaginary parts,
    so each is even.

    Args:
        frequency_per (`str`, *optional*, defaults to `"word_and_dimension"`):
            What has its own frequency, in radians per token: every dimension of every word; `"word"`, shared by its
            dimensions; `"dimension"`, shared by all words.
        phase_per (`str`, *optional*, defaults to `"word_and_dimension"`):
            What has its own initial phase, in radians; the same choices, and `"none"`: all phases are 0.
    """

    model_type = "complex_order_transformer"

    frequency_per: str = "word_and_dimension"
    phase_per: str = "word_and_dimension"

    def validate_architecture(self) -> None:
        super().validate_architecture()
        for name in ("hidden_size", "head_dim", "intermediate_size"):
            if getattr(self, name) % 2:
                raise ValueError(
                    f"`{name}`={getattr(self, name)} must be even: one half holds real parts, the other imaginary parts."
                )
        for name, choices in (("frequency_per", SHARING), ("phase_per", (*SHARING, "none"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"`{name}`={getattr(self, name)!r} must be one of {choices}.")

    @property
    def token_width(self) -> int:
        return self.hidden_size // 2

    @property
    def embedding_width(self) -> int:
        """Amplitudes, frequencies and phases: a token does not know its position yet."""
        return self.hidden_size // 2 * 3


@strict
class ComplexOrderTransformerEncoderConfig(WithoutMemoryConfig, ComplexOrderTransformerConfig):
    """The same without memory, for an encoder: a token sees all of its text."""

    model_type = "complex_order_transformer_encoder"


__all__ = ["ComplexOrderTransformerConfig", "ComplexOrderTransformerEncoderConfig"]
