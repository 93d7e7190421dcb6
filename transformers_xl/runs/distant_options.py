"""The options of `transformers-xl distant-context` (no torch: the command reads its defaults)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DistantOptions:
    """How the use of distant context is measured.

    Args:
        context: tokens before each token that is predicted.
        positions: tokens to predict, spread evenly over the text.
        seed: of the perturbations.
        batch_size: windows of the text that are read side by side.

    Raises:
        ValueError: a number is out of range.
    """

    context: int = 256
    positions: int = 512
    seed: int = 0
    batch_size: int = 32

    def __post_init__(self) -> None:
        for name, least in (("context", 2), ("positions", 2), ("seed", 0), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"`{name}`={getattr(self, name)} must be at least {least}.")

    @property
    def distances(self) -> list[int]:
        """Those measured by default, in tokens: 1, 2, 4, ... up to half of the context."""
        return [2**power for power in range(self.context.bit_length()) if 2 ** (power + 1) <= self.context]


__all__ = ["DistantOptions"]
