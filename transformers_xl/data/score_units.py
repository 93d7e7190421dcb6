"""The units in which training and evaluation score a text: what its nats are per token, byte, character or word."""

import math


def bits_per(nats: float, count: int) -> float:
    """nats / ln 2 / count: of bytes, or of characters."""
    return nats / math.log(2) / count


def perplexity(nats: float, count: int) -> float:
    """exp(nats / count), of tokens or of words; infinite where it is no float."""
    try:
        return math.exp(nats / count)
    except OverflowError:
        return math.inf


__all__ = ["bits_per", "perplexity"]
