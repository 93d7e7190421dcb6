"""The streams of the memory probe, read again by programs that know their grammar and nothing of how they are made."""

import numpy as np
import pytest

from transformers_xl.evaluation.probe_tasks import COPIED, NO_ANSWER, TASKS, find_task, generate_text

LENGTH, MOST = 6000, 32


def read_registers(tokens: list[int]) -> list[tuple[int, int]]:
    """Answer and distance at each position, (NO_ANSWER, 0) where nothing is asked."""
    set_at: dict[int, int] = {}
    found = []
    for position, token in enumerate(tokens):
        if token < 64:  # name=value
            set_at[token // 8] = position
        name = token - 64
        if 0 <= name < 8:
            found.append((72 + tokens[set_at[name]] % 8, position - set_at.pop(name)))
        else:
            found.append((NO_ANSWER, 0))
    return found


def read_needle(tokens: list[int]) -> list[tuple[int, int]]:
    told = 0
    found = []
    for position, token in enumerate(tokens):
        told = position if token < 8 else told
        found.append((65 + tokens[told], position - told) if token == 64 else (NO_ANSWER, 0))
    return found


def read_counter(tokens: list[int]) -> list[tuple[int, int]]:
    told = 0
    found = []
    for position, token in enumerate(tokens):
        told = position if token < 3 else told
        steps = [each - 3 for each in tokens[told + 1 : position] if each < 6]
        value = (tokens[told] + sum(steps)) % 3
        found.append((7 + value, position - told) if token == 6 else (NO_ANSWER, 0))
    return found


def read_copy(tokens: list[int]) -> list[tuple[int, int]]:
    """Questions, from 8 on, ask for 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, ... tokens back."""
    distances = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32]
    found = []
    for position, token in enumerate(tokens):
        distance = distances[token - 8] if token >= 8 else 0
        found.append((tokens[position - distance], distance) if distance else (NO_ANSWER, 0))
    return found


READERS = {"registers": read_registers, "needle": read_needle, "copy": read_copy, "counter": read_counter}


@pytest.mark.parametrize("name", TASKS)
def test_a_naive_reader_finds_the_answers_and_their_distances(name: str):
    task = find_task(name)
    text = generate_text(task, 2, LENGTH, MOST, seed=0)
    assert text.tokens.min() >= 0
    assert max(text.tokens.max(), text.answers.max()) == (20 if name == "copy" else task.vocab_size - 1)
    for tokens, answers, distances in zip(text.tokens, text.answers, text.distances, strict=True):
        assert READERS[name](tokens.tolist()) == list(zip(answers.tolist(), distances.tolist(), strict=True))
    asked = text.answers != NO_ANSWER
    every = {each for each in COPIED if each <= MOST} if name == "copy" else set(range(1, MOST + 1))
    assert set(text.distances[asked]) == every
    assert 0.05 < asked.mean() < 0.35


@pytest.mark.parametrize("name", TASKS)
def test_nothing_nearer_tells_the_answer(name: str):
    """Where the stream tells answers (registers), the token behind a question is one; elsewhere it is none, but for the
    random symbols of `copy`. Each of the equally likely values is as frequent as the others, at every distance."""
    task = find_task(name)
    text = generate_text(task, 4, LENGTH, MOST, seed=1)
    asked = text.answers != NO_ANSWER
    values = text.answers[asked] - text.answers[asked].min()
    for near in (True, False):
        here = values[(text.distances[asked] <= 8) == near]
        counts = np.bincount(here, minlength=task.num_answers)
        assert len(counts) == task.num_answers
        assert np.abs(counts / len(here) - task.chance).max() < 5 * (task.chance / len(here)) ** 0.5
    told = text.answers[:, :-1][asked[:, :-1]] == text.tokens[:, 1:][asked[:, :-1]]
    if name == "copy":
        assert (
            abs(told.mean() - 0.75 * task.chance) < 5 * (task.chance / len(told)) ** 0.5
        )  # 3 of 4 tokens are symbols
    else:
        assert told.all() if name == "registers" else not told.any()


def test_a_setting_is_asked_once():
    """Else its first answer would tell the second, nearer than the setting."""
    tokens = generate_text(TASKS["registers"], 1, LENGTH, MOST, seed=2).tokens[0].tolist()
    for name in range(8):
        kinds = ["set" if token < 64 else "ask" for token in tokens if token // 8 == name or token == 64 + name]
        assert kinds[::2] == ["set"] * len(kinds[::2])
        assert kinds[1::2] == ["ask"] * len(kinds[1::2])


def test_streams_are_those_of_their_seed():
    task = TASKS["counter"]
    first, again, other = (generate_text(task, 2, 100, 16, seed).tokens for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()
    assert (first[0] != first[1]).any()
    for most in (1, 2, 3):  # few places for a question
        assert generate_text(TASKS["registers"], 1, 500, most, 0).distances.max() == most


@pytest.mark.parametrize(
    ("field", "fields"), [("lanes", (0, 5, 5)), ("length", (1, 0, 5)), ("max_distance", (1, 5, 0))]
)
def test_numbers_below_one_are_refused(field: str, fields: tuple[int, int, int]):
    with pytest.raises(ValueError, match=f"`{field}`=0"):
        generate_text(TASKS["needle"], *fields, seed=0)


def test_an_unknown_task_is_refused():
    with pytest.raises(ValueError, match="`task`='recall'.*registers, needle, copy, counter"):
        find_task("recall")
