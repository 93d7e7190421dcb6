"""Configuration of positions that count from the beginning of a segment."""

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig

POSITION_TYPES = ("per_layer", "sinusoid")


@strict
class AbsolutePositionsConfig(AdaptiveSoftmaxConfig):
    r"""
    Fields of the variants whose positions count from the beginning of a segment: `segment_length` is their number. Further
    fields are those of [`AdaptiveSoftmaxConfig`].

    Args:
        position_type (`str`, *optional*, defaults to `"per_layer"`):
            `"per_layer"`: learned positions are added before every layer (Al-Rfou et al., 2018,
            https://arxiv.org/abs/1808.04444); `"sinusoid"`: sinusoids are added to the embedding (Vaswani et al., 2017,
            https://arxiv.org/abs/1706.03762).
    """

    position_type: str = "per_layer"

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if self.position_type not in POSITION_TYPES:
            raise ValueError(f"`position_type`={self.position_type!r} must be one of {POSITION_TYPES}.")


__all__ = ["AbsolutePositionsConfig"]
