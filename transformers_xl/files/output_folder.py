"""Folders that commands write. A new one takes the place of an old one when it is whole, and what no command wrote stays.

A process may be killed at any write. What it was writing, and an old folder on its way out, lie in a workspace beside the
output, of a name that nobody else has; the next command that writes the same output clears up, and says so.
"""

import glob
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from transformers_xl.files.atomic_write import WORKSPACE, refused_disk, sync
from transformers_xl.files.output_lock import output_lock
from transformers_xl.files.written import (
    files_in,
    is_untouched,
    not_written,
    record_of,
    remove_written,
    write_record,
)

logger = logging.getLogger(__name__)  # without a handler, Python writes warnings to stderr
KEYS = ("config.json", "adapter_config.json")  # a folder without one of them is not taken for a model


def check_replaceable(folder: Path) -> None:
    """Raise a `ValueError` where `folder` cannot make way for a new one: something in it was written by no command."""
    folder = _real(folder)
    found = not_written(folder) if folder.is_dir() else None
    if found is not None:
        raise ValueError(
            f"`output`={str(folder)!r} holds {str(found.relative_to(folder))!r}, which no command of this package has "
            "recorded as its own: --overwrite deletes nothing else. Choose another folder, or move it away."
        )


@contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """A new folder, of the same name, that takes the place of `path` when the body ends, and is removed when it fails.
    Where `path` is a link, its target is replaced.

    Raises:
        ValueError: another command writes `path`.
        OSError: a file is there, or the disk refuses.
    """
    path = _real(path)
    with refused_disk(path), _locked(path), _workspace(path) as workspace:
        new = workspace / path.name
        new.mkdir()
        yield new
        write_record(new, files_in(new))
        sync(new)
        _swap(new, path, workspace)


def run_to_resume(path: Path) -> Path:
    """Where the run lies that `--resume` continues: beside `path`, where one is to take its place that has not ended.

    Raises:
        ValueError: that one has no checkpoint.
    """
    new = _unfinished(path)
    if not _is_run(new, _real(path)):
        return path
    if not _has_checkpoint(new):
        raise ValueError(
            f"{str(new)!r} holds a run without a checkpoint: where it has ended, begin it again with `--overwrite`, or "
            f"delete it to resume the run in {str(path)!r}."
        )
    return new


def check_new_run(path: Path) -> None:
    """Raise a `ValueError` where no new run can be written for the output `path`: one is there that has not ended, or
    another folder has its name."""
    path, new = _real(path), _unfinished(path)
    is_run = _is_run(new, path)
    if is_run and _has_checkpoint(new):
        raise ValueError(
            f"{str(new)!r} holds a run that has not ended and is to take the place of {str(path)!r}: resume it with "
            f"`transformers-xl train --resume -o {path}`, or delete it."
        )
    if not (is_untouched(path) or is_run or is_untouched(new)):
        raise ValueError(
            f"{str(new)!r} is where the new run is written, and is taken: move it, or choose another output."
        )


@dataclass
class RunFolder:
    """The folder that a run writes into while it lasts.

    Attributes:
        path: the folder; that of the output, or one beside it where the output holds another model.
        output: the output.
    """

    path: Path
    output: Path

    def put_in_place(self, final: Path) -> None:
        """Let the files of `final`, a folder in `path`, take their places in it, each of them whole: the model can be read
        when all of them are there. Then let the folder take the place of the output."""
        sync(final)
        files = files_in(final)
        places = [self.path / file.relative_to(final) for file in files]
        write_record(self.path, places, record_of(self.path).get("replaces"))
        for key in KEYS:
            (self.path / key).unlink(missing_ok=True)
        for file, place in sorted(zip(files, places, strict=True), key=lambda each: each[0].name in KEYS):
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)
        shutil.rmtree(final)
        if self.path != self.output:
            with _workspace(self.output) as workspace:
                _swap(self.path, self.output, workspace)
            write_record(self.output, [])  # it replaces nothing any more


