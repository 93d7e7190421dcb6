"""Generated streams whose answers lie a known number of tokens back: what the memory probe reads.

A question is a token of the stream. Its answer is told once, `distance` tokens before it, and nowhere between: who does not
remember that token can only guess among the equally likely answers of the task.

- `registers`: "name=value" is one token; later stands "name?", and then the value. Up to eight facts at a time, each asked
  once. It is associative recall of many queries (Arora et al., 2023, https://arxiv.org/abs/2312.04927), with name and value
  in one token, so that no layer has to find what stood beside a name.
- `needle`: one name is asked for, again and again. Settings of seven others stand between as distractors. The stream never
  tells the answer.
- `copy`: random symbols, and now and then "d back?": the symbol that stands d tokens back. The stream never tells it.
- `counter`: a counter modulo 3 is set, stepped, and asked for. The stream never tells the answer: it follows from the
  setting and all steps since (state tracking: Merrill et al., 2024, https://arxiv.org/abs/2404.08819).
"""

import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

NO_ANSWER = -100  # where nothing is asked: the libraries' sign for a token without a target
NAMES, VALUES, NOISE = 8, 8, 16
MODULUS = 3
COPIED = (1, 2, 3, *(several << octave for octave in range(11) for several in (4, 5, 6)))  # distances: up to 6,144


class ProbeToken(NamedTuple):
    """A token of a stream; where it is a question, the token that answers it, and how many tokens back that was told."""

    token: int
    answer: int = NO_ANSWER
    distance: int = 0


Generator = Callable[[random.Random, int], Iterator[ProbeToken]]


@dataclass(frozen=True)
class ProbeTask:
    """An endless stream of questions.

    Attributes:
        name: that of the commands.
        vocab_size: number of token ids.
        num_answers: equally likely answers of a question.
        generate: makes a stream whose distances are 1 to a given number of tokens.
    """

    name: str
    vocab_size: int
    num_answers: int
    generate: Generator

    @property
    def chance(self) -> float:
        """Accuracy of a guess."""
        return 1 / self.num_answers


@dataclass(frozen=True)
class ProbeText:
    """Streams side by side.

    Attributes:
        tokens: token ids `(lanes, length)`.
        answers: the token that answers each, [`NO_ANSWER`] where nothing is asked `(lanes, length)`.
        distances: tokens from the question back to where its answer was told, 0 where nothing is asked `(lanes, length)`.
    """

    tokens: np.ndarray
    answers: np.ndarray
    distances: np.ndarray


def _log_uniform(rng: random.Random, largest: int) -> int:
    """1 to `largest`, of each order of magnitude as many."""
    return int(math.exp(rng.random() * math.log(largest + 1)))


def _asks(rng: random.Random, distance: int) -> bool:
    """Whether a fact is asked for so many tokens after it: about as often at each order of magnitude."""
    return rng.random() < 4 / (8 + distance)


def registers(rng: random.Random, max_distance: int) -> Iterator[ProbeToken]:
    """Ids: settings "name=value", questions "name?", values, noise. A name that is free is set again with probability 1/2 a
    token, if no question is due where its own would stand; the distance is drawn log-uniformly."""
    first_question, first_value = NAMES * VALUES, NAMES * VALUES + NAMES
    first_noise = first_value + VALUES
    free = deque(rng.sample(range(NAMES), NAMES))
    due: dict[int, tuple[int, int, int]] = {}  # by position of the question: its name and value, and where it was set
    position = 0
    while True:
        if position in due:
            name, value, set_at = due.pop(position)
            yield ProbeToken(first_question + name, first_value + value, position - set_at)
            yield ProbeToken(first_value + value)
            free.append(name)
            position += 2
            continue
        asked_at = position + _log_uniform(rng, max_distance)
        if free and rng.random() < 0.5 and due.keys().isdisjoint((asked_at - 1, asked_at, asked_at + 1)):
            name, value = free.popleft(), rng.randrange(VALUES)
            due[asked_at] = name, value, position
            yield ProbeToken(name * VALUES + value)
        else:
            yield ProbeToken(first_noise + rng.randrange(NOISE))
        position += 1


