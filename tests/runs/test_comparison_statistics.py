"""Differences between models, and their intervals: against loops, and on models whose difference is known."""

import numpy as np
import pytest

from transformers_xl.runs.comparison_statistics import Interval, bits_after, difference, interval

DOCUMENTS = 12


def models(gap: float, seeds: int = 3, noise: float = 0.02, documents: int = DOCUMENTS) -> tuple[np.ndarray, ...]:
    """Bits of two models that differ by `gap` a byte: documents differ by far more than models do."""
    random = np.random.default_rng(1)
    num_bytes = random.integers(500, 2000, documents)
    hard = random.normal(2.3, 0.5, documents)
    found = [hard + shift + noise * random.standard_normal((seeds, 1)) for shift in (gap, 0.0)]
    return *(each * num_bytes for each in found), num_bytes


def test_against_a_loop():
    """Quantiles of draws that are made one by one, by other random numbers."""
    one, other, num_bytes = models(0.05)
    random, draws = np.random.default_rng(7), []
    for _ in range(4000):
        chosen, sums = random.integers(DOCUMENTS, size=DOCUMENTS), []
        for found in (one, other):
            stretched = found.mean(0) + (found - found.mean(0)) * np.sqrt(3 / 2)
            sums.append(np.mean([stretched[seed][chosen].sum() for seed in random.integers(3, size=3)]))
        draws.append((sums[0] - sums[1]) / num_bytes[chosen].sum())
    found = difference(one, other, num_bytes)
    low, high = np.quantile(draws, [0.025, 0.975])
    assert found.mean == pytest.approx((one.mean(0).sum() - other.mean(0).sum()) / num_bytes.sum())
    assert found.low == pytest.approx(low, abs=2e-3)
    assert found.high == pytest.approx(high, abs=2e-3)
    assert found == difference(one, other, num_bytes)  # always the same draws


def test_documents_are_paired():
    """The models read the same ones: how hard those are is in no interval."""
    one, other, num_bytes = models(0.01, noise=0.0)
    found = difference(one, other, num_bytes)
    assert (found.low, found.high) == (pytest.approx(0.01), pytest.approx(0.01))
    shuffled = difference(one, other[:, ::-1] * 1.0, num_bytes)
    assert shuffled.high - shuffled.low > 0.1


def test_verdicts():
    assert difference(*models(0.2)).verdict == "worse"
    assert difference(*models(-0.2)).verdict == "better"
    assert difference(*models(0.0, noise=0.1)).verdict == "out of reach here"
    assert difference(*models(0.2, seeds=1)).verdict == "out of reach here"  # no spread is known
    assert Interval(0.1, 0.0, 0.2).verdict == "out of reach here"


def test_more_noise_is_a_wider_interval():
    narrow, wide = (difference(*models(0.0, noise=noise)) for noise in (0.01, 0.1))
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_a_sum_of_more_than_two_models():
    """What one part adds, less what another adds; each model with seeds of its own."""
    one, other, num_bytes = models(0.05, noise=0.0)
    found = interval([one, -other, -2 * one[:2], 2 * other], num_bytes)
    assert (found.mean, found.low, found.high) == pytest.approx((-0.05, -0.05, -0.05))
    assert str(found) == "-0.050 (-0.050 to -0.050)"
    assert found.sign == -1


def test_one_seed_gives_an_interval_over_documents_which_decides_nothing():
    bits, num_bytes = np.random.default_rng(3).normal(9, 1, (1, 30)), np.ones(30)
    one, twice = interval([bits], num_bytes), interval([np.repeat(bits, 2, axis=0)], num_bytes)
    assert (one.low, one.high) == pytest.approx((twice.low, twice.high), abs=0.03)
    assert one.low < one.mean < one.high
    assert (one.sign, twice.sign) == (0, 1)


@pytest.mark.parametrize(("bits", "num_bytes"), [((0, 5), 5), ((3, 1), 1), ((3, 5), 4), ((5,), 5)])
def test_refusals(bits, num_bytes):
    with pytest.raises(ValueError, match="with two documents at least"):
        interval([np.zeros(bits)], np.ones(num_bytes))


def test_between_two_points():
    curve = {100: np.array([[3.0, 2.0]]), 400: np.array([[2.0, 1.0]])}
    assert bits_after(curve, 99) is None
    assert bits_after(curve, 401) is None
    assert bits_after(curve, 100).tolist() == [[3.0, 2.0]]
    assert bits_after(curve, 400).tolist() == [[2.0, 1.0]]
    assert bits_after(curve, 200) == pytest.approx(np.array([[2.5, 1.5]]))  # the middle of their logarithms
