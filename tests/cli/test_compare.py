"""`transformers-xl compare`, run as a user runs it: a plan, files that go on, and a report from the files alone."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from patience import PATIENCE
from programs import run

from transformers_xl.evaluation.document_losses import document_losses
from transformers_xl.runs import comparison_folder, separate_process
from transformers_xl.runs.comparison_plan import read_plan
from transformers_xl.runs.loading import load_model

ROOT = Path(__file__).parent.parent.parent
PLAN = {
    "reference": "transformer_xl",
    "models": {"transformer_xl": None, "gpt2": {"block": 16}},  # all types: tests/runs/test_comparison_models.py
    "seeds": 2, "steps": 2, "points": [1], "hidden_size": 16, "layers": 1, "heads": 2, "mem_len": 8, "segment_length": 8,
    "batch_size": 4, "warmup_steps": 1, "document_bytes": 100, "search": {"trials": 3, "steps": 1},
}  # fmt: skip
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 20


def plan_file(folder: Path, **changed) -> Path:
    """A plan beside its texts, in a new file."""
    texts = {name: str(folder / name) for name in ("train", "validation", "test.jsonl")}
    values = PLAN | {"texts": {name.removesuffix(".jsonl"): path for name, path in texts.items()}} | changed
    path = folder / f"plan-{len(list(folder.glob('plan-*')))}.yaml"
    path.write_text(
        yaml.safe_dump({name: value for name, value in values.items() if value is not None}, sort_keys=False)
    )
    return path


def files(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "train").write_text(TEXT)
    (folder / "validation").mkdir()
    (folder / "validation/a.txt").write_text(TEXT[:60])
    (folder / "validation/b.txt").write_text(TEXT[60:200])
    rows = [{"name": name, "text": TEXT[at : at + 70]} for name, at in (("one", 5), ("two", 300))]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def compared(texts: Path) -> Path:
    folder = texts / "compared"
    result = run("compare", plan_file(texts), "-o", folder)
    assert result.exit_code == 0, result.output
    assert "models on equal terms" in result.stdout
    return folder


@pytest.fixture
def copied(compared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compared, tmp_path / "copied"))


def test_what_the_files_say(compared: Path):
    runs = [json.loads(path.read_text()) for path in sorted((compared / "runs").iterdir())]
    names = [(name, seed) for name in ("gpt2", "transformer_xl") for seed in (0, 1)]
    assert [(record["model"], record["seed"]) for record in runs] == names
    for record in runs:
        assert record["documents"] == ["one", "two"]
        assert record["bytes"] == [69, 69]
        assert set(record["bits"]) == {"1", "2"}
        assert record["peak_memory"] > record["memory_before"] > 0
    assert runs[0]["bits"] != runs[1]["bits"]
    for name in ("gpt2", "transformer_xl"):
        trials = [json.loads(path.read_text()) for path in (compared / "trials").glob(f"{name}-*")]
        assert len(trials) == 3
        best = min(trials, key=lambda trial: trial["bits_per_byte"])
        assert all(record["setting"] == best["setting"] for record in runs if record["model"] == name)
    assert (compared / "compare.md").read_text().count("\n") == 4
    assert (compared / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert set(json.loads((compared / "speeds.json").read_text())["seconds_per_step"]) == {"gpt2", "transformer_xl"}


def test_a_comparison_goes_on(texts: Path, copied: Path):
    """What is there stays, what is missing comes back the same; a seed more is a run more."""
    before = files(copied)
    lost = [copied / "runs/gpt2-0.json", *sorted((copied / "trials").glob("gpt2-*"))[:1]]
    old = [json.loads(path.read_text()) for path in lost]
    for path in lost:
        path.unlink()
    result = run(
        "compare", plan_file(texts, seeds=3, models={"transformer_xl": None, "gpt2": {"block": 16}}), "-o", copied
    )
    assert result.exit_code == 0, result.output
    assert "2 runs exist, 4 to run" in result.stderr  # gpt2-1 is looked at again after the trial
    after, new = files(copied), [json.loads(path.read_text()) for path in lost]
    assert after.keys() - before.keys() == {"runs/gpt2-2.json", "runs/transformer_xl-2.json"}
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {*(str(path.relative_to(copied)) for path in lost), "plan.json", "compare.md", "compare.png"}
    for one, other in zip(old, new, strict=True):
        same = ("settings", "setting", "bits", "bits_per_byte")
        assert [one.get(name) for name in same] == [other.get(name) for name in same]


def test_a_search_goes_on(texts: Path, copied: Path, monkeypatch: pytest.MonkeyPatch):
    """More trials: those that are there stay, and the runs of a model whose setting changes are made again."""
    made = []

    def in_this_process(function, name, *arguments):
        made.append((function.__name__, name, arguments[1] if function.__name__ == "try_setting" else arguments[0]))
        return {"bits_per_byte": 0.5 if name == "gpt2" else 99.0, "bits": {"2": [1.0]}, "bytes": [1]}

    monkeypatch.setattr(comparison_folder, "in_a_process", in_this_process)
    before = files(copied)
    comparison = comparison_folder.Comparison(read_plan(plan_file(texts, search={"trials": 4, "steps": 1})), copied)
    assert len(comparison.missing) == 4  # until the fourth trials are there
    for name, seed in comparison.missing:
        comparison.train(name, seed)
    tried = {name: setting for function, name, setting in made if function == "try_setting"}
    assert tried.keys() == {"gpt2", "transformer_xl"}
    assert [each[1:] for each in made if each[0] == "run"] == [("gpt2", 0), ("gpt2", 1)]
    assert json.loads((copied / "runs/gpt2-1.json").read_text())["setting"] == vars(tried["gpt2"])
    after = files(copied)
    assert len(after.keys() - before.keys()) == 2
    assert {name for name in before if after[name] != before[name]} == {
        "plan.json",
        "runs/gpt2-0.json",
        "runs/gpt2-1.json",
    }
    comparison = comparison_folder.Comparison(read_plan(plan_file(texts, search={"trials": 4, "steps": 1})), copied)
    assert comparison.missing == []


def test_what_was_done_is_kept_when_a_run_fails(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(function, name, *arguments):
        if name == "gpt2":
            raise OSError("the process of a run was killed")
        return {"bits_per_byte": 1.0, "bits": {"2": [1.0]}, "bytes": [1]}

    monkeypatch.setattr(comparison_folder, "in_a_process", killed)
    result = run("compare", plan_file(texts, seeds=1), "-o", tmp_path)
    assert result.exit_code == 2
    assert "killed" in result.stderr
    assert {name for name in files(tmp_path) if name.startswith("runs")} == {"runs/transformer_xl-0.json"}


def test_a_part_of_the_models(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Several commands fill one folder; none of them times steps, or reports what is not there."""
    result = {"bits_per_byte": 1.0, "bits": {"2": [1.0]}, "bytes": [1]}
    monkeypatch.setattr(comparison_folder, "in_a_process", lambda function, *arguments: result)
    for name in ("gpt2", "transformer_xl"):
        done = run("compare", plan_file(texts, seeds=1), "-o", tmp_path, "--only", name)
        assert done.exit_code == 0, done.output
        assert "1 to run" in done.stderr
        assert f"runs/{name}-0.json" in files(tmp_path)
        assert not {"compare.md", "speeds.json"} & files(tmp_path).keys()
    refused = run("compare", plan_file(texts), "-o", tmp_path, "--only", "gru")
    assert refused.exit_code == 2
    assert "`only`='gru' is none of the models of the plan: transformer_xl, gpt2." in refused.stderr


