"""Files that are written whole or not at all: a failed write leaves what was there before, and nothing else."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WORKSPACE = ".transformers-xl"  # ending of the folders in which something is written until it is whole
# a disk that is full or read-only, or fails, names no file; writers in C++ and Rust have no class of their own for it
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)
SAID_BY_WRITERS = ("iostream error", "unexpected pos", "No space left on device")


@contextmanager
def refused_disk(path: Path) -> Iterator[None]:
    """Let an error of the disk name `path`, which the body writes: it names no file, or one of a hidden workspace.

    Raises:
        OSError: the disk refuses.
    """
    try:
        yield
    except OSError as error:
        is_ours = error.errno in REFUSALS if error.filename is None else WORKSPACE in str(error.filename)
        if not is_ours:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except Exception as error:
        if isinstance(error, ValueError) or not any(said in str(error) for said in SAID_BY_WRITERS):
            raise
        raise OSError(errno.EIO, "it cannot be written, is the disk full?", str(path)) from error


@contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[Path]:
    """A new path, of the same name, to write a file to. It takes the place of `path` when the body ends, and is removed
    when it fails. The folder of `path` is made if need be. Folders: `files/output_folder.py`.

    Raises:
        OSError: a folder or a device is there, or the disk refuses.
    """
    path = Path(path).absolute()
    if path.exists() and not path.is_file():  # root could put a file in the place of /dev/null
        raise FileExistsError(errno.EEXIST, "there is something else than a file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        refused_disk(path),
        tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-", suffix=WORKSPACE) as workspace,
    ):
        new = Path(workspace, path.name)
        yield new
        sync(new)
        os.replace(new, path)


def sync(path: Path) -> None:
    """Let the content of a file, or of all files in a folder, reach the disk: before its name does."""
    for file in (path, *path.rglob("*")):
        if file.is_file():
            with file.open("rb+") as stream:
                os.fsync(stream.fileno())


def replace(new: Path, path: Path) -> None:
    """Move the folder `new` to `path`, beside it. One that is there makes way, and comes back where that fails."""
    old = new.with_name(f"{new.name}.old")
    swaps = path.is_dir()
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


__all__ = ["WORKSPACE", "atomic_write", "refused_disk", "replace", "sync", "write_text"]
