"""A folder is replaced when the new one is whole, also where a command is killed at any write; nothing else is deleted."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from killed import killed_at_each_write

from transformers_xl.files.atomic_write import write_text
from transformers_xl.files.output_folder import RunFolder, check_replaceable, output_folder, run_folder, run_to_resume
from transformers_xl.files.output_lock import LOCK
from transformers_xl.files.written import RECORD, extend_record, not_written, write_record


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process wrote is there when it is killed; `fsync` is for the whole machine, and slow."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


OLD = {"config.json": "old", "sub/weights": "old"}
NEW = {"config.json": "new", "sub/weights": "new", "more": "new"}


def fill(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def content(folder: Path) -> dict[str, str]:
    """Its files but the record."""
    files = {file.relative_to(folder).as_posix(): file.read_text() for file in folder.rglob("*") if file.is_file()}
    return {name: text for name, text in files.items() if name != RECORD}


def write(path: Path, files: dict[str, str]) -> None:
    with output_folder(path) as new:
        fill(new, files)


def fail(path: Path) -> None:
    """A command that starts, and fails at once."""
    with suppress(ValueError), output_folder(path):
        raise ValueError


def release(path: Path) -> None:
    """The lock of a process that was killed is taken over, after some time (`test_output_lock.py`)."""
    for lock in (path.parent / f".{path.name}.lock", path / LOCK):
        lock.unlink(missing_ok=True)


def users_own(root: Path) -> dict[str, Path]:
    """Folders of the user beside the output `model`, of names that look like those of a command."""
    names = (".model.old", "model.old", ".model-mine", ".model-mine.transformers-xl", "model.new", ".model.lock.d")
    for name in names:
        fill(root / name, {"mine": name})
    return {name: root / name for name in names}


def test_a_command_that_is_killed_at_any_write_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path, states = tmp_path / "all" / "model", []

    def prepare() -> None:
        shutil.rmtree(tmp_path / "all", ignore_errors=True)
        write(path, OLD)
        users_own(path.parent)
        caplog.clear()

    for _ in killed_at_each_write(path.parent, prepare, lambda: write(path, NEW)):
        before = content(path) if path.is_dir() else None
        assert before in (OLD, NEW, None)
        release(path)
        fail(path)  # the next start
        after = content(path)
        assert after == before or (before is None and after in (OLD, NEW))
        assert ("in its place again" in caplog.text) == (before is None)
        assert not_written(path) is None
        assert all(content(each) == {"mine": name} for name, each in users_own(tmp_path / "all").items())
        assert sorted(os.listdir(path.parent)) == sorted(["model", *users_own(tmp_path / "all")])
        states.append(before)
    assert [states[0], states[-1]] == [OLD, NEW]
    assert states.count(None) == 1  # between two renames
    assert len(states) > 10


class Run:
    """What a training writes: a config, a checkpoint, a model."""

    def __init__(self, path: Path, files: dict[str, str]):
        self.path, self.files = path, files

    def __call__(self, resume: bool = False, stops: bool = False, fails: bool = False) -> None:
        with run_folder(self.path, resume) as run:
            extend_record(run.path, [run.path / "run.yaml"])
            write_text(run.path / "run.yaml", self.files["config.json"])
            if fails:
                raise ValueError
            if not (run.path / "checkpoint-1").exists():
                fill(run.path / "_saving-checkpoint-1", {"state": "whole"})
                os.replace(run.path / "_saving-checkpoint-1", run.path / "checkpoint-1")
            if not stops:
                self.end(run)

    def end(self, run: RunFolder) -> None:
        shutil.rmtree(run.path / "_final", ignore_errors=True)
        fill(run.path / "_final", self.files)
        run.put_in_place(run.path / "_final")

    @property
    def model(self) -> dict[str, str] | None:
        """What a command reads that is given the output."""
        found = content(self.path) if self.path.is_dir() else {}
        return {name: found[name] for name in self.files if name in found} if "config.json" in found else None


@pytest.mark.slow
@pytest.mark.parametrize("first", ["nothing", "a model", "a finished run"])
def test_a_run_that_is_killed_at_any_write_loses_nothing(tmp_path: Path, caplog, first: str):
    path, resume, states = tmp_path / "all" / "model", first == "a finished run", []
    run, old, refused = Run(path, NEW), dict.fromkeys(NEW, "old"), 0

    def prepare() -> None:
        shutil.rmtree(tmp_path / "all", ignore_errors=True)
        (tmp_path / "all").mkdir()
        if first == "a model":
            write(path, old)
        elif first == "a finished run":
            Run(path, old)()
        caplog.clear()

    for _ in killed_at_each_write(path.parent, prepare, lambda: run(resume)):
        states.append(run.model)
        assert run.model in (old, NEW, None)
        assert not_written(path) is None  # nothing that `--overwrite` would refuse
        release(path)
        goes_on = False
        with suppress(ValueError):  # of a run that ended before its first checkpoint
            goes_on = any(run_to_resume(path).glob("checkpoint-*"))
            refused -= 1
        refused += 1
        if run.model is None and first != "nothing":
            assert goes_on  # `--resume` puts the new one in place, as the error of a command that reads says
        run(resume=goes_on)
        assert run.model == NEW
        assert os.listdir(path.parent) == ["model"]
        assert not_written(path) is None
    assert [states[0], states[-1]] == [None if first == "nothing" else old, NEW]
    assert (refused > 0) == (first == "a model")


def test_a_run_that_stops_or_fails_leaves_the_old_model(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "model"
    write(path, OLD)
    run = Run(path, NEW)
    with pytest.raises(ValueError):
        run(fails=True)
    assert (os.listdir(tmp_path), content(path)) == (["model"], OLD)
    (tmp_path / "model.new").mkdir()  # of a process that was killed
    write_record(tmp_path / "model.new", [], "model")
    with pytest.raises(
        ValueError, match=r"model\.new' holds a run without a checkpoint: where it has ended, begin it again"
    ):
        run(resume=True)
    shutil.rmtree(tmp_path / "model.new")
    run(stops=True)
    assert content(path) == OLD
    assert "takes the place of" in caplog.text
    with pytest.raises(ValueError, match=r"model\.new.* holds a run that has not ended.* --resume -o .* or delete it"):
        run()
    assert run_to_resume(path) == tmp_path / "model.new"
    run(resume=True)
    assert content(path) == NEW | {"run.yaml": "new", "checkpoint-1/state": "whole"}
    assert run_to_resume(path) == path
    (path / "mine").write_text("mine")
    again = Run(tmp_path / "other", NEW)
    with pytest.raises(ValueError):
        again(fails=True)
    assert os.listdir(tmp_path) == ["model"]


def test_a_folder_that_has_the_name_of_an_unfinished_run_is_left_alone(tmp_path: Path):
    path, users = tmp_path / "model", tmp_path / "model.new"
    write(path, OLD)
    Run(users, NEW)(stops=True)  # a run of its own, with a checkpoint
    before = content(users)
    assert run_to_resume(path) == path
    with pytest.raises(ValueError, match=r"model\.new.* is taken"):
        Run(path, NEW)()
    assert (content(path), content(users)) == (OLD, before)


def test_what_no_command_wrote_is_refused_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "model"
    write(path, OLD)
    check_replaceable(path)
    (path / "sub" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds 'sub/mine\.txt', which no command .* move it away"):
        check_replaceable(path)
    write(path, NEW)  # somebody put the file there while the command ran
    assert content(path) == NEW
    (kept,) = tmp_path.glob("model.old-*")
    assert content(kept) == OLD | {"sub/mine.txt": "mine"}
    assert f"is kept as {str(kept)!r}" in caplog.text
    for name in ("link", "folder link"):
        os.symlink(tmp_path, path / name)
        with pytest.raises(ValueError, match=name):
            check_replaceable(path)
        (path / name).unlink()
    (path / RECORD).write_text("{")  # damaged: nothing is known to be ours
    with pytest.raises(ValueError, match="no command"):
        check_replaceable(path)


def test_the_target_of_a_link_is_replaced_every_time(tmp_path: Path):
    path, link = tmp_path / "deep" / "model", tmp_path / "link"
    write(path, OLD)
    link.symlink_to(path)
    for files in (NEW, OLD):
        write(link, files)
        assert (link.is_symlink(), content(path)) == (True, files)
    Run(link, NEW)()
    Run(link, NEW)()
    assert (link.is_symlink(), content(path)["config.json"]) == (True, "new")
    assert (os.listdir(path.parent), sorted(os.listdir(tmp_path))) == (["model"], ["deep", "link"])
    shutil.rmtree(path)
    write(link, OLD)  # it led nowhere
    assert content(path) == OLD


def test_an_old_folder_is_kept_where_the_new_one_did_not_take_its_place(tmp_path: Path, caplog):
    """Killed between two renames; then somebody made another folder of the name."""
    path, left = tmp_path / "model", tmp_path / ".model-abcdefgh.transformers-xl"
    write(left / "model.old", OLD)
    write(left / "model", NEW)
    fill(path, {"mine": "mine"})
    fail(path)
    (kept,) = tmp_path.glob("model.old-*")
    assert (content(path), content(kept)) == ({"mine": "mine"}, OLD)
    assert str(kept) in caplog.text


def test_an_output_folder_has_one_writer(tmp_path: Path):
    with output_folder(tmp_path / "model") as new:
        (new / "config.json").write_text("{}")
        with pytest.raises(ValueError, match="another run"), output_folder(tmp_path / "model"):
            pass
    assert content(tmp_path / "model") == {"config.json": "{}"}
    assert os.listdir(tmp_path) == ["model"]


def test_a_file_is_not_replaced_by_a_folder_nor_the_root(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="file"):
        write(tmp_path / "file", NEW)
    assert (tmp_path / "file").read_text() == "mine"
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(ValueError, match="name a folder in it"):
        write(Path("/"), NEW)


@pytest.mark.parametrize("step", ["body", "rename"])
def test_a_folder_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch, step: str):
    path, real = tmp_path / "model", os.replace
    write(path, OLD)

    def replace(source, target) -> None:
        if Path(target) == path and Path(source).name == "model":
            raise KeyboardInterrupt
        real(source, target)

    def attempt() -> None:
        with output_folder(path) as new:
            fill(new, NEW)
            if step == "body":
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            attempt()
    assert content(path) == OLD
    assert os.listdir(tmp_path) == ["model"]
