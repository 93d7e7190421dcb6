"""Measured numbers in documents, and the sources that stand beside them.

A source is a comment. It holds for what follows it, up to the next source or to the end of its section:

    <!-- source: benchmarks/results/atlas.json
         command: python benchmarks/bench_atlas.py
         given: 0.02
         worked out: 0.31 -->

`source` names result files, or folders of them, or says that nothing here was measured: `paper` (figures that others
report) or `settings` (sizes, defaults, versions, limits, and what follows from them by arithmetic). `command` made the
files, or shows the numbers again from them; more than one are separated by semicolons. `given` lists numbers in between
that are settings or others' figures, `worked out` those that follow from the files in a way that `Known` does not know.
"""

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
NOT_MEASURED = {"paper", "settings"}
COMMENT = re.compile(r"<!--(.*?)-->", flags=re.DOTALL)
FIELD = re.compile(r"^\s*(source|command|given|worked out):", flags=re.MULTILINE)
UNIT = (
    r"(?:%|[mu]?s\b|seconds?\b|minutes?\b|hours?\b|bits?\b|nats?\b|times\b|[KMG]i?B\b|perplexity\b|BLEU\b|GFLOP/s"
    r"|(?:tokens|bytes|steps) (?:a|per) second\b|(?:tokens|steps)/s\b)"
)
NUMBER = r"(?<![\w.,^/-])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w^]|\.\d|,\d)"
MEASURED = re.compile(rf"(?<![\w.,^/-])(\d[\d,]*\.\d+(?:e[+-]?\d+)?)(?!\.\d)|({NUMBER})(?=[ -]?{UNIT})")
VERSION = re.compile(
    r"(?:Python|torch|transformers|Triton|ptxas of Triton|peft|trl|Apache-|gymnasium|YAML|MambaNet)[ -]?\d[\d.]*(?:x\b)?"
    r"|\d+\.\d+\.\d+|(?:sections?|tables?|appendix|figures?|equations?|issue|family|model) \d[\d.]*(?:(?:,| and) \d[\d.]*)*"
)
SPANS = re.compile(r"`[^`]*`|(?<=\])\([^)]*\)|<?https?://\S+")  # code, link targets, addresses
CELL = re.compile(r"[*~<=>+\-\s]*\d.*")
FACTORS = (1, 100, 1e3, 1e-3, 1e6, 1e-6, 2.0**-10, 2.0**-20, 2.0**-30, 1 / math.log(2))


@dataclass(frozen=True)
class Source:
    """Of a comment: its files, commands, and numbers that are not looked for in them."""

    files: tuple[str, ...]
    commands: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    worked_out: frozenset[str] = frozenset()

    @property
    def is_measured(self) -> bool:
        return not NOT_MEASURED & set(self.files)


@dataclass
class Block:
    """Lines of a page without a blank line between them, from `line` on; `section` counts the headings before."""

    line: int
    text: str
    source: Source | None
    section: int
    numbers: list[str] = field(default_factory=list)


def read_source(comment: str) -> Source | None:
    """Of the inside of a comment; None where it is another one."""
    parts = FIELD.split(comment)[1:]
    found = dict(zip(parts[::2], (" ".join(part.split()) for part in parts[1::2]), strict=True))
    if "source" not in found:
        return None
    given, worked_out = (frozenset(found.get(name, "").split()) for name in ("given", "worked out"))
    commands = tuple(part.strip() for part in found.get("command", "").split(";") if part.strip())
    return Source(tuple(found["source"].replace(",", " ").split()), commands, given, worked_out)


def blocks_of(page: str) -> Iterator[Block]:
    """The blocks of a page outside of code, each with the source that holds for it."""
    hidden = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), page, flags=re.DOTALL | re.MULTILINE)
    sources: list[tuple[int, Source | None]] = [(0, None)]  # of each open section: its level, and what holds in it
    section = line = 0
    for part in re.split(r"(<!--.*?-->|^[ \t]*$|^#+ [^\n]*$)", hidden, flags=re.DOTALL | re.MULTILINE):
        if part.startswith("<!--"):
            source = read_source(part[4:-3])
            if source is not None:
                sources[-1] = (sources[-1][0], source)
        elif heading := re.match(r"(#+) ", part):
            level = len(heading[1])
            while len(sources) > 1 and sources[-1][0] >= level:
                sources.pop()
            sources.append((level, sources[-1][1]))
            section += 1
        elif part.strip():
            yield Block(line + 1, part, sources[-1][1], section, numbers_of(part))
        line += part.count("\n")


