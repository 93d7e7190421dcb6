"""Relative effective context length (RECL): how far back a model makes use of its context.

Dai et al., 2019, https://arxiv.org/abs/1901.02860, section 4.3 and appendix C. The effective context length of Khandelwal
et al. (2018) favours weak models, which gain from context what a better model knew without it; here a model's gain is
measured relative to the best of a group. With l_i(c, t) the loss of model i on token t given exactly its c preceding
tokens,

    b(c, t)   = min over the group of l_i(c, t)
    T         = the fraction r of the tokens with the largest b(c, .): those that are hard with a short context
    f_i(c, c') = mean over T of min(b(c, t), l_i(c', t))
    g         = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)

and the RECL of model i is the first c of c0, c0 + delta, c0 + 2 delta, ... with g < threshold at c' = c + delta.

Here are the functions on arrays; [`token_losses_with_context`] measures the losses of a model.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Losses = Mapping[str, Mapping[int, np.ndarray]]


@dataclass(frozen=True)
class RECL:
    """How far back a model makes use of its context, in tokens.

    Attributes:
        length: the RECL.
        longest: the longest context that was measured. A `length` of it means: at least.
        gains: g by context c, for all contexts but the longest.
        interval: bounds of the confidence interval, where blocks of the text were given.
    """

    length: int
    longest: int
    gains: dict[int, float]
    interval: tuple[int, int] | None = None

    @property
    def is_bound(self) -> bool:
        """Whether the gain never fell below the threshold: the RECL is `length` or more."""
        return self.length == self.longest


def relative_gain(shorter: np.ndarray, longer: np.ndarray, r: float = 0.1) -> np.ndarray:
    """g of each model when the context grows from c to c'.

    Args:
        shorter: losses at c `(models, tokens)`, nats.
        longer: losses of the same tokens at c' `(models, tokens)`, nats.
        r: fraction of the tokens that the gain is taken over, those that are hardest for the group at c.

    Returns:
        The share of perplexity that is gained `(models,)`.
    """
    best = shorter.min(axis=0)
    count = max(1, round(r * best.size))
    hardest = best >= np.partition(best, -count)[-count]  # all that are as hard as the last of them: none by chance
    best = best[hardest]
    # f(c, c) is the mean of b(c, .), which no model's own loss at c is below
    return -np.expm1(np.minimum(best, longer[:, hardest]).mean(axis=1) - best.mean())


def recl(
    losses: Losses,
    r: float = 0.1,
    c0: int | None = None,
    delta: int | None = None,
    threshold: float = 0.01,
    blocks: np.ndarray | None = None,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, RECL]:
    """The relative effective context length of each model of a group.

    Args:
        losses: by model, then by context length in tokens: nats of the same tokens `(tokens,)`.
        r: fraction of the tokens that gains are taken over, 0..1.
        c0: context to begin with, in tokens; the shortest in `losses` when not given.
        delta: tokens by which the context grows; the distance of the two shortest in `losses` when not given.
        threshold: gain below which more context counts as useless, a share of the perplexity.
        blocks: the block of the text that each token belongs to `(tokens,)`. With it, confidence intervals: percentiles
            of the RECL of texts that are drawn from the blocks, with replacement.
        resamples: texts to draw.
        confidence: share of them inside the interval.
        seed: of the draws.

    Raises:
        ValueError: a parameter is out of range, losses are missing, or arrays do not fit together.
    """
    check_parameters(r, threshold, resamples, confidence)
    contexts = _grid(losses, c0, delta)
    stacked = _stack(losses, contexts)
    gains = _gains(stacked, r)
    lengths = _first_below(gains, threshold, contexts)
    intervals: list[tuple[int, int] | None] = [None] * len(losses)
    if blocks is not None:
        drawn = _bootstrap(stacked, np.asarray(blocks), r, threshold, contexts, resamples, seed)
        bounds = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0, method="nearest")
        intervals = [(int(low), int(high)) for low, high in bounds.T]
    return {
        model: RECL(
            length=int(lengths[row]),
            longest=contexts[-1],
            gains=dict(zip(contexts[:-1], gains[row].tolist(), strict=True)),
            interval=intervals[row],
        )
        for row, model in enumerate(losses)
    }


def check_parameters(r: float, threshold: float, resamples: int = 1, confidence: float = 0.95) -> None:
    """Raise a `ValueError` where a parameter of [`recl`] is out of range."""
    for name, value in (("r", r), ("threshold", threshold), ("confidence", confidence)):
        if not 0 < value <= 1:
            raise ValueError(f"`{name}`={value} must be above 0 and at most 1.")
    if resamples < 1:
        raise ValueError(f"`resamples`={resamples} must be at least 1.")


def _grid(losses: Losses, c0: int | None, delta: int | None) -> list[int]:
    """c0, c0 + delta, ... as far as all models were measured."""
    if not losses:
        raise ValueError("`losses` is empty: give the losses of at least one model.")
    measured = sorted(set.intersection(*(set(by_context) for by_context in losses.values())))
    if len(measured) < 2:
        raise ValueError(f"`losses` has the contexts {measured} in common: at least two are needed to compare.")
    c0 = measured[0] if c0 is None else c0
    delta = measured[1] - measured[0] if delta is None else delta
    if delta < 1:
        raise ValueError(f"`delta`={delta} must be at least 1 token.")
    contexts = [c0]
    while contexts[-1] + delta in measured:
        contexts.append(contexts[-1] + delta)
    if c0 not in measured or len(contexts) < 2:
        raise ValueError(f"`c0`={c0} and `delta`={delta}: `losses` has {measured}, and needs both c0 and c0 + delta.")
    return contexts


def _stack(losses: Losses, contexts: list[int]) -> np.ndarray:
    """Losses `(models, contexts, tokens)`, float64."""
    arrays = {model: [np.asarray(by[context], np.float64) for context in contexts] for model, by in losses.items()}
    shapes = {array.shape for rows in arrays.values() for array in rows}
    if len(shapes) > 1 or len(next(iter(shapes))) != 1 or 0 in next(iter(shapes)):
        raise ValueError(f"`losses` has arrays of shapes {sorted(shapes)}: all must be (tokens,), of the same tokens.")
    for model, rows in arrays.items():
        if not all(np.isfinite(row).all() for row in rows):
            raise ValueError(f"`losses` of {model!r} has values that are not finite: leave out what was not measured.")
    return np.stack([np.stack(rows) for rows in arrays.values()])


def _gains(stacked: np.ndarray, r: float) -> np.ndarray:
    """g `(models, contexts - 1)` of losses `(models, contexts, tokens)`."""
    steps = range(stacked.shape[1] - 1)
    return np.stack([relative_gain(stacked[:, step], stacked[:, step + 1], r) for step in steps], axis=1)


def _first_below(gains: np.ndarray, threshold: float, contexts: list[int]) -> np.ndarray:
    """The first context `(models,)` whose gain is below the threshold, or the longest."""
    small = np.concatenate([gains < threshold, np.ones((len(gains), 1), dtype=bool)], axis=1)
    return np.asarray(contexts)[small.argmax(axis=1)]


def _bootstrap(
    stacked: np.ndarray, blocks: np.ndarray, r: float, threshold: float, contexts: list[int], resamples: int, seed: int
) -> np.ndarray:
    """The RECL of each model in texts drawn from the blocks, `(resamples, models)`."""
    if blocks.shape != stacked.shape[2:]:
        raise ValueError(
            f"`blocks` has shape {blocks.shape}: give the block of each of the {stacked.shape[2:]} tokens."
        )
    members = [np.flatnonzero(blocks == block) for block in np.unique(blocks)]
    if len(members) < 2:
        raise ValueError("`blocks` names a single block: intervals need at least two, better ten or more.")
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(resamples):
        tokens = np.concatenate([members[block] for block in generator.integers(len(members), size=len(members))])
        drawn.append(_first_below(_gains(stacked[:, :, tokens], r), threshold, contexts))
    return np.stack(drawn)


__all__ = ["RECL", "check_parameters", "recl", "relative_gain"]
