"""Intervals of differences between models: seeds and modules are both drawn again, for what a difference would be with
others of either. A module counts by its bytes, as in the bits per byte of all."""

from typing import NamedTuple

import numpy as np

DRAWS, COVERAGE = 10_000, 0.95


class Interval(NamedTuple):
    """A mean, and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies on one side of zero, or else 0: it decides nothing."""
        return (self.low > 0) - (self.high < 0)


def interval(bits: np.ndarray, weights: np.ndarray, draws: int = DRAWS, seed: int = 0) -> Interval:
    """The mean over seeds and modules, and where it lies for other seeds and modules: both are drawn with replacement.

    Args:
        bits: `(seeds, modules)`, bits per byte of a model, or a difference of models trained from the same seeds and scored
            on the same modules.
        weights: `(modules,)`, how much each counts: its bytes.
        draws: how often both are drawn.
        seed: of the draws.

    Raises:
        ValueError: the shapes do not go together, or there are no seeds or less than two modules. Of one seed the interval
            is for other modules alone.
    """
    bits, weights = np.asarray(bits, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    if bits.ndim != 2 or bits.shape[1:] != weights.shape or len(bits) < 1 or len(weights) < 2:
        raise ValueError(
            f"`bits` {bits.shape} and `weights` {weights.shape} must be (seeds, modules) and (modules,), with two modules "
            "at least."
        )
    random = np.random.default_rng(seed)
    seeds, modules = (random.integers(0, size, (draws, size)) for size in bits.shape)
    # how often each seed and each module was drawn; the mean of a draw is then one product
    drawn_seeds, drawn_modules = (
        np.stack([np.bincount(draw, minlength=size) for draw in drawn])
        for drawn, size in zip((seeds, modules), bits.shape, strict=True)
    )
    shares = drawn_modules * weights
    means = ((drawn_seeds @ bits) * shares).sum(1) / shares.sum(1) / bits.shape[0]
    low, high = np.quantile(means, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return Interval(float((bits @ weights).mean() / weights.sum()), float(low), float(high))


__all__ = ["Interval", "interval"]
