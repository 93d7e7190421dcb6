"""Files and folders that are written whole or not at all: a failed write leaves what was there before, and nothing else."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers_xl.files.output_lock import output_lock


@contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[Path]:
    """A new path, of the same name, to write a file or a folder to. It takes the place of `path` when the body ends, and is
    removed when it fails. The folder of `path` is made if need be.

    Raises:
        OSError: something of the other kind is there, or the disk refuses.
    """
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as workspace:
        new = Path(workspace, path.name)
        yield new
        for file in (new, *new.rglob("*")):
            if file.is_file():  # its content reaches the disk before its name does
                with file.open("rb+") as stream:
                    os.fsync(stream.fileno())
        replace(new, path)


def replace(new: Path, path: Path) -> None:
    """Move `new` to `path`, beside which it lies. A folder that is there makes way, and comes back where that fails."""
    old = new.with_name(f"{new.name}.old")
    swaps = new.is_dir() and path.is_dir()
    if swaps:
        os.replace(path, old)
    try:
        os.replace(new, path)
    except BaseException:
        if swaps:
            os.replace(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def write_text(path: str | os.PathLike, text: str) -> None:
    """A text file in UTF-8, the same bytes on every system."""
    with atomic_write(path) as new:
        new.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """A new folder that takes the place of `path` when the body ends, and is removed when it fails.

    Raises:
        ValueError: another command writes `path`.
    """
    path = path.absolute()
    with output_lock(path.with_name(f".{path.name}.lock")), atomic_write(path) as new:
        new.mkdir()
        yield new


@contextmanager
def run_folder(path: Path, goes_on: bool) -> Iterator[Path]:
    """The folder of a run that writes into it while it lasts. What was there is replaced as soon as the new run has a
    checkpoint, and comes back where the body fails before.

    Args:
        path: the folder.
        goes_on: the run that is there goes on: nothing is replaced.

    Raises:
        ValueError: another command writes `path`.
    """
    path = path.absolute()
    with output_lock(path.with_name(f".{path.name}.lock")):
        if goes_on:
            yield path
            return
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)  # of a command that was killed
        if path.exists():
            os.replace(path, old)
        path.mkdir()
        try:
            yield path
        except BaseException:
            if not any(path.glob("checkpoint-*")):
                shutil.rmtree(path)
                if old.exists():
                    os.replace(old, path)
            raise
        finally:
            shutil.rmtree(old, ignore_errors=True)


def move_files(new: Path, path: Path) -> None:
    """Let the files of the folder `new`, which lies in the folder `path`, take their places there, each of them whole."""
    for file in sorted(file for file in new.rglob("*") if file.is_file()):
        place = path / file.relative_to(new)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, place)
    shutil.rmtree(new)


__all__ = ["atomic_write", "move_files", "output_folder", "replace", "run_folder", "write_text"]
