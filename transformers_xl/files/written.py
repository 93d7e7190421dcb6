"""What a command wrote into a folder, by the folder's own record: nothing else in it is ever deleted."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers_xl.files.atomic_write import WORKSPACE, write_text
from transformers_xl.files.json_files import read_json
from transformers_xl.files.output_lock import LOCK

RECORD = ".written.json"  # not pushed: it begins with a dot
# what a training makes and deletes while it runs
OF_A_RUN = re.compile(r"checkpoint-\d+|_saving-checkpoint-\d+(\.old)?|_push-\w+|_final|" + re.escape(LOCK))

OF_A_WRITE = re.compile(r"\..+-\w{8}" + re.escape(WORKSPACE))  # of one that was killed


def record_of(folder: Path) -> dict[str, Any]:
    """The record of a folder: `files`, their paths in it; and `replaces`, the name of the folder beside it that an
    unfinished run is to take the place of. Without `files` where there is none, or it is damaged."""
    try:
        record = read_json(folder / RECORD)
    except (OSError, ValueError):
        return {"files": []}
    files = record.get("files")
    return record | {"files": files if isinstance(files, list) else []}


def write_record(folder: Path, files: Iterable[Path], replaces: str | None = None) -> None:
    """Note that a command wrote `files` into `folder`, beside those that are noted already."""
    found = {file.relative_to(folder).as_posix() for file in files} | set(record_of(folder)["files"])
    marked = {} if replaces is None else {"replaces": replaces}
    write_text(folder / RECORD, json.dumps(marked | {"files": sorted(found)}, indent=1) + "\n")


def extend_record(folder: Path, files: Iterable[Path]) -> None:
    """As [`write_record`], where the folder has a record: one that another program wrote gets none. To be called before
    `files` are written: a process may be killed between the two."""
    if (folder / RECORD).is_file():
        write_record(folder, files, record_of(folder).get("replaces"))


def files_in(folder: Path) -> list[Path]:
    """All files and links of a folder and its sub-folders; a link to a folder is not followed."""
    return [
        Path(root, name)
        for root, folders, files in os.walk(folder)
        for name in sorted([*files, *(each for each in folders if Path(root, each).is_symlink())])
    ]


def is_untouched(folder: Path) -> bool:
    """Whether nothing is in a folder, or there is none; what is left of a write that was killed does not count."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(OF_A_WRITE.fullmatch(each.name) for each in folder.iterdir())


def not_written(folder: Path) -> Path | None:
    """A file in a folder that no command wrote, by its record; None where all are."""
    return next((file for file, is_ours in _owned(folder) if not is_ours), None)


def _owned(folder: Path) -> Iterator[tuple[Path, bool]]:
    known = {RECORD, *record_of(folder)["files"]}
    for file in files_in(folder):
        name = file.relative_to(folder)
        is_ours = name.as_posix() in known or OF_A_RUN.fullmatch(name.parts[0]) is not None
        # event files are TensorBoard's, which writes them while a training runs
        is_ours = is_ours or "tfevents" in name.name or any(map(OF_A_WRITE.fullmatch, name.parts[:-1]))
        yield file, is_ours


def remove_written(folder: Path) -> None:
    """Remove what a command wrote into a folder, and the folder where nothing else is in it."""
    for file, is_ours in list(_owned(folder)):
        if is_ours:
            file.unlink()
    for root, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # something else is in it
            os.rmdir(root)


__all__ = [
    "RECORD",
    "extend_record",
    "files_in",
    "is_untouched",
    "not_written",
    "record_of",
    "remove_written",
    "write_record",
]
