"""Intervals over seeds and modules, against draws one at a time and against what is known of them."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from bootstrap import interval


def test_the_mean_weighs_modules_by_their_bytes():
    found = interval(np.array([[1.0, 3.0], [2.0, 6.0]]), np.array([300, 100]))
    assert found.mean == pytest.approx((1.5 * 300 + 4.5 * 100) / 400)


def test_its_ends_are_those_of_draws_one_at_a_time():
    draw = np.random.default_rng(1)
    bits, weights = draw.normal(0.1, 0.2, (4, 7)), draw.integers(10, 90, 7)
    means = []
    for _ in range(20_000):
        seeds, modules = draw.integers(0, 4, 4), draw.integers(0, 7, 7)
        means.append(np.average(bits[seeds][:, modules].mean(0), weights=weights[modules]))
    found = interval(bits, weights, draws=20_000)
    np.testing.assert_allclose([found.low, found.high], np.quantile(means, [0.025, 0.975]), atol=0.004)


@pytest.mark.parametrize(("shift", "sign"), [(1.0, 1), (-1.0, -1), (0.0, 0)])
def test_it_decides_where_zero_lies_outside(shift, sign):
    draw = np.random.default_rng(2)
    bits = draw.normal(0, 0.3, (5, 40))
    assert interval(bits - bits.mean() + shift, np.ones(40)).sign == sign


def test_modules_and_seeds_that_agree_leave_no_width():
    found = interval(np.full((3, 5), 0.25), np.arange(1, 6))
    assert (found.low, found.mean, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert str(found) == "0.250 (0.250 to 0.250)"


def test_one_seed_gives_an_interval_over_modules():
    bits, weights = np.random.default_rng(3).normal(0, 1, (1, 30)), np.ones(30)
    one, twice = interval(bits, weights), interval(np.repeat(bits, 2, axis=0), weights)
    assert (one.low, one.high) == pytest.approx((twice.low, twice.high), abs=0.03)


@pytest.mark.parametrize(("bits", "weights"), [((0, 5), 5), ((3, 1), 1), ((3, 5), 4), ((5,), 5)])
def test_refusals(bits, weights):
    with pytest.raises(ValueError, match="with two modules at least"):
        interval(np.zeros(bits), np.ones(weights))
