"""Which settings are tried, on losses that are known."""

import math

import pytest

from transformers_xl.runs.comparison_plan import Search
from transformers_xl.runs.comparison_search import Setting, best, edge, next_trial

STARTS = [0.05, 0.02]


def search(bits, trials: int = 20, schedules: tuple = ("constant",), starts: list[float] = STARTS):
    """All trials in their order, and what is chosen, where `bits(start, rate, schedule)` are the losses."""
    options = Search(trials=trials, rate=2e-3, schedules=list(schedules))
    tried: dict[Setting, float] = {}
    while (setting := next_trial(tried, starts, options)) is not None:
        assert setting not in tried
        tried[setting] = bits(setting.start, setting.rate, setting.schedule)
    return [(each.start, each.rate, each.schedule) for each in tried], best(tried)


def away_from(best_rate: float, best_start: float = 0.05):
    """Losses that grow with the distance from the best rate, in octaves, and from the best start."""
    return lambda start, rate, schedule: abs(math.log2(rate / best_rate)) + 5 * abs(start - best_start)


@pytest.mark.parametrize("best_rate", [2e-3, 4e-3, 16e-3, 1e-3, 0.25e-3])
@pytest.mark.parametrize("best_start", STARTS)
def test_the_best_rate_and_start_are_found(best_rate: float, best_start: float):
    trials, chosen = search(away_from(best_rate, best_start))
    assert (chosen.start, chosen.rate) == (best_start, best_rate)
    rates = [rate for start, rate, _ in trials if start == best_start]
    assert min(rates) < best_rate < max(rates)  # between two that are worse


def test_the_order_of_trials():
    trials, _ = search(away_from(4e-3, 0.02), schedules=("constant", "cosine"))
    assert trials == [
        (0.05, 2e-3, "constant"),
        (0.02, 2e-3, "constant"),
        (0.02, 4e-3, "constant"),
        (0.02, 8e-3, "constant"),
        (0.05, 4e-3, "constant"),
        (0.02, 4e-3, "cosine"),
    ]


def test_a_start_that_is_better_at_the_best_rate_is_taken():
    """At the first rate the other one was better."""

    def bits(start: float, rate: float, schedule: str) -> float:
        return away_from(4e-3)(start, rate, schedule) + (0.5 if start == 0.05 and rate == 2e-3 else 0)

    trials, chosen = search(bits)
    assert trials[2][0] == 0.02
    assert (chosen.start, chosen.rate) == (0.05, 4e-3)


def test_a_schedule_is_taken_where_it_is_better():
    for gain, expected in ((0.1, "linear"), (-0.1, "constant")):
        _, chosen = search(
            lambda start, rate, schedule, gain=gain: away_from(2e-3)(start, rate, "") - gain * (schedule == "linear"),
            schedules=("constant", "cosine", "linear"),
        )
        assert chosen.schedule == expected


def test_the_budget_ends_a_search():
    trials, chosen = search(away_from(64e-3), trials=4)
    assert [rate for _, rate, _ in trials] == [2e-3, 2e-3, 4e-3, 8e-3]
    assert chosen.rate == 8e-3


def test_a_training_that_diverges_is_worse_than_any():
    trials, chosen = search(lambda start, rate, schedule: math.inf if rate > 1e-3 else rate)
    assert chosen.rate < 1e-3 or math.isfinite(chosen.rate)
    assert (0.05, 1e-3, "constant") in trials
    assert chosen.rate <= 1e-3


def test_one_start_is_enough():
    trials, chosen = search(away_from(2e-3), starts=[0.05])
    assert [rate for _, rate, _ in trials] == [2e-3, 4e-3, 1e-3]
    assert chosen.name == "0.05-0.002-constant"


@pytest.mark.parametrize(
    ("rates", "chosen", "expected"),
    [
        ([2e-3, 4e-3, 8e-3], 4e-3, ""),
        ([2e-3, 4e-3, 8e-3], 8e-3, "highest"),
        ([2e-3, 1e-3], 1e-3, "lowest"),
        ([2e-3], 2e-3, ""),  # nothing was searched
    ],
)
def test_a_search_that_ended_at_an_edge(rates: list[float], chosen: float, expected: str):
    tried = [Setting(0.05, rate, "constant") for rate in rates]
    assert edge(tried, Setting(0.02, chosen, "cosine")) == expected
