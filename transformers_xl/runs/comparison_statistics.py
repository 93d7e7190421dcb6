"""Bits per byte, differences of models among them, and how far they can be told: a bootstrap over documents and seeds (no
torch).

    difference = (sum of bits of one model - sum of bits of the other) / bytes

Each draw takes as many documents as there are, with replacement, the same for all models (paired), and for each model as
many of its seeds. The interval holds 95 % of the draws (Efron and Tibshirani, 1993, chapter 13). A few seeds drawn with
replacement differ less than new ones would, by a factor of sqrt((n - 1) / n): their deviations from the mean are stretched
by its inverse.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS, CONFIDENCE = 10_000, 0.95


@dataclass(frozen=True)
class Interval:
    """Bits per byte, such as those by which one model is above another, and the interval that they lie in."""

    mean: float
    low: float
    high: float
    has_seeds: bool = True  # several of each model, without which the interval is of documents alone

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"

    @property
    def sign(self) -> int:
        """1 or -1; 0 where the interval includes zero or a model has one seed: it decides nothing."""
        return 0 if not self.has_seeds else (self.low > 0) - (self.high < 0)

    @property
    def verdict(self) -> str:
        """Of a difference to another model."""
        return {1: "worse", -1: "better", 0: "out of reach here"}[self.sign]


def bits(nats: np.ndarray) -> np.ndarray:
    return nats / np.log(2)


def difference(one: np.ndarray, other: np.ndarray, num_bytes: np.ndarray) -> Interval:
    """Between two models, by the bits of each document `(seeds, documents)`, and its bytes `(documents,)`."""
    return interval([one, -other], num_bytes)


def interval(models: Sequence[np.ndarray], num_bytes: np.ndarray) -> Interval:
    """The sum over models, of which those that are taken away are negative, a byte.

    Args:
        models: of each, the bits of each document `(seeds, documents)`; some may have more seeds than others.
        num_bytes: of each document `(documents,)`.

    Raises:
        ValueError: the shapes do not go together, or there are no seeds or less than two documents.
    """
    models, num_bytes = [np.asarray(found, np.float64) for found in models], np.asarray(num_bytes)
    shapes = [found.shape for found in models]
    if len(num_bytes) < 2 or any(len(shape) != 2 or shape[0] < 1 or shape[1:] != num_bytes.shape for shape in shapes):
        raise ValueError(
            f"`models` {shapes} and `num_bytes` {num_bytes.shape} must be (seeds, documents) each and (documents,), with "
            "two documents at least."
        )
    random = np.random.default_rng(0)
    chosen = random.integers(len(num_bytes), size=(DRAWS, len(num_bytes)))
    weights = np.apply_along_axis(np.bincount, 1, chosen, minlength=len(num_bytes))  # how often each was drawn
    draws = sum(_drawn(found, weights, random) for found in models) / (weights @ num_bytes)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    mean = sum(found.mean(0).sum() for found in models) / num_bytes.sum()
    return Interval(float(mean), float(low), float(high), min(map(len, models)) > 1)


def _drawn(found: np.ndarray, weights: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Sums of bits of each draw `(draws,)`, the mean of the seeds that it takes."""
    seeds = len(found)
    if seeds > 1:
        mean = found.mean(0)
        found = mean + (found - mean) * np.sqrt(seeds / (seeds - 1))
    taken = random.integers(seeds, size=(len(weights), seeds))
    by_seed = weights @ found.T  # (draws, seeds)
    return np.take_along_axis(by_seed, taken, 1).mean(1)


def bits_after(curve: dict[int, np.ndarray], step: float) -> np.ndarray | None:
    """The bits of each document after so many steps: between two points of a curve, in a line against the logarithm of
    steps, against which losses fall about evenly; None before the first of them, or after the last."""
    steps = sorted(curve)
    if not steps[0] <= step <= steps[-1]:
        return None
    after = next(each for each in steps if each >= step)
    before = max(each for each in steps if each <= step)
    share = 0.0 if after == before else np.log(step / before) / np.log(after / before)
    return (1 - share) * curve[before] + share * curve[after]


__all__ = ["CONFIDENCE", "DRAWS", "Interval", "bits", "bits_after", "difference", "interval"]