def numbers_of(text: str) -> list[str]:
    """The measured numbers of a block, as they are written: in tables all that stand in cells of numbers, elsewhere decimal
    numbers, and whole ones before a unit."""
    text = VERSION.sub("version", SPANS.sub("code", text))
    rows = [line.strip() for line in text.strip().splitlines()]
    if len(rows) > 2 and re.fullmatch(r"\|[-:| ]+\|", rows[1]):
        return [number for row in rows[2:] for cell in row.strip("|").split("|")[1:] for number in _of_cell(cell)]
    return _of_prose(text)


def _of_cell(cell: str) -> list[str]:
    return [number.rstrip(",") for number in re.findall(NUMBER, cell)] if CELL.fullmatch(cell) else _of_prose(cell)


def _of_prose(text: str) -> list[str]:
    return [(match[1] or match[2]).rstrip(",") for match in MEASURED.finditer(text)]


@cache
def known_of(files: tuple[str, ...]) -> "Known":
    return Known(files)


class Known:
    """What result files say: their numbers; mean, median, range and standard deviation of those that differ in a seed or
    in their place in a list; differences and ratios of such means where they go by one name."""

    def __init__(self, files: Iterable[str]):
        groups: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
        for name in files:
            path = ROOT / name
            for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
                inside = _leaves(json.loads(file.read_text(encoding="utf-8")), (_without_seed(file.stem),))
                for place, value in inside:
                    groups[place].append(value)
        self.values = _scaled(value for values in groups.values() for value in [*values, *_sums(values)])
        named = defaultdict(set)
        for place, values in groups.items():
            named[place[-1]] |= {round(statistics.mean(values), 9), *(values if len(values) <= 5 else ())}
        self.pairs = _scaled(pair for values in named.values() if len(values) <= 200 for pair in _pairs(values))

    def explains(self, number: str, shown: Iterable[str] = ()) -> bool:
        """Whether a number is one of these, rounded; or a difference or ratio of two, or of two that are `shown`."""
        value, half = _value(number), _half_a_digit(number)
        beside = np.sort([*_pairs({_value(other) for other in shown})])
        scaled = np.sort(np.concatenate([beside, beside * 100]))
        return any(_holds(numbers, value, half) for numbers in (self.values, self.pairs, scaled))


def _leaves(value: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Numbers and where they stand. An entry of a list goes by the names in it, not by its index or seed."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from _leaves(inside, (*place, _without_seed(key)))
    elif isinstance(value, list):
        for inside in value:
            names = [each for each in inside.values() if isinstance(each, str)] if isinstance(inside, dict) else []
            yield from _leaves(inside, (*place[:-1], *names, place[-1]))
    elif isinstance(value, str):
        for number in re.findall(NUMBER, value) if len(value) < 300 else ():
            yield (*place, value), _value(number)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield place, float(value)


def _without_seed(name: str) -> str:
    return re.sub(r"[- ]\d$", "", name)


def _sums(values: list[float]) -> list[float]:
    """What a table shows of several seeds."""
    if len(values) < 2:
        return []
    return [statistics.mean(values), statistics.median(values), statistics.stdev(values), float(len(values))]


def _pairs(values: Iterable[float]) -> Iterator[float]:
    """Differences, ratios, and how much more one is than the other."""
    for one, other in permutations(values, 2):
        yield from (one - other, *((one / other, one / other - 1) if other else ()))


def _scaled(values: Iterable[float]) -> np.ndarray:
    found = np.unique(np.fromiter(values, dtype=float))
    return np.sort(np.concatenate([found * factor for factor in FACTORS]))


def _holds(numbers: np.ndarray, value: float, half: float) -> bool:
    place = np.searchsorted(numbers, value - half)
    return bool(place < len(numbers) and numbers[place] <= value + half)


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _half_a_digit(number: str) -> float:
    """Half of the unit of its last digit; zeros at the end of a whole number may be rounded ones."""
    digits, _, exponent = number.replace(",", "").partition("e")
    whole, _, decimals = digits.partition(".")
    zeros = len(whole) - len(whole.rstrip("0")) if not decimals and len(whole) > 2 else 0
    return 0.5000001 * 10.0 ** (zeros - len(decimals) + int(exponent or 0))
