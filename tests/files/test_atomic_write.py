"""A write that fails or is interrupted leaves what was there before, and nothing beside it."""

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from transformers_xl.files.atomic_write import atomic_write, replace, write_text
from transformers_xl.files.output_folder import output_folder


def content(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


@pytest.mark.parametrize("exists", [False, True])
def test_what_is_whole_takes_its_place(tmp_path: Path, exists: bool):
    path = tmp_path / "deep" / "result.out"
    if exists:
        write_text(path, "old")
    with atomic_write(path) as new:
        assert new.name == path.name
        new.write_text("new")
        assert content(path) == ("old" if exists else None)
    assert content(path) == "new"
    assert os.listdir(path.parent) == ["result.out"]


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("step", ["body", "fsync", "replace"])
def test_what_fails_leaves_what_was_there(tmp_path: Path, monkeypatch, exists: bool, step: str):
    path = tmp_path / "result.out"
    if exists:
        path.write_text("old")

    def interrupt(*args) -> None:
        raise KeyboardInterrupt

    def attempt() -> None:
        with atomic_write(path) as new:
            new.write_text("half")
            if step == "body":
                interrupt()

    with monkeypatch.context() as patch:
        if step != "body":
            patch.setattr(os, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            attempt()
    assert content(path) == ("old" if exists else None)
    assert os.listdir(tmp_path) == (["result.out"] if exists else [])


@pytest.mark.parametrize("kind", [atomic_write, output_folder])
@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EROFS, os.strerror(errno.EROFS), "/x/.a-1.transformers-xl/a"),
        RuntimeError("basic_ios::clear: iostream error"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_disk_that_refuses_is_named(tmp_path: Path, kind, error: Exception):
    with pytest.raises(OSError, match=rf": '{tmp_path}/result.out'$"), kind(tmp_path / "result.out"):
        raise error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(errno.ECONNREFUSED, "no"),
        OSError(errno.ENOSPC, "full", "/somewhere/else"),
        OSError("a/b is no model"),
        ValueError("No space left on device"),
        RuntimeError("a bug"),
    ],
)
def test_other_errors_are_left_as_they_are(tmp_path: Path, error: Exception):
    with pytest.raises(type(error)) as raised, atomic_write(tmp_path / "result.out"):
        raise error
    assert raised.value is error


def test_a_file_does_not_take_the_place_of_a_folder(tmp_path: Path):
    path = tmp_path / "result.out"
    path.mkdir()
    with pytest.raises(OSError, match=r"result\.out"):
        write_text(path, "new")
    assert path.is_dir()
    assert os.listdir(tmp_path) == ["result.out"]


def test_a_file_does_not_take_the_place_of_a_device(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="something else than a file"), atomic_write(tmp_path / "pipe"):
        raise AssertionError("before any work")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert not (tmp_path / "pipe").is_file()


def test_a_folder_that_cannot_be_replaced_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    new, path, real = tmp_path / "new", tmp_path / "old", os.replace
    for folder in (new, path):
        folder.mkdir()
        (folder / "name").write_text(folder.name)

    def interrupt_the_new(source: Path, target: Path) -> None:
        if source == new:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupt_the_new)
        with pytest.raises(KeyboardInterrupt):
            replace(new, path)
    assert [(folder / "name").read_text() for folder in (new, path)] == ["new", "old"]
    replace(new, path)
    assert (path / "name").read_text() == "new"
    assert os.listdir(tmp_path) == ["old"]


def test_text_is_the_same_bytes_everywhere_and_for_all_to_read(tmp_path: Path):
    write_text(tmp_path / "a.txt", "one\ntwo \u00e9\n")
    assert (tmp_path / "a.txt").read_bytes() == b"one\ntwo \xc3\xa9\n"
    (tmp_path / "plain.txt").write_text("")
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "plain.txt").stat().st_mode
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.txt", "\ud800")
    assert (tmp_path / "a.txt").read_bytes() == b"one\ntwo \xc3\xa9\n"
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "plain.txt"]
