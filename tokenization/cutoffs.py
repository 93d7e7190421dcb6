"""Where to cut a vocabulary into clusters for an adaptive softmax.

Grave et al., 2017, "Efficient softmax approximation for GPUs", https://arxiv.org/abs/1609.04309, section 4: frequent words
stand in the head, which is computed for every token; rare ones in tails, each computed only for the tokens that it holds.
"""

from collections.abc import Sequence

import numpy as np

_MOST_CANDIDATES = 1000


def cheapest_cutoffs(counts: Sequence[int], num_clusters: int, div_val: int = 1) -> list[int]:
    """The cutoffs with the least expected cost of the output layer.

    The cost of a token is the number of products of its vector with a row of weights, in units of the head's width:

        cost = size_0 + tails + sum over tails i of share_i * size_i / div_val ** i

    where `share_i` is the share of the corpus that tail i holds. That is the paper's cost of matrix products without the
    constant for small ones, which depends on the machine. Found by dynamic programming over all places, or over 1000 in
    geometric progression where the vocabulary is larger than that.

    Args:
        counts: how often each id occurs, in the order of the ids.
        num_clusters: the head and the tails.
        div_val: every tail is narrower than the one before by this factor.

    Returns:
        The ends of all clusters but the last, `num_clusters - 1` ids.

    Raises:
        ValueError: there are fewer words than clusters, nothing was counted, or `div_val` is below 1.
    """
    size = len(counts)
    if not 1 <= num_clusters <= size:
        raise ValueError(f"`num_clusters`={num_clusters} must lie between 1 and the {size} words of the vocabulary.")
    if div_val < 1:
        raise ValueError(f"`div_val`={div_val} must be 1 or more.")
    below = np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.float64))])
    if below[-1] <= 0:
        raise ValueError("`counts` are all 0: count the words of a text first.")
    ends = np.arange(1, size + 1)
    if size > _MOST_CANDIDATES:
        spread = np.geomspace(1, size, _MOST_CANDIDATES).round().astype(np.int64)
        ends = np.unique(np.concatenate([ends[:num_clusters], spread, ends[-num_clusters:]]))
    share = below[ends] / below[-1]
    # cost of one more tail, from ends[row] to ends[column]
    tail = (share[None, :] - share[:, None]) * (ends[None, :] - ends[:, None]) + 1.0
    tail[np.tril_indices(len(ends))] = np.inf
    cost, chosen = ends.astype(np.float64), []
    for index in range(1, num_clusters):
        costs = cost[:, None] + (tail - 1.0) / div_val**index + 1.0
        chosen.append(costs.argmin(axis=0))
        cost = costs.min(axis=0)
    place, cutoffs = len(ends) - 1, []
    for previous in reversed(chosen):
        place = int(previous[place])
        cutoffs.append(int(ends[place]))
    return cutoffs[::-1]


__all__ = ["cheapest_cutoffs"]
