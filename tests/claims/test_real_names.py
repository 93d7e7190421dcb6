"""New names at their second use: which they are, and what their bytes cost."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_config

from transformers_xl import TransformerXLForCausalLM
from transformers_xl.evaluation.document_losses import document_losses

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
def models():
    """One seed each; modules with names at the first distance: five of six, at the second one."""
    names = {"16-32": [[30.0, 10], [0.0, 0], *[[8.0, 4]] * 4], "32-64": [[1.0, 1], *[[0.0, 0]] * 5]}
    own = {"16-32": [[10.0, 10], [0.0, 0], *[[4.0, 4]] * 4], "32-64": [[1.0, 1], *[[0.0, 0]] * 5]}
    rest = {"segment_length": 8}
    return {"without": [{"names": names, "mem_len": 0} | rest], "with": [{"names": own, "mem_len": 64} | rest]}


def test_what_is_saved_weighs_modules_by_the_bytes_of_their_names(models):
    ((distance, row),) = bench.saved(models, "without", "with").items()  # at 32 to 64 there are too few modules
    assert (distance, row["modules"], row["bytes"]) == ("16-32", 5, 26)
    assert row["mean"] == pytest.approx(36 / 26, abs=1e-4)
    assert 1 <= row["low"] < row["mean"] < row["high"] <= 2


def test_what_is_saved_is_the_mean_of_the_seeds(models):
    (first,) = models["with"]
    halved = {distance: [[bits / 2, count] for bits, count in rows] for distance, rows in first["names"].items()}
    models["with"].append(first | {"names": halved})
    assert bench.saved(models, "without", "with")["16-32"]["mean"] == pytest.approx((36 + 13 / 2) / 26, abs=1e-4)


def test_the_picture(models, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "PICTURE", tmp_path / "names.png")
    bench.draw({"twin": "without", "models": models, "saved": {"with": bench.saved(models, "without", "with")}})
    assert (tmp_path / "names.png").stat().st_size > 5_000


def test_a_model_without_memory_reads_a_window_that_ends_with_each_name():
    """Those of the first segment, and all other bytes, are read in segments."""
    config = tiny_config(
        "transformer_xl", vocab_size=259, mem_len=0, same_length=False, segment_length=8, initializer_range=0.4
    )
    torch.manual_seed(0)
    model = TransformerXLForCausalLM(config).eval()
    ids = np.frombuffer(MODULE, np.uint8).astype(np.int64)
    (nats,) = bench.byte_losses(model, [ids], [[bench.Use(5, 2, 3), bench.Use(20, 3, 9)]], 1)
    (plain,) = document_losses(model, [ids])
    with torch.no_grad():
        logits = model(torch.from_numpy(ids[None, 14:22])).logits[0, -3:]
    by_hand = -logits.log_softmax(-1)[range(3), ids[20:23]].numpy()
    np.testing.assert_allclose(nats[20:23], by_hand, rtol=1e-5)
    others = [place for place in range(1, len(ids)) if place not in range(20, 23)]
    assert np.array_equal(nats[others], plain[others])
    assert not np.allclose(nats[20:23], plain[20:23])


def test_seeds_of_a_model_are_found_by_its_name(tmp_path):
    for name in ("twin-0", "memory_512-1", "memory_512-0"):
        (tmp_path / name).mkdir()
    found = {name: [path.name for path in paths] for name, paths in bench.by_name(tmp_path).items()}
    assert found == {"memory_512": ["memory_512-0", "memory_512-1"], "twin": ["twin-0"]}
