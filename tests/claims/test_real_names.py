"""New names at their second use: which they are, and what their bytes cost."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import real_names as bench

MODULE = b"alpha beta abc alpha abc gamma_1 beta alpha (gamma_1) alphabet"


def test_uses_are_the_second_ones_of_names_that_training_never_had():
    uses = bench.second_uses(MODULE, b"some betas, here")
    assert [MODULE[use.start :][: use.length] for use in uses] == [b"alpha", b"gamma_1"]
    assert [use.distance for use in uses] == [15, 20]
    assert [MODULE[use.start - use.distance :][: use.length] for use in uses] == [b"alpha", b"gamma_1"]


def test_bits_are_those_of_the_bytes_of_a_name_at_its_distance():
    nats = np.log(2) * np.arange(len(MODULE))
    uses = bench.second_uses(MODULE, b"alpha")
    found = bench.name_bits([nats, nats], [uses, uses[:0]])
    beta, gamma = (MODULE.rindex(name) for name in (b"beta", b"gamma_1"))
    expected = sum(range(beta, beta + 4)) + sum(range(gamma, gamma + 7))
    assert found["16-32"] == [[pytest.approx(expected), 11], [0, 0]]
    assert all(rows == [[0, 0], [0, 0]] for distance, rows in found.items() if distance != "16-32")


@pytest.fixture
def result():
    names = {"16-32": [[30.0, 10], [0.0, 0], *[[8.0, 4]] * 4], "32-64": [[1.0, 1], *[[0.0, 0]] * 5]}
    own = {"16-32": [[10.0, 10], [0.0, 0], *[[4.0, 4]] * 4], "32-64": [[1.0, 1], *[[0.0, 0]] * 5]}
    models = {"without": {"names": names}, "with": {"names": own, "mem_len": 64}}
    return {"twin": "without", "models": models}


def test_what_is_saved_weighs_modules_by_the_bytes_of_their_names(result):
    ((distance, modules, found),) = bench.saved(result, "with")  # at 32 to 64 there are too few modules
    assert (distance, modules) == ("16-32", 5)
    assert found.mean == pytest.approx(36 / 26)
    assert 1 <= found.low < found.mean < found.high <= 2


def test_the_picture(result, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "RESULT", tmp_path / "names.json")
    bench.draw(result)
    assert (tmp_path / "names.png").stat().st_size > 5_000
