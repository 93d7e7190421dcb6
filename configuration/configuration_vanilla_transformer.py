"""Configuration of the vanilla character Transformer (Al-Rfou et al., 2018, https://arxiv.org/abs/1808.04444)."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_absolute_positions import AbsolutePositionsConfig
from transformers_xl.configuration.configuration_without_memory import WithoutMemoryConfig

INTERMEDIATE_LOSSES = ("hard", "linear", "none")


@strict
class VanillaTransformerConfig(WithoutMemoryConfig, AbsolutePositionsConfig):
    r"""
    Configuration of the vanilla Transformer. Further fields are those of [`AbsolutePositionsConfig`] and
    [`WithoutMemoryConfig`].

    Args:
        intermediate_losses (`str`, *optional*, defaults to `"hard"`):
            Whether layers before the last predict in training too. Layer l of n does so in the first l/(2n) of the
            training: with weight 1 (`"hard"`) or a weight that falls linearly to 0 (`"linear"`); `"none"` turns it off.
        num_targets (`int`, *optional*, defaults to 2):
            1: in training every position predicts the next token; 2: also the one after it.
        second_target_weight (`float`, *optional*, defaults to 0.5):
            Weight of the loss of the second target.
        every_position_loss (`bool`, *optional*, defaults to `True`):
            Whether every position predicts in training, or only the last one of a segment.
    """

    model_type = "vanilla_transformer"

    intermediate_losses: str = "hard"
    num_targets: int = 2
    second_target_weight: float | int = 0.5
    every_position_loss: bool = True

    def validate_architecture(self) -> None:
        super().validate_architecture()
        choices = (
            ("intermediate_losses", INTERMEDIATE_LOSSES),
            ("num_targets", (1, 2)),
        )
        for name, allowed in choices:
            if getattr(self, name) not in allowed:
                raise ValueError(f"`{name}`={getattr(self, name)!r} must be one of {allowed}.")
        if self.second_target_weight < 0:
            raise ValueError(f"`second_target_weight`={self.second_target_weight} must not be negative.")


__all__ = ["VanillaTransformerConfig"]