def test_a_model_that_is_kept_is_the_one_that_was_scored(texts: Path, tmp_path: Path):
    given = plan_file(texts, seeds=1, models={"transformer_xl": None}, search={"trials": 1, "steps": 1})
    result = run("compare", given, "-o", tmp_path / "new", "--keep-models")
    assert result.exit_code == 0, result.output
    model, tokenizer = load_model(tmp_path / "new/models/transformer_xl-0")
    for row, bits in zip(
        (texts / "test.jsonl").read_text().splitlines(),
        json.loads((tmp_path / "new/runs/transformer_xl-0.json").read_text())["bits"]["2"],
        strict=True,
    ):
        ids = np.array(tokenizer.encode_bytes(json.loads(row)["text"].encode()))
        (nats,) = document_losses(model, [ids], model.config.segment_length)
        assert np.nansum(nats) / np.log(2) == pytest.approx(bits, abs=2e-3)


@pytest.mark.parametrize("bits", [None, 1.0])
def test_a_trial_that_diverged_is_not_chosen(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits):
    def in_this_process(function, name, plan, setting):
        return {"bits_per_byte": bits if setting.start == 0.02 else None}

    monkeypatch.setattr(comparison_folder, "in_a_process", in_this_process)
    comparison = comparison_folder.Comparison(read_plan(plan_file(texts)), tmp_path / "new")
    if bits is None:
        with pytest.raises(ValueError, match="each of 3 trainings diverged"):
            comparison.choose("gpt2")
    else:
        assert comparison.choose("gpt2").start == 0.02


