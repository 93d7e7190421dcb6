"""The options of `transformers-xl recl` (no torch: the command reads its defaults)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RECLOptions:
    """How the relative effective context length of a group of models is measured.

    Args:
        r: fraction of the tokens that gains are taken over, the hardest.
        c0: context to begin with, in tokens.
        delta: tokens by which the context grows.
        threshold: gain that is too little, a share of the perplexity.
        max_context: longest context to measure, in tokens.
        blocks: blocks of the text, for the confidence intervals.
        positions: tokens to measure in each block.
        resamples: texts to draw from the blocks.
        confidence: share of them inside the intervals.
        seed: of the draws.
        batch_size: windows of the text that are read side by side.

    Raises:
        ValueError: `max_context` leaves no two contexts to compare.
    """

    r: float = 0.1
    c0: int = 16
    delta: int = 16
    threshold: float = 0.01
    max_context: int = 512
    blocks: int = 32
    positions: int = 64
    resamples: int = 1000
    confidence: float = 0.95
    seed: int = 0
    batch_size: int = 32

    def __post_init__(self) -> None:
        if self.max_context < self.c0 + self.delta:
            raise ValueError(
                f"`max_context`={self.max_context} must be at least `c0` + `delta` = {self.c0 + self.delta} tokens."
            )

    @property
    def contexts(self) -> list[int]:
        """The contexts to measure, in tokens, the shortest first."""
        return list(range(self.c0, self.max_context + 1, self.delta))


__all__ = ["RECLOptions"]
