"""The claims: each runs at toy size, resumes, and draws; docs/claims.md says what the results say."""

import importlib
import json
import re
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch
from optional_packages import needs

from transformers_xl.evaluation.bits_per_byte import bits_per_byte
from transformers_xl.runs import fitting

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks/claims"
sys.path += [str(FOLDER), str(FOLDER.parent)]

import bench_probe  # noqa: E402
import claim_runs  # noqa: E402
import split_runs  # noqa: E402
import translation_runs  # noqa: E402
import write_claims  # noqa: E402
from complex_order_classification import reviews  # noqa: E402
from run_all import ORDER  # noqa: E402

SAME_CODE = {"recurrence_on_sources"}  # as another


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A text, and a folder of models: claims share them."""
    folder = tmp_path_factory.mktemp("claims")
    text = "\n".join(topics[name] for name in sorted(topics))
    (folder / "text.txt").write_text(text[:40_000], encoding="utf-8")
    library = folder / "library"
    library.mkdir()
    for part, start, stop in (("train", 0, 6), ("valid", 6, 9), ("test", 9, 12)):
        rows = [json.dumps({"name": f"{row}.py", "text": text[3000 * row :][:3000]}) for row in range(start, stop)]
        (library / f"{part}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    write_pairs(folder / "pairs")
    rows = [
        f"{row}\t{1 - 2 * (row % 2)}\tthe film {row} is {'badly' if row % 2 else 'well'} made" for row in range(60)
    ]
    (folder / "reviews.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def write_pairs(folder: Path) -> None:
    """200 pairs and 40 more: a number in figures, and in words of letters."""
    folder.mkdir()
    for split, numbers in (("train", range(200)), ("test_2016_flickr", range(200, 240)), ("val", range(240, 260))):
        rows = [f"the number {number} stands here" for number in numbers]
        (folder / f"{split}.en").write_text("\n".join(rows) + "\n", encoding="utf-8")
        said = [" ".join("abcdefghij"[int(digit)] * 3 for digit in str(number)) for number in numbers]
        (folder / f"{split}.de").write_text("\n".join(f"hier steht {each}" for each in said) + "\n", encoding="utf-8")


def text_of(claim: claim_runs.Claim, place: Path) -> Path:
    others = {split_runs.split_folder: "library", translation_runs.multi30k: "pairs", reviews: "reviews.txt"}
    return place / others.get(claim.text, "text.txt")


def smaller(name: str, monkeypatch) -> claim_runs.Claim:
    """A claim with fewer runs of the same kind, contexts and layers."""
    module = importlib.import_module(name)
    runs = module.CLAIM.runs
    if name == "effective_context":
        monkeypatch.setattr(module, "CONTEXTS", [2, 4, 6])
    if name == "early_exit":
        monkeypatch.setattr(module, "WAYS", {way: module.WAYS[way] for way in ("threshold 0.9", "layer 3")})
    if name == "canonical_agents":
        runs = {run: terms for run, terms in runs.items() if run.endswith("Easy")}
    if name == "steady_agents":
        monkeypatch.setattr(module, "RATES", module.RATES[:1])
        runs = {run: terms for run, terms in runs.items() if run.endswith(", 0.001")}
    if name == "gates_steady":
        monkeypatch.setattr(module, "RATES", module.RATES[-2:])
        runs = {run: terms for run, terms in runs.items() if run.endswith((", 0.03", ", 0.1"))}
    if name in ("gates_steady", "pre_norm"):
        runs = {run: replace(each, terms=replace(each.terms, layers=2)) for run, each in runs.items()}
    return replace(module.CLAIM, runs=runs)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ORDER if name not in SAME_CODE])
def test_a_claim_runs_once_and_draws(place, monkeypatch, capsys, name):
    if name in ("canonical_agents", "steady_agents"):
        list(map(needs, ("gymnasium", "popgym", "bsuite", "minigrid")))
    claim = smaller(name, monkeypatch)
    text = text_of(claim, place)
    arguments = ["--text", str(text), "--models", str(place / "models"), "--results", str(place)]
    claim_runs.main(claim, [*arguments, "--steps", "1", "--seeds", "1"])
    first = capsys.readouterr().out.splitlines()[-1]
    assert re.match(rf"{name}: (held|not held|out of reach here)\. ", first)
    records = claim.read(place)
    assert {run: [row["seed"] for row in rows] for run, rows in records.items()} == {run: [0] for run in claim.runs}
    drawn = place / f"{name}.png"
    assert drawn.stat().st_size > 5_000 if claim.draw is not None else not drawn.exists()
    monkeypatch.setattr(claim_runs.Claim, "write", None)  # nothing is measured again
    claim.run(claim_runs.Session(text, place / "models", 1), place, range(1))


def test_a_memory_grows_in_the_first_half_of_the_steps(place, monkeypatch):
    run, grown = claim_runs.Run("transformer_xl", initial_mem_len=16), []
    monkeypatch.setattr(
        fitting.MemoryTrainer,
        "train",
        lambda trainer: grown.append((trainer.args.initial_mem_len, trainer.args.mem_len_warmup_steps)),
    )
    session = claim_runs.Session(place / "text.txt", place / "untrained", 1)
    session.trained(run, 0)
    session.trained(replace(run, initial_mem_len=None), 0)
    assert grown == [(16, 0.5), (None, 0.0)]


def test_records_of_other_settings_or_texts_do_not_count(place, tmp_path):
    claim = importlib.import_module("star_linear").CLAIM
    session = claim_runs.Session(place / "text.txt", place / "models", 1)
    records = claim_runs.Records({run: [] for run in claim.runs})
    records["Transformer-XL"] = [{"run": "Transformer-XL", "seed": 0, "settings": {"model": "dense"}}]
    claim.write(records, session, tmp_path)
    assert claim.read(tmp_path)["Transformer-XL"] == []
    assert claim.decide(tmp_path) is None
    (tmp_path / "other.txt").write_text("another text")
    with pytest.raises(ValueError, match="measured on another"):
        claim.run(claim_runs.Session(tmp_path / "other.txt", place, 1), tmp_path, range(1))


def test_a_claim_on_the_split_trains_at_the_rate_that_validation_chose(place, monkeypatch):
    claim = importlib.import_module("temporal_confusion").CLAIM
    run = replace(claim.runs["relative, memory"], rates=(0.1, 1e-9, 1e-2))
    session = claim_runs.Session(place / "library", place / "models", 3)
    record = split_runs.train_and_score_modules(session, run, 1)
    by_rate = record["validation bits by rate"]
    assert record["learning_rate"] == float(min(by_rate, key=by_rate.get))
    assert [*by_rate] == ["0.1", "1e-09", "0.01"]
    assert by_rate["1e-09"] == max(by_rate.values())
    model, _ = session.trained(split_runs.at_its_rate(session, run)[0], 1)
    scored = score_documents(model, place / "library/test.jsonl")
    assert record["modules"] == pytest.approx(scored, abs=1e-4)
    assert record["bits"] == pytest.approx(np.mean([*scored.values()]), abs=1e-3)


def score_documents(model, file: Path) -> dict[str, float]:
    """Bits per byte of the beginnings that a trial scores, of each module alone."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {row["name"]: bits_per_byte(model, np.array([*row["text"].encode()[:200]])) for row in rows}


