"""`transformers-xl compare`, run as a user runs it: equal terms, runs that go on, and a report from the files alone."""

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

import pytest
from patience import PATIENCE
from programs import run

from transformers_xl.runs import comparison_folder, comparison_runs

ROOT = Path(__file__).parent.parent.parent
SIZES = {
    "--hidden-size": 16, "--layers": 1, "--heads": 2, "--mem-len": 8, "--segment-length": 8, "--batch-size": 4,
    "--steps": 2, "--warmup-steps": 1, "--eval-fraction": 0.1, "--turns": 1, "--seeds": 2,
}  # fmt: skip
MODELS = ["transformer_xl", "gpt2"]  # all: tests/runs/test_compare_models.py
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 150


def compare(text: Path, output: Path, *more, **changed):
    options = SIZES | {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    models = [word for name in MODELS for word in ("--variant", name)]
    return run("compare", text, "-o", output, *models, *[word for pair in options.items() for word in pair], *more)


def files(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def compared(text: Path) -> Path:
    folder = text.parent / "compared"
    result = compare(text, folder)
    assert result.exit_code == 0, result.output
    assert "models on equal terms" in result.stdout
    return folder


@pytest.fixture
def copied(compared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compared, tmp_path / "copied"))


def test_terms_are_equal(compared: Path):
    runs = [json.loads(path.read_text()) for path in sorted((compared / "runs").iterdir())]
    assert [(record["model"], record["seed"]) for record in runs] == [
        (name, seed) for name in sorted(MODELS) for seed in (0, 1)
    ]
    assert all(record["settings"] == runs[0]["settings"] for record in runs)
    for record in runs:
        assert abs(record["parameters"] / record["settings"]["target_parameters"] - 1) < 0.03
        assert record["log"][-1]["step"] == 2
        assert set(record["bits_per_byte"]) == {"with_context", "without_context"}
        assert record["peak_memory"] > record["memory_before"] > 0
    by_model = {name: [record for record in runs if record["model"] == name] for name in MODELS}
    for first, second in by_model.values():
        assert first["bits_per_byte"] != second["bits_per_byte"]
    assert (compared / "compare.md").read_text().count("\n") == 4
    assert (compared / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert set(json.loads((compared / "speeds.json").read_text())["models"]) == set(MODELS)


def test_a_comparison_goes_on(text: Path, copied: Path):
    """What is there stays, what is missing comes back the same; speeds are measured anew."""
    before, lost = files(copied), copied / "runs/gpt2-0.json"
    old = json.loads(lost.read_text())
    lost.unlink()
    result = compare(text, copied)
    assert result.exit_code == 0, result.output
    assert "3 runs exist, 1 to run" in result.stderr
    after, new = files(copied), json.loads(lost.read_text())
    assert after.keys() == before.keys()
    kept = [name for name in before if name.startswith("runs/") and name != "runs/gpt2-0.json"]
    assert len(kept) == 3
    assert [after[name] for name in kept] == [before[name] for name in kept]
    assert after["speeds.json"] != before["speeds.json"]
    for name in ("bits_per_byte", "recl_losses", "parameters", "settings"):
        assert new[name] == old[name]


def test_speeds_need_the_trained_models(text: Path, copied: Path):
    """They can be left out; then the files are what they were, and nothing is trained."""
    shutil.rmtree(copied / "models")
    before = files(copied)
    result = compare(text, copied)
    assert result.exit_code == 2
    assert "is missing" in result.stderr
    assert "--no-speeds" in result.stderr
    assert files(copied) == before
    result = compare(text, copied, "--no-speeds")
    assert result.exit_code == 0, result.output
    after = files(copied)
    assert {name for name in before if after[name] != before[name]} == {"compare.md", "compare.png"}
    assert after.keys() == before.keys()


def test_what_was_done_is_kept_when_a_run_fails(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(function, name, seed, *arguments):
        if name == "gpt2":
            raise OSError("the process of a run was killed")
        curve = [{"step": 1, "seconds": 1.0, "bits_per_byte": 1.0}]
        return {
            "model": name,
            "seed": seed,
            "bits_per_byte": {"with_context": 1.0},
            "curve": curve,
            "learning_rate": 1.0,
        }

    monkeypatch.setattr(comparison_folder, "in_a_process", killed)
    result = compare(text, tmp_path)
    assert result.exit_code == 2
    assert "killed" in result.stderr
    assert list(files(tmp_path)) == ["runs/transformer_xl-0.json"]


def test_a_process_that_is_killed_is_told():
    with pytest.raises(OSError, match="same command resumes it"):
        comparison_runs.in_a_process(os._exit, 1)


def test_a_run_ends_with_the_command():
    """One that is killed leaves no training behind."""
    fork = multiprocessing.get_context("fork")
    running, held = fork.Pipe(duplex=False)  # ends with the last process that holds it

    def run():
        comparison_runs.end_with_parent()
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
    assert comparison_runs.in_a_process(threading.active_count) == 2  # where a run is, one waits for the command's end


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("learning_rate", 0.1, "`learning_rates`=[0.1]"),
        ("steps", 3, "`steps`=3"),
        ("mem_len", 4, "`mem_len`=4"),
        ("eval_fraction", 0.2, "`eval_fraction`=0.2"),
    ],
)
def test_other_settings_are_refused(text: Path, compared: Path, field: str, value: float, told: str):
    before = files(compared)
    result = compare(text, compared, **{field: value})
    assert result.exit_code == 2
    assert told in result.stderr
    assert files(compared) == before


def test_another_text_is_refused(text: Path, compared: Path, tmp_path: Path):
    (tmp_path / "text.txt").write_text(TEXT.replace("age", "AGE"))
    before = files(compared)
    result = compare(tmp_path / "text.txt", compared)
    assert result.exit_code == 2
    assert "`texts`" in result.stderr
    assert files(compared) == before


def test_the_report_needs_the_files_alone(compared: Path, tmp_path: Path):
    """No text, no models, no torch."""
    shutil.copytree(compared / "runs", tmp_path / "runs")
    shutil.copy(compared / "speeds.json", tmp_path)
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
        (("{text}",), "`output`"),
        (("-o", "{root}/new"), "`texts`"),
        (("--from", "{root}"), "has no runs"),
        (("--from", "{root}", "{text}"), "leave out texts"),
        (("{text}", "-o", "{root}/new", "--variant", "gru"), "'gru'"),
        (("{text}", "-o", "{root}/new", "--learning-rate", "0"), "learning_rate"),
        (("{text}", "-o", "{root}/new", "--variant", "gpt2", "--eval-fraction", "0.01"), "too short"),
        (("{text}", "-o", "{root}/new", "--batch-size", "4000"), "too short"),
    ],
)
def test_errors_are_one_line_and_come_before_any_work(text: Path, tmp_path: Path, arguments: tuple, message: str):
    result = run("compare", *(argument.format(text=text, root=tmp_path) for argument in arguments))
    assert result.exit_code == 2, result.output
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert message in error
    assert not list(tmp_path.iterdir())


def test_figures_for_programs(compared: Path):
    result = run("compare", "--from", compared, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert all(row["with_context"] and row["parameters"] for row in rows.values())
    assert (compared / "compare.md").read_text() in run("compare", "--from", compared, "--markdown").stdout
