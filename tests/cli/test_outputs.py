"""What `--overwrite` and `--resume` may do to the files that are there: of every command that writes a folder."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from forked import run_processes
from killed import KILLED
from programs import run
from stand_in_base import save_base
from transformers import TrainerCallback

from transformers_xl.files.output_folder import output_folder
from transformers_xl.files.written import RECORD, not_written
from transformers_xl.training.callbacks import TrainingProgress

PROGRAM = Path(__file__).parent.parent / "helpers" / "killed.py"
ORIGINAL = Path(__file__).parent.parent / "fixtures" / "golden" / "legacy_txl_checkpoint" / "model.pt"
SMALL = (
    "--model.hidden_size 16 --model.num_hidden_layers 1 --model.num_attention_heads 2 --model.intermediate_size 16 "
    "--model.mem_len 8 --model.segment_length 8 --data.batch_size 2 --training.max_steps 4 --training.warmup_steps 1"
)
LINES = "It was the best of times , it was the worst of times .\n" * 40


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(LINES)
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("base") / "base")


def content(folder: Path) -> dict[str, bytes]:
    files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return {name: data for name, data in files.items() if name != RECORD}


def words_of(command: str, text: Path, base: Path, output: Path) -> list[object]:
    return {
        "prepare": ["prepare", "log", text, "-o", output],
        "tokenizer train": ["tokenizer", "train", text, "-o", output],
        "add-memory": ["add-memory", base, "-o", output, "--mem-len", 8],
        "convert": ["convert", ORIGINAL, output],
        "train": ["train", text, "-o", output, *SMALL.split()],
    }[command]


def test_a_tilde_is_the_home(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    result = run("tokenizer", "train", text, "--output=~/words")  # no shell makes a path of it
    assert result.exit_code == 0, result.output
    assert (tmp_path / "words" / "tokenizer.json").is_file()


def train(*words: object) -> None:
    result = run("train", *words)
    assert result.exit_code == 0, (result.output, result.exception)


def refused(*words: object) -> str:
    result = run("train", *words)
    assert result.exit_code == 2, (result.output, result.exception)
    return " ".join(result.output.split())


class Signals(TrainerCallback):
    """Asks the process to end in the third step."""

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGINT)


COMMANDS = ("prepare", "tokenizer train", "add-memory", "convert", "train")


def filled(folder: Path, files: dict[str, str]) -> dict[str, bytes]:
    with output_folder(folder) as new:
        for name, written in files.items():
            (new / name).write_text(written)
    return content(folder)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_leaves_the_old_output(text: Path, base: Path, tmp_path: Path, command: str):
    """Full from the third write below the folder on: the first ones are the lock and the workspace."""
    output = tmp_path / "all" / "model"
    old = filled(output, {"config.json": "old"})
    words = [*words_of(command, text, base, output), "--overwrite"]
    done = run_processes(PROGRAM, 3, "full", output.parent, *words, processes=1)
    assert done.exit_codes == [2], done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert content(output) == old
    assert os.listdir(output.parent) == ["model"]


def test_a_command_that_is_killed_between_any_two_renames_loses_nothing(text, base, tmp_path: Path):
    """At every write: `tests/files/test_output_folder.py`."""
    output, states = tmp_path / "all" / "model", []
    while not states or states[-1][0] == KILLED:
        shutil.rmtree(tmp_path / "all", ignore_errors=True)
        old = filled(output, {"config.json": "old"})
        words = [*words_of("prepare", text, base, output), "--overwrite"]
        done = run_processes(PROGRAM, len(states), "kill", output.parent, *words, processes=1)
        assert done.exit_codes[0] in (0, KILLED), done.stderr
        found = content(output) if output.is_dir() else None
        states.append((done.exit_codes[0], "old" if found == old else "none" if found is None else "new"))
        again = run(*words)
        assert again.exit_code == 0, again.output
        assert not_written(output) is None
        assert os.listdir(output.parent) == ["model"]
    order = [state for _, state in states]
    assert order == sorted(order, key=["old", "none", "new"].index)
    assert (order[0], order.count("none"), order[-1]) == ("old", 1, "new")


@pytest.mark.parametrize("command", COMMANDS)
def test_what_no_command_wrote_is_never_deleted(text: Path, base: Path, tmp_path: Path, command: str):
    users = {name: tmp_path / name / "mine.txt" for name in (".model.old", "model.old", ".model-x", "model")}
    for file in users.values():
        file.parent.mkdir()
        file.write_text("mine")
    words = [*words_of(command, text, base, tmp_path / "model"), "--overwrite"]
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert "holds 'mine.txt', which no command" in " ".join(result.output.split())
    users["model"].unlink()
    result = run(*words)
    assert result.exit_code == 0, result.output
    readme = tmp_path / "model" / "README.md"
    readme.write_text("My own words.")
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert "README.md" in result.output
    assert readme.read_text() == "My own words."
    assert all(file.read_text() == "mine" for name, file in users.items() if name != "model")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("place", ["the folder itself", "around it", "."])
def test_an_output_around_its_input_is_refused(text, base, tmp_path, monkeypatch, command: str, place: str):
    output = tmp_path / "output"
    inside = output if place == "the folder itself" and command in ("add-memory", "train") else output / "inside"
    filled(output, {"old": "old"})
    if inside != output:
        inside.mkdir()
    shutil.copy(text, inside / "text.txt")
    shutil.copytree(base, inside / "base")
    shutil.copy(ORIGINAL, inside / "model.pt")
    with (output / RECORD).open("w") as stream:  # also where a command of ours wrote the input
        json.dump({"files": list(content(output))}, stream)
    before = content(output)
    monkeypatch.chdir(output)
    words = words_of(command, inside / "text.txt", inside / "base", Path(".") if place == "." else output)
    words = [inside / "model.pt" if word == ORIGINAL else word for word in words]
    result = run(*words, "--overwrite")
    assert result.exit_code == 2, result.output
    assert "holds the input" in result.output
    assert "Traceback" not in result.output
    assert content(output) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_the_target_of_a_link_is_replaced_again_and_again(text: Path, base: Path, tmp_path: Path, command: str):
    link, target = tmp_path / "link", tmp_path / "deep" / "model"
    filled(target, {"old": "old"})
    link.symlink_to(target)
    for _ in range(2):
        result = run(*words_of(command, text, base, link), "--overwrite")
        assert result.exit_code == 0, result.output
        assert link.is_symlink()
        assert "old" not in content(target)
    assert (sorted(os.listdir(tmp_path)), os.listdir(target.parent)) == (["deep", "link"], ["model"])


def test_a_training_that_is_killed_leaves_the_model_and_resumes(text: Path, tmp_path: Path, monkeypatch):
    """Before its first checkpoint, and when it is asked to stop: commands read the old one until the new one is whole."""
    output = tmp_path / "model"
    words = [text, "-o", output, *SMALL.split()]
    train(*words)
    old = content(output)
    killed = run_processes(PROGRAM, 12, "kill", tmp_path, "train", *words, "--overwrite", processes=1)
    assert killed.exit_codes == [KILLED], killed.stderr
    assert "takes the place of" in killed.stderr
    assert not list((tmp_path / "model.new").glob("checkpoint-*"))
    assert content(output) == old
    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "on_step_begin", Signals.on_step_begin)
        assert run("train", *words, "--overwrite", "--model.mem_len", 4).exit_code == 130
    assert content(output) == old
    assert run("evaluate", output, "--text", text).exit_code == 0
    said = refused(*words, "--overwrite")
    assert f"--resume -o {output}" in said
    train("--resume", "-o", output)
    assert json.loads((output / "config.json").read_text())["mem_len"] == 4
    assert os.listdir(tmp_path) == ["model"]
    assert not_written(output) is None


def test_a_resume_that_is_refused_changes_nothing_and_a_readme_is_kept(text: Path, tmp_path: Path):
    output = tmp_path / "model"
    train(text, "-o", output, *SMALL.split())
    before = content(output)
    assert "segment_length" in refused("--resume", "-o", output, "--model.segment_length", 4)
    assert content(output) == before
    readme = output / "README.md"
    readme.write_text(
        readme.read_text().replace("---\n", "---\nlicense: mit\n", 1)
    )  # metadata: no change of its words
    train("--resume", "-o", output, "--training.max_steps", 5)
    assert "license: mit" in readme.read_text()
    assert yaml.safe_load((output / "run.yaml").read_text())["training"]["max_steps"] == 5
    readme.write_text("My own words.")
    train("--resume", "-o", output, "--training.max_steps", 6)
    assert readme.read_text() == "My own words."
    assert json.loads((output / "training_metrics.json").read_text())["training"]["steps"] == 6


def test_what_commands_add_to_a_folder_may_be_overwritten(text: Path, base: Path, tmp_path: Path):
    """`card --write` and `evaluate --record` write into the folder of another command."""
    output = tmp_path / "model"
    words = words_of("add-memory", text, base, output)
    for line in (words, ("evaluate", output, "--text", text, "--record"), ("card", output, "--write"), words):
        result = run(*line, *(["--overwrite"] if line is words else []))
        assert result.exit_code == 0, result.output
    assert not (output / "training_metrics.json").exists()


def test_a_comparison_and_a_report_leave_other_files_alone(text: Path, base: Path, tmp_path: Path):
    filled(tmp_path / "folder", {"compare.md": "mine"})
    result = run("compare", text, "-o", tmp_path / "folder")
    assert result.exit_code == 2
    assert "holds no comparison" in result.output
    assert (tmp_path / "folder" / "compare.md").read_text() == "mine"
    copied = shutil.copy(text, tmp_path / "text.txt")
    for out in (copied, base / "config.json"):
        result = run("report", base, "--text", copied, "--out", out, "--overwrite")
        assert result.exit_code == 2
        assert "holds the input" in result.output
    assert Path(copied).read_text() == LINES