def test_the_verdict_needs_an_interval_on_one_side_of_zero():
    claim = importlib.import_module("temporal_confusion").CLAIM

    def record(bits: float) -> dict:
        modules = {name: bits + draw.normal(0, 0.1) for name in "abcdefghi"}
        return {"bits": bits, "modules": modules, "bytes": dict.fromkeys(modules, 5)}

    def records_of(confusion: float) -> claim_runs.Records:
        bits = dict.fromkeys(claim.runs, 3.0) | {"absolute, memory": 3.0 + confusion}
        return claim_runs.Records({run: [record(bits[run]) for _ in range(5)] for run in claim.runs})

    draw = np.random.default_rng(0)
    assert [claim.verdict(records_of(confusion)).held for confusion in (0.5, -0.5, 0.01)] == [True, False, None]


def test_steps_to_try_make_no_result(place, capsys):
    with pytest.raises(SystemExit):
        claim_runs.main(importlib.import_module("macaron").CLAIM, ["--steps", "1"])
    assert "--results" in capsys.readouterr().err


def test_every_file_is_a_claim_in_the_order():
    helpers = {"agent_records", "claim_runs", "run_all", "split_runs", "translation_runs", "write_claims"}
    assert {path.stem for path in FOLDER.glob("*.py")} - helpers == set(ORDER)
    for name, (claim, text) in write_claims.claims().items():
        assert claim.name == name
        assert text


def test_the_page_is_what_the_results_say():
    said = write_claims.PAGE.read_text(encoding="utf-8")
    assert said == write_claims.page(), "run `python benchmarks/claims/write_claims.py`"
    held, not_held, open_ones = (said.count(f"| {verdict} |") for verdict in ("held", "not held", "out of reach here"))
    assert (
        f"Of the {len(ORDER)} claims, {held} held at these sizes, {not_held} did not, and {open_ones} are out" in said
    )
    assert said.count("![") == sum(
        claim.draw is not None and write_claims.decided(claim) is not None
        for claim, _ in write_claims.claims().values()
    )


def test_intervals_in_the_results_are_those_of_today():
    for claim, _ in write_claims.claims().values():
        if (verdict := write_claims.decided(claim)) is not None:
            kept = json.loads((claim_runs.RESULTS / f"{claim.name}.json").read_text(encoding="utf-8"))
            found = kept.get("intervals", {})
            assert found == json.loads(json.dumps(verdict.intervals)), f"run `{claim.name}.py --report`"


