"""Which settings of a model are tried, one after the other: its start of weights, its learning rate, its schedule.

    1. every start, at the first rate
    2. at the best start, the next higher rate, then higher ones while each is the best; where the first rate stays the
       best, the next lower rate, and so on: in the end the best rate stands between two that are worse
    3. the other starts again, at the best rate where that is not the first
    4. the other schedules, at the best of all these

Each model has the same number of trials at most.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from transformers_xl.runs.comparison_plan import Search


@dataclass(frozen=True)
class Setting:
    """What is chosen for a model: standard deviation that its weights start from, learning rate, schedule of the rate."""

    start: float
    rate: float
    schedule: str

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.start:.4g}-{self.rate:.4g}-{self.schedule}"


def best(tried: dict[Setting, float]) -> Setting:
    """The setting with the fewest bits per byte; infinite: the training diverged."""
    return min(tried, key=tried.__getitem__)


def edge(tried: Iterable[Setting], chosen: Setting) -> str:
    """`"highest"` or `"lowest"` where the rate that was chosen is that of several that were tried: its search ended before
    a worse one was met. Otherwise nothing."""
    rates = {each.rate for each in tried}
    if len(rates) == 1 or min(rates) < chosen.rate < max(rates):
        return ""
    return "highest" if chosen.rate == max(rates) else "lowest"


def next_trial(tried: dict[Setting, float], starts: list[float], search: Search) -> Setting | None:
    """The setting to try after those that were tried, with their bits per byte; None where the search is over."""
    if len(tried) >= search.trials:
        return None
    return next((each for each in _wanted(tried, starts, search) if each not in tried), None)


def _wanted(tried: dict[Setting, float], starts: list[float], search: Search) -> list[Setting]:
    """Settings in the order of their trials, as far as what was tried says; some were tried."""
    schedule = search.schedules[0]
    first = [Setting(start, search.rate, schedule) for start in starts]
    if any(each not in tried for each in first):
        return first
    start = min(first, key=tried.__getitem__).start
    rates = _next_rates({each.rate: bits for each, bits in tried.items() if _is_at(each, start, schedule)}, search)
    if rates:
        return [Setting(start, rate, schedule) for rate in rates]
    rate = best({each: bits for each, bits in tried.items() if _is_at(each, start, schedule)}).rate
    again = [Setting(each, rate, schedule) for each in starts]
    if any(each not in tried for each in again):
        return again
    chosen = best({each: bits for each, bits in tried.items() if each.schedule == schedule})
    return [Setting(chosen.start, chosen.rate, other) for other in search.schedules[1:]]


def _is_at(setting: Setting, start: float, schedule: str) -> bool:
    return (setting.start, setting.schedule) == (start, schedule)


def _next_rates(bits: dict[float, float], search: Search) -> list[float]:
    """The rate to try next, by those that were tried at one start; none where the best one stands between two others."""
    best_rate = min(bits, key=bits.__getitem__)
    if best_rate == max(bits):
        return [_rounded(best_rate * search.factor)]
    if best_rate == min(bits):
        return [_rounded(best_rate / search.factor)]
    return []


def _rounded(rate: float) -> float:
    """So that a rate which is reached from both sides is the same number."""
    return float(f"{rate:.6g}")


__all__ = ["Setting", "best", "edge", "next_trial"]
