"""What models of equal size share, as their builders take it (no torch)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ComparisonTerms:
    """What is the same for all models.

    Args:
        hidden_size: width of the models.
        layers: number of layers.
        heads: attention heads per layer.
        mem_len: length of the memory, in tokens.
        dropout: probability of dropout.
        eval_fraction: share of the text to hold out at its end.
        segment_length: tokens per segment.
        batch_size: lanes of text that are read side by side.
        steps: training steps.
        learning_rate: learning rate of AdamW after its warm-up.
        warmup_steps: steps of linear warm-up.

    Raises:
        ValueError: `learning_rate` is not above 0.
    """

    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    mem_len: int = 128
    dropout: float = 0.0
    eval_fraction: float = 0.05
    segment_length: int = 64
    batch_size: int = 16
    steps: int = 500
    learning_rate: float = 2e-3
    warmup_steps: int = 50

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise ValueError(f"`learning_rate`={self.learning_rate} must be above 0.")


__all__ = ["ComparisonTerms"]