def test_a_process_that_is_killed_is_told():
    with pytest.raises(OSError, match="same command resumes it"):
        separate_process.in_a_process(os._exit, 1)


def test_a_run_ends_with_the_command():
    """One that is killed leaves no training behind."""
    fork = multiprocessing.get_context("fork")
    running, held = fork.Pipe(duplex=False)  # ends with the last process that holds it

    def run():
        separate_process.end_with_parent()
        held.send("begun")
        time.sleep(PATIENCE)

    def command():
        fork.Process(target=run).start()
        time.sleep(PATIENCE)

    process = fork.Process(target=command)
    process.start()
    held.close()
    assert running.recv() == "begun"
    process.kill()
    assert running.poll(PATIENCE / 2)
    with pytest.raises(EOFError):
        running.recv()
    assert (
        separate_process.in_a_process(threading.active_count) == 2
    )  # where a run is, one waits for the command's end


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"steps": 3}, "`steps`=3"),
        ({"mem_len": 16, "document_bytes": None}, "`mem_len`=16"),
        ({"search": {"trials": 3, "steps": 2}}, "`search.steps`=2 "),
        ({"models": {"transformer_xl": None, "gpt2": {"block": 8}}}, "`model.block`=8 "),
        ({"document_bytes": 50}, "`document_bytes`=50"),
    ],
)
def test_other_settings_are_refused(texts: Path, compared: Path, changed: dict, told: str):
    before = files(compared)
    result = run("compare", plan_file(texts, **changed), "-o", compared)
    assert result.exit_code == 2
    assert told in result.stderr
    assert files(compared) == before


def test_another_text_is_refused(texts: Path, compared: Path, tmp_path: Path):
    (tmp_path / "train").write_text(TEXT.replace("age", "AGE"))
    others = {"train": "train", "validation": "validation", "test": "test.jsonl"}
    given = {name: str((tmp_path if name == "train" else texts) / path) for name, path in others.items()}
    before = files(compared)
    result = run("compare", plan_file(tmp_path, texts=given), "-o", compared)
    assert result.exit_code == 2
    assert "`texts.train`=" in result.stderr
    assert files(compared) == before


def test_the_report_needs_the_files_alone(compared: Path, tmp_path: Path):
    """No text, no models, no torch."""
    for name in ("runs", "trials"):
        shutil.copytree(compared / name, tmp_path / name)
    for name in ("speeds.json", "plan.json"):
        shutil.copy(compared / name, tmp_path)
    program = (
        "import sys\n"
        "from transformers_xl.cli.main import app\n"
        "app(standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "compare", "--from", str(tmp_path)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "MPLCONFIGDIR": str(tmp_path)},
    )
    assert result.returncode == 0, result.stderr
    for name in ("compare.md", "compare.png"):
        assert (tmp_path / name).read_bytes() == (compared / name).read_bytes()


