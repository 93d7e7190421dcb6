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
from itertools import chain, permutations
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
FACTORS = (1, 100, 1e3, 1e-3, 1e-6, 2.0**-20, 2.0**-30, 1 / math.log(2))  # %, ms, s, MB, MiB, GiB, bits
LONG = 30


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
            first = line + 1 + part[: len(part) - len(part.lstrip())].count("\n")
            yield Block(first, part, sources[-1][1], section, numbers_of(part))
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
    """What result files say: their numbers, and the mean, median and standard deviation of those that differ in a
    seed or in their place in a list. Of long lists (logs, curves) only these count."""

    def __init__(self, files: Iterable[str]):
        groups: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
        for name in files:
            path = ROOT / name
            for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
                inside = _leaves(
                    json.loads(file.read_text(encoding="utf-8")), (str(file.parent), _without_seed(file.stem))
                )
                for place, value in inside:
                    groups[place].append(value)
        short = (values for values in groups.values() if len(values) <= LONG)
        self.values = _scaled([*chain(*short), *chain(*map(_sums, groups.values()))])
        named = defaultdict(set)
        for place, values in groups.items():
            named[place[-1]].add(statistics.mean(values))
        self.pairs = np.sort([pair for means in named.values() if len(means) <= LONG for pair in _pairs(means)])

    def explains(self, number: str, shown: Iterable[str] = ()) -> bool:
        """Whether a number is one of these, rounded; or, if it has at most two digits, a difference or ratio of two that
        are `shown`, or of two means in the files that go by one name. With more digits some two of many would differ by
        any number."""
        value, half = _value(number), _half_a_digit(number)
        if _holds(self.values, value, half):
            return True
        if len(number.partition("e")[0].replace(",", "").replace(".", "").lstrip("0")) > 2:
            return False
        beside = np.sort([*_pairs({_value(other) for other in shown})])
        return any(_holds(numbers, value, half) for numbers in (beside, 100 * beside, self.pairs))


def _leaves(value: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Numbers and where they stand. An entry of a list goes by the names in it, not by its index or seed."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from _leaves(inside, (*place, _without_seed(key)))
    elif isinstance(value, list):
        for inside in value:
            yield from _leaves(inside, (*place[:-1], *_names_in(inside), place[-1]))
    elif isinstance(value, str):
        for number in re.findall(NUMBER, value) if len(value) < 300 else ():
            yield (*place, value), _value(number)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield place, float(value)


def _names_in(value: Any) -> list[str]:
    """What an entry of a list is called: its words, and the step of a training that it is about."""
    inside = value.items() if isinstance(value, dict) else ()
    return [str(each) for name, each in inside if isinstance(each, str) or name == "step"]


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


def _scaled(values: list[float]) -> np.ndarray:
    found = np.unique(values)
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