def test_an_interval_of_translations_draws_the_seeds_of_each_model_apart():
    """Seeds that rise together are no pairs; equal models have an interval around zero; one seed decides nothing."""
    draw = np.random.default_rng(0)

    def run(*matches: int) -> list[dict]:
        rows = []
        for seed, of_words in enumerate(matches):
            counts = [of_words, of_words // 2, of_words // 3, of_words // 4, 50, 45, 40, 35, 50, 50]
            each = np.maximum(1, draw.poisson(counts, (60, 10)))
            each[:, :4] = np.minimum(each[:, :4], each[:, 4:8])
            bleu = float(translation_runs.bleu_of(each.sum(0)))
            rows.append({"seed": seed, "BLEU": bleu, "sentences": " ".join(map(str, each.flatten()))})
        return rows

    records = claim_runs.Records({"low": run(20, 26, 32), "high": run(23, 29, 35), "far": run(44, 44, 45)})
    mean, low, high = translation_runs.interval(records, "high", "low")
    assert low < 0 < mean < high
    assert translation_runs.interval(records, "far", "low")[1] > 0
    mean, low, high = translation_runs.interval(records, "low", "low")
    assert mean == 0
    assert low < -1 < 1 < high
    alone = claim_runs.Records({name: rows[:1] for name, rows in records.items()})
    assert translation_runs.interval(alone, "far", "low")[1:] == (-100, 100)


def test_exits_are_counted_up_to_the_end_of_a_translation():
    """Not those of rows that read on because another row has not ended."""
    exits = importlib.import_module("exits_translation")
    calls = [torch.tensor([[1], [2]]), torch.tensor([[3], [4]]), torch.tensor([[1], [4]])]
    end = translation_runs.END
    counter = object.__new__(exits.ExitCounter)
    counter.calls, counter.layers = calls, []
    counter.count(torch.tensor([[1, 7, 8, end], [1, 7, end, 0]]))
    (found,) = counter.layers
    assert sorted(found.tolist()) == [1, 1, 2, 3, 4]
    assert counter.calls == []


def test_seeds_on_both_sides_decide_nothing(monkeypatch):
    monkeypatch.setattr(claim_runs.Claim, "read", lambda claim, results: claim_runs.Records(rows))
    claim = importlib.import_module("macaron").CLAIM
    for ours, theirs, expected in (
        ([2.0, 2.1], [2.2, 2.3], True),
        ([2.2, 2.3], [2.0, 2.1], False),
        ([2.0, 2.2], [2.1, 2.3], None),
    ):
        rows = {
            name: [{"bits": value, "seconds": 1.0, "parameters": 1} for value in bits]
            for name, bits in (("Macaron", ours), ("Transformer-XL", theirs))
        }
        assert claim.decide(FOLDER).held is expected
        powerless = replace(claim, no_power="a reason").decide(FOLDER).held
        assert powerless is (expected or None)


def test_fishers_test_counts_arrangements():
    """Those of three that learned among eight runs: how many leave one kind as many as it had, or more."""
    fisher = importlib.import_module("agent_records").fisher
    for one in range(4):
        arrangements = list(combinations(range(8), 3))
        as_many = sum(len([run for run in learned if run < 4]) >= one for learned in arrangements)
        assert fisher(one, 3 - one, 4) == pytest.approx(as_many / len(arrangements))
    assert fisher(5, 0, 5) == pytest.approx(1 / 252)


@pytest.mark.parametrize(("gated", "others", "expected"), [(5, 0, True), (0, 5, False), (5, 5, None)])
def test_agents_need_seeds_enough_for_a_verdict(monkeypatch, gated, others, expected):
    claim = importlib.import_module("steady_agents").CLAIM
    rows = {
        run: [{"learned": seed < (gated if run.startswith("GTrXL") else others)} for seed in range(5)]
        for run in claim.runs
    }
    monkeypatch.setattr(claim_runs.Claim, "read", lambda claim, results: claim_runs.Records(rows))
    assert claim.decide(FOLDER).held is expected


@pytest.mark.parametrize(("gated", "canonical", "expected"), [(5, 0, True), (5, 5, False), (5, 4, None), (0, 0, None)])
def test_a_canonical_agent_that_learns_as_often_speaks_against_the_claim(monkeypatch, gated, canonical, expected):
    claim = importlib.import_module("canonical_agents").CLAIM
    rows = {
        run: [
            {"learned": seed < (gated if run.startswith("GTrXL") else canonical), "success": 0.5} for seed in range(5)
        ]
        for run in claim.runs
    }
    monkeypatch.setattr(claim_runs.Claim, "read", lambda claim, results: claim_runs.Records(rows))
    assert claim.decide(FOLDER).held is expected


def test_the_tables_of_the_probe_are_what_its_results_say():
    found = json.loads(bench_probe.RESULT.read_text(encoding="utf-8"))["runs"]
    page = bench_probe.PAGE.read_text(encoding="utf-8")
    assert page == bench_probe.page(found), "run `python benchmarks/bench_probe.py --report`"
    assert all(f"probe_{task}.png" in page for task in found)
