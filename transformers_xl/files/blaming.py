"""Errors of libraries that read a file, with the name of the file."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sentence(error: BaseException) -> str:
    """The message in one line of text that any terminal can show."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line.encode("utf-8", "backslashreplace").decode("utf-8")


@contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Make an error of any kind in the body, where a library reads the file `path`, a `ValueError` that names it."""
    try:
        yield
    except Exception as error:
        said = sentence(error)
        if isinstance(error, ValueError | OSError) and str(path) in said:
            raise
        cause = error.__cause__ if type(error).__name__ == "DatasetGenerationError" else None  # it says nothing itself
        said = said if cause is None else sentence(cause)
        kind = "" if isinstance(error, ValueError | OSError) or cause else f"{type(error).__name__}: "
        raise ValueError(f"{str(path)!r} cannot be read: {kind}{textwrap.shorten(said, 300)}") from error


@contextmanager
def renamed(fields: dict[str, str]) -> Iterator[None]:
    """Let a `ValueError` in the body name the `fields` of a run where it names arguments of the library."""
    try:
        yield
    except ValueError as error:
        said = str(error)
        for argument, name in fields.items():
            said = said.replace(f"`{argument}`", f"`{name}`")
        if said == str(error):
            raise
        raise ValueError(said) from error


__all__ = ["blamed", "renamed", "sentence"]
