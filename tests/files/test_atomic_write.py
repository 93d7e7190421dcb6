"""A write that fails or is interrupted leaves what was there before, and nothing beside it."""

import os
from pathlib import Path

import pytest

from transformers_xl.files.atomic_write import atomic_write, output_folder, write_text


def content(path: Path) -> dict[str, str] | str | None:
    """Of a file or a folder, None where there is nothing."""
    if path.is_dir():
        return {file.name: file.read_text() for file in path.iterdir()}
    return path.read_text() if path.exists() else None


def write(path: Path, kind: str, text: str) -> None:
    if kind == "folder":
        path.mkdir()
        path /= "inner.txt"
    path.write_text(text)


def expected(kind: str, text: str):
    return {"inner.txt": text} if kind == "folder" else text


KINDS = pytest.mark.parametrize("kind", ["file", "folder"])


@KINDS
@pytest.mark.parametrize("exists", [False, True])
def test_what_is_whole_takes_its_place(tmp_path: Path, kind: str, exists: bool):
    path = tmp_path / "deep" / "result.out"
    if exists:
        path.parent.mkdir()
        write(path, kind, "old")
    with atomic_write(path) as new:
        assert new.name == path.name
        write(new, kind, "new")
        assert content(path) == (expected(kind, "old") if exists else None)
    assert content(path) == expected(kind, "new")
    assert os.listdir(path.parent) == ["result.out"]


@KINDS
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("step", ["body", "fsync", "replace", "second replace"])
def test_what_fails_leaves_what_was_there(tmp_path: Path, monkeypatch, kind: str, exists: bool, step: str):
    path = tmp_path / "result.out"
    if exists:
        write(path, kind, "old")
    before, real_replace = content(path), os.replace

    def interrupt(*args) -> None:
        raise KeyboardInterrupt

    def interrupt_the_new(source: Path, target: Path) -> None:
        (real_replace if ".old" in (Path(source).suffix, Path(target).suffix) else interrupt)(source, target)

    def attempt() -> None:
        with atomic_write(path) as new:
            write(new, kind, "half")
            if step == "body":
                interrupt()

    with monkeypatch.context() as patch:
        if step != "body":
            patch.setattr(os, step.split()[-1], interrupt_the_new if step == "second replace" else interrupt)
        with pytest.raises(KeyboardInterrupt):
            attempt()
    assert content(path) == before
    assert os.listdir(tmp_path) == (["result.out"] if exists else [])


@pytest.mark.parametrize("kinds", [("file", "folder"), ("folder", "file")], ids=" over ".join)
def test_a_file_does_not_take_the_place_of_a_folder_nor_a_folder_that_of_a_file(tmp_path: Path, kinds: tuple):
    path = tmp_path / "result.out"
    write(path, kinds[1], "old")
    with pytest.raises(OSError, match=r"result\.out"), atomic_write(path) as new:
        write(new, kinds[0], "new")
    assert content(path) == expected(kinds[1], "old")
    assert os.listdir(tmp_path) == ["result.out"]


def test_text_is_the_same_bytes_everywhere_and_for_all_to_read(tmp_path: Path):
    write_text(tmp_path / "a.txt", "one\ntwo \u00e9\n")
    assert (tmp_path / "a.txt").read_bytes() == b"one\ntwo \xc3\xa9\n"
    (tmp_path / "plain.txt").write_text("")
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "plain.txt").stat().st_mode
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.txt", "\ud800")
    assert (tmp_path / "a.txt").read_bytes() == b"one\ntwo \xc3\xa9\n"
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "plain.txt"]


def test_an_output_folder_has_one_writer(tmp_path: Path):
    with output_folder(tmp_path / "model") as new:
        (new / "config.json").write_text("{}")
        with pytest.raises(ValueError, match="another run"), output_folder(tmp_path / "model"):
            pass
    assert content(tmp_path / "model") == {"config.json": "{}"}
    assert os.listdir(tmp_path) == ["model"]
