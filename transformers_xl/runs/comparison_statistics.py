"""Differences between models, and how far they can be told: a bootstrap over documents and seeds (no torch).

    difference = (sum of bits of one model - sum of bits of the other) / bytes

Each draw takes as many documents as there are, with replacement, the same for both models (paired), and for each model as
many of its seeds. The interval holds 95 % of the draws (Efron and Tibshirani, 1993, chapter 13). A few seeds drawn with
replacement differ less than new ones would, by a factor of sqrt((n - 1) / n): their deviations from the mean are stretched
by its inverse.
"""

from dataclasses import dataclass

import numpy as np

DRAWS, CONFIDENCE = 10_000, 0.95


@dataclass(frozen=True)
class Difference:
    """Bits per byte by which one model is above another, and the interval that it lies in."""

    mean: float
    low: float
    high: float
    has_seeds: bool = True  # several of each model, without which the interval is of documents alone

    @property
    def verdict(self) -> str:
        """`"better"`, `"worse"`, or `"out of reach here"` where the interval includes zero or a model has one seed."""
        if not self.has_seeds or self.low <= 0 <= self.high:
            return "out of reach here"
        return "better" if self.high < 0 else "worse"


def bits(nats: np.ndarray) -> np.ndarray:
    return nats / np.log(2)


def difference(one: np.ndarray, other: np.ndarray, num_bytes: np.ndarray) -> Difference:
    """Between two models, by the bits of each document `(seeds, documents)`, and its bytes `(documents,)`."""
    random = np.random.default_rng(0)
    chosen = random.integers(len(num_bytes), size=(DRAWS, len(num_bytes)))
    weights = np.apply_along_axis(np.bincount, 1, chosen, minlength=len(num_bytes))  # how often each was drawn
    totals = [_drawn(each, weights, random) for each in (one, other)]
    draws = (totals[0] - totals[1]) / (weights @ num_bytes)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    mean = (one.mean(0).sum() - other.mean(0).sum()) / num_bytes.sum()
    return Difference(float(mean), float(low), float(high), min(len(one), len(other)) > 1)


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


__all__ = ["CONFIDENCE", "DRAWS", "Difference", "bits", "bits_after", "difference"]