@contextmanager
def run_folder(path: Path, resume: bool) -> Iterator[RunFolder]:
    """The folder of a run that writes into it while it lasts. A model that is in `path` stays there until the new one is
    whole: the run is `NAME.new` until then. Where the body fails before there is a checkpoint, what it wrote is removed.

    Raises:
        ValueError: another command writes `path`, or `NAME.new` is taken.
    """
    path, new = _real(path), _unfinished(path)
    with refused_disk(path), _locked(path):
        if not resume:
            check_new_run(path)
        folder = run_to_resume(path) if resume else path if is_untouched(path) else new
        if folder == new:
            logger.warning(f"The run is {str(new)!r} until it has ended, and takes the place of {str(path)!r} then.")
        folder.mkdir(exist_ok=True)
        if not resume:
            write_record(folder, [], path.name if folder == new else None)
        try:
            yield RunFolder(folder, path)
        except BaseException:
            if not resume and not _has_checkpoint(folder):
                remove_written(folder)
            raise


def _real(path: Path) -> Path:
    """The folder that is meant: what a link leads to, not the link."""
    return Path(os.path.realpath(path))


def _unfinished(path: Path) -> Path:
    path = _real(path)
    return path.parent / f"{path.name}.new"


def _is_run(new: Path, path: Path) -> bool:
    """Whether `new` is a run that is to take the place of `path`, not a folder that merely has this name."""
    return record_of(new).get("replaces") == path.name


def _has_checkpoint(folder: Path) -> bool:
    return any(folder.glob("checkpoint-*"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    if not path.name:
        raise ValueError(f"`output`={str(path)!r} cannot be replaced: name a folder in it.")
    with output_lock(path.parent / f".{path.name}.lock"):
        _clear_up(path)
        yield


@contextmanager
def _workspace(path: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-", suffix=WORKSPACE))
    try:
        yield folder
    finally:
        _remove_workspace(folder, path)


def _old(workspace: Path, path: Path) -> Path:
    """Where the old folder is while the new one takes its place."""
    return workspace / f"{path.name}.old"


def _swap(new: Path, path: Path, workspace: Path) -> None:
    """Let the folder `new` take the place of `path`, which comes back where that fails. An old folder in which somebody has
    put a file meanwhile is kept."""
    if not path.is_dir():
        os.replace(new, path)
        return
    old = _old(workspace, path)
    os.replace(path, old)
    try:
        os.replace(new, path)
    except BaseException:
        os.replace(old, path)
        raise
    _dispose(old, path)


def _dispose(old: Path, path: Path) -> None:
    """Give the folder that was replaced up: to be removed with its workspace, or kept beside the new one."""
    found = not_written(old)
    if found is None:
        os.replace(old, old.with_name("replaced"))
    else:
        _keep(old, path, f"no command of this package has recorded its {str(found.relative_to(old))!r} as its own")


def _keep(old: Path, path: Path, why: str) -> None:
    kept = Path(tempfile.mkdtemp(dir=path.parent, prefix=f"{path.name}.old-"))
    os.replace(old, kept)  # an empty folder makes way
    logger.warning(f"The old {str(path)!r} is kept as {str(kept)!r}: {why}.")


def _remove_workspace(folder: Path, path: Path) -> None:
    """What is only half there, or was replaced; never an old folder that is still to come back."""
    if not _old(folder, path).exists():
        for name in (path.name, "replaced"):
            shutil.rmtree(folder / name, ignore_errors=True)
        with suppress(OSError):
            folder.rmdir()


def _clear_up(path: Path) -> None:
    """What a command left that was killed while it wrote `path`. Whole folders take their places."""
    for left in sorted(path.parent.glob(f".{glob.escape(path.name)}-????????{WORKSPACE}")):
        old, new = _old(left, path), left / path.name
        if old.is_dir() and not path.exists():
            found = new if new.is_dir() else old  # the old one made way when the new one was whole
            os.replace(found, path)
            which = "The new" if found == new else "The old"
            logger.warning(f"{which} {str(path)!r} is in its place again: a command was killed while it wrote there.")
        if old.is_dir():
            was_replaced = not (
                new.is_dir() or _is_run(_unfinished(path), path)
            )  # else somebody made `path` meanwhile
            _dispose(old, path) if was_replaced else _keep(old, path, "the new one did not take its place")
        _remove_workspace(left, path)


__all__ = ["RunFolder", "check_new_run", "check_replaceable", "output_folder", "run_folder", "run_to_resume"]