def needle(rng: random.Random, max_distance: int) -> Iterator[ProbeToken]:
    """Ids: settings "name=value", the question, values, noise; the first name is the needle."""
    question = NAMES * VALUES
    first_value, first_noise = question + 1, question + 1 + VALUES
    while True:
        value = rng.randrange(VALUES)
        yield ProbeToken(value)
        last = _log_uniform(rng, max_distance)
        for distance in range(1, last + 1):
            if distance == last or _asks(rng, distance):
                yield ProbeToken(question, first_value + value, distance)
            elif rng.random() < 0.5:
                yield ProbeToken(VALUES + rng.randrange((NAMES - 1) * VALUES))
            else:
                yield ProbeToken(first_noise + rng.randrange(NOISE))


def copy(rng: random.Random, max_distance: int) -> Iterator[ProbeToken]:
    """Ids: symbols, and a question for each of `COPIED` distances, of which those up to `max_distance` are asked."""
    distances = [distance for distance in COPIED if distance <= max_distance]
    told: deque[int | None] = deque(maxlen=distances[-1])  # the newest last; None: a question
    while True:
        known = [each for each in distances if each <= len(told) and told[-each] is not None]
        if known and rng.random() < 0.25:
            distance = rng.choice(known)
            symbol = cast(int, told[-distance])
            told.append(None)
            yield ProbeToken(VALUES + COPIED.index(distance), symbol, distance)
        else:
            told.append(rng.randrange(VALUES))
            yield ProbeToken(cast(int, told[-1]))


def counter(rng: random.Random, max_distance: int) -> Iterator[ProbeToken]:
    """Ids: settings, steps of +0 to +2, the question, values."""
    question = 2 * MODULUS
    while True:
        value = rng.randrange(MODULUS)
        yield ProbeToken(value)
        last = _log_uniform(rng, max_distance)
        for distance in range(1, last + 1):
            if distance == last or _asks(rng, distance):
                yield ProbeToken(question, question + 1 + value, distance)
            else:
                step = rng.randrange(MODULUS)
                value = (value + step) % MODULUS
                yield ProbeToken(MODULUS + step)


TASKS = {
    task.name: task
    for task in (
        ProbeTask("registers", NAMES * VALUES + NAMES + VALUES + NOISE, VALUES, registers),
        ProbeTask("needle", NAMES * VALUES + 1 + VALUES + NOISE, VALUES, needle),
        ProbeTask("copy", VALUES + len(COPIED), VALUES, copy),
        ProbeTask("counter", 3 * MODULUS + 1, MODULUS, counter),
    )
}


def find_task(name: str) -> ProbeTask:
    """The task of a name.

    Raises:
        ValueError: there is none.
    """
    if name not in TASKS:
        raise ValueError(f"`task`={name!r} is not a task of the probe: choose one of {', '.join(TASKS)}.")
    return TASKS[name]


def generate_text(task: ProbeTask, lanes: int, length: int, max_distance: int, seed: int) -> ProbeText:
    """The first `length` tokens of `lanes` streams, the same for the same seed.

    Raises:
        ValueError: a number is below 1.
    """
    for name, value in (("lanes", lanes), ("length", length), ("max_distance", max_distance)):
        if value < 1:
            raise ValueError(f"`{name}`={value} must be at least 1.")
    rows = [
        list(itertools.islice(task.generate(random.Random(f"{seed}-{lane}"), max_distance), length))
        for lane in range(lanes)
    ]
    return ProbeText(*np.array(rows, dtype=np.int64).transpose(2, 0, 1))


__all__ = [
    "COPIED",
    "NO_ANSWER",
    "TASKS",
    "ProbeTask",
    "ProbeText",
    "ProbeToken",
    "find_task",
    "generate_text",
]
