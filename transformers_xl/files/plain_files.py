"""Files that anybody may have written, read up to a bound: never a pipe or a device, which may have no end."""

import stat
from pathlib import Path


def check_regular(path: Path) -> None:
    """Raise a `ValueError` where `path` is there and is no file with an end, such as a named pipe or a device.

    Folders are let through: who opens one is told so.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError(f"{str(path)!r} is a pipe or a device: give a regular file.")


def check_folder(folder: Path) -> None:
    """Raise a `ValueError` where something in `folder`, of which any may be opened, is no file with an end."""
    for path in sorted(folder.iterdir()):
        check_regular(path)


def read_plain(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file.

    Raises:
        ValueError: it is none, or longer than `max_bytes`.
        OSError: it cannot be read.
    """
    check_regular(path)
    with path.open("rb") as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{str(path)!r} is longer than {max_bytes:,} bytes: this is not such a file.")
    return data


def read_text(path: Path, max_bytes: int) -> str:
    """The text of a regular file in UTF-8, without a byte order mark.

    Raises:
        ValueError: it is none, or longer than `max_bytes`.
        OSError: it cannot be read.
    """
    try:
        return read_plain(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is not UTF-8 ({error}).") from error


__all__ = ["check_folder", "check_regular", "read_plain", "read_text"]