def test_head_ends_a_command_silently(compared: Path, tmp_path: Path):
    """Nobody reads: the status is that of a program that SIGPIPE ended, and nothing is said of it."""
    shutil.copytree(compared / "runs", tmp_path / "runs")
    shutil.copy(compared / "plan.json", tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-c", "from transformers_xl.cli.main import app; app()", "compare", "--from", tmp_path],
        stdout=writer, stderr=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT), "MPLCONFIGDIR": str(tmp_path)},
    )  # fmt: skip
    os.close(writer)
    assert result.returncode == 128 + signal.SIGPIPE
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{plan}",), "`output`"),
        (("-o", "{root}/new"), "`plan`"),
        (("--from", "{root}"), "has no plan.json"),
        (("--from", "{root}", "{plan}"), "leave out the plan"),
        (("--from", "{root}", "--keep-models"), "leave out the plan"),
        (("{plan}", "-o", "{texts}"), "holds no comparison"),
    ],
)
def test_errors_are_one_line_and_come_before_any_work(texts: Path, tmp_path: Path, arguments: tuple, message: str):
    given = {"plan": plan_file(texts), "root": tmp_path, "texts": texts}
    result = run("compare", *(argument.format(**given) for argument in arguments))
    assert result.exit_code == 2, result.output
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert message in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"stepz": 3}, "stepz"),
        ({"steps": "many"}, "steps"),
        ({"steps": 0}, "`steps`=0 must be at least 1"),
        ({"points": [3]}, "`points` holds 3"),
        ({"reference": "gpt3"}, "`reference`='gpt3' is none of the models"),
        ({"reference": None}, "`reference` is missing"),
        ({"models": ["gpt2"]}, "`models`=['gpt2']"),
        ({"models": {"transformer_xl": None, "gpt2": False}}, "`models.gpt2`=False must be fields"),
        ({"models": {"transformer_xl": {"blocks": 3}}}, "blocks"),
        ({"models": {"transformer_xl": None, "a/b": None}}, "'a/b' cannot be the name of a file"),
        ({"models": {"transformer_xl": {"mem_len": 0, "block": 12}}}, "`models.transformer_xl.block`=12"),
        ({"models": {"transformer_xl": None, "m": {"carry": True, "block": 8}}}, "`models.m.carry`=True"),
        ({"models": {"transformer_xl": None, "gru": None}}, "`models.gru.type`='gru'"),
        ({"search": {"starts": [0]}}, "`search.starts` holds 0"),
        ({"search": {"starts": ["large"]}}, "`search.starts` holds 'large'"),
        ({"search": {"schedules": ["step"]}}, "`search.schedules` holds 'step'"),
        ({"search": {"factor": 1}}, "`search.factor`=1"),
        ({"search": {"rate": 0}}, "`search.rate`=0"),
        ({"tokenizer": "/nowhere"}, "`tokenizer`='/nowhere' does not exist"),
        ({"batch_size": 4000}, "`texts.train` has"),
        ({"texts": {"train": "/nowhere", "validation": "a", "test": "b"}}, "`texts.train`='/nowhere' does not exist"),
    ],
)
def test_a_plan_is_refused_before_any_work(texts: Path, tmp_path: Path, changed: dict, message: str):
    result = run("compare", plan_file(texts, **changed), "-o", tmp_path / "new")
    assert result.exit_code == 2, result.output
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert message in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", ["{", "[]", '{"name": "a"}', '{"text": 3}'])
def test_a_line_that_is_no_document_is_refused(texts: Path, tmp_path: Path, line: str):
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    given = {
        "train": str(texts / "train"),
        "validation": str(texts / "validation"),
        "test": str(tmp_path / "bad.jsonl"),
    }
    result = run("compare", plan_file(texts, texts=given), "-o", tmp_path / "new")
    assert result.exit_code == 2, result.output
    assert "line 2 of" in result.stderr


def test_figures_for_programs(compared: Path):
    result = run("compare", "--from", compared, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert all(row["bits_per_byte"] and row["parameters"] for row in rows.values())
    assert (compared / "compare.md").read_text() in run("compare", "--from", compared, "--markdown").stdout
