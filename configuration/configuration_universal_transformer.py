"""Configuration of the Universal Transformer (Dehghani et al., 2018, https://arxiv.org/abs/1807.03819)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig
from transformers_xl.configuration.configuration_without_memory import WithoutMemoryConfig


@strict
class UniversalTransformerConfig(RelativeAttentionConfig, AdaptiveSoftmaxConfig):
    r"""
    Configuration of the Universal Transformer. Further fields are those of [`RelativeAttentionConfig`] and
    [`AdaptiveSoftmaxConfig`]. `num_hidden_layers`, or `max_steps`, is the largest number of steps of a position: one
    layer runs that many times.

    Args:
        halting_threshold (`float`, *optional*, defaults to 0.99):
            A position halts with the step at which the sum of its halting probabilities reaches this (1 - epsilon in the
            paper on adaptive computation time).
        halting_bias (`float`, *optional*, defaults to 1.0):
            Initial bias of the halting unit; higher values halt earlier.
        ponder_loss_coef (`float`, *optional*, defaults to 0.01):
            Weight of the ponder cost, in steps per token, in the training loss (`act_loss_weight` in the authors' code).
    """

    model_type = "universal_transformer"
    attribute_map = AdaptiveSoftmaxConfig.attribute_map | {
        "max_steps": "num_hidden_layers",
        "act_loss_weight": "ponder_loss_coef",
    }
    keys_to_ignore_at_inference = [*AdaptiveSoftmaxConfig.keys_to_ignore_at_inference, "ponder_cost", "halting"]

    halting_threshold: float | int = 0.99
    halting_bias: float | int = 1.0
    ponder_loss_coef: float | int = 0.01

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if not 0 < self.halting_threshold <= 1:
            raise ValueError(
                f"`halting_threshold`={self.halting_threshold} must be above 0 and at most 1: it is a sum of probabilities."
            )
        if self.ponder_loss_coef < 0:
            raise ValueError(
                f"`ponder_loss_coef`={self.ponder_loss_coef} must not be negative; 0 turns the ponder loss off."
            )


@strict
class UniversalTransformerEncoderConfig(WithoutMemoryConfig, UniversalTransformerConfig):
    """The same without memory, for an encoder: a token sees all of its text."""

    model_type = "universal_transformer_encoder"


__all__ = ["UniversalTransformerConfig", "UniversalTransformerEncoderConfig"]
