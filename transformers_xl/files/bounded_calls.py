"""Calls whose time and memory somebody else's file decides: each in a process that the system ends at a bound.

Limits inside of a library hold for the ways to be slow that somebody has thought of. Those of a process hold for all.
"""

import json
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 3  # of processor time: a busy machine changes nothing
MEMORY = 1 << 29  # bytes beside those that the process has already
MAX_RESULT = 1 << 24  # bytes of JSON
PAGES = Path("/proc/self/statm")  # of Linux
FAILED = 1  # exit status of a call that raised


def bounded(
    function: Callable[..., Any], *arguments: Any, seconds: int = SECONDS, memory: int = MEMORY, most: int = MAX_RESULT
) -> Any:
    """The value of `function(*arguments)`, a text or what else JSON can say, computed in a copy of this process.

    Nothing that the call changes is seen here. Where the system has no `fork` (Windows) it is called without bounds; where
    it has no /proc (macOS) memory has none.

    Args:
        function: what is called. It must use no thread and no GPU: the copy has neither.
        arguments: its arguments.
        seconds: of processor time.
        memory: bytes that it may take beside what the process has.
        most: bytes of the value in JSON.

    Raises:
        ValueError: it needs more, ended its process, or raised an error, whose type and message are named.
    """
    if not hasattr(os, "fork"):
        return function(*arguments)
    reading, writing = os.pipe()
    with _quiet_fork():
        child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(writing, function, arguments, seconds, memory)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as stream:
            data = stream.read(most + 1)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    if len(data) > most:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if len(data) > most:
        raise ValueError(f"it makes more than {most:,} bytes")
    return _value(code, data, seconds, memory)


def _value(code: int, data: bytes, seconds: int, memory: int) -> Any:
    """What a process that ended with `code` has answered."""
    if code == -signal.SIGXCPU:
        raise ValueError(f"it takes more than {seconds} s of processor time")
    if code not in (0, FAILED) or not data:
        raise ValueError(f"it ends the process that reads it (status {code})")
    answer = json.loads(data)
    if code == FAILED and answer == MemoryError.__name__:
        raise ValueError(f"it takes more than {memory >> 20:,} MiB of memory")
    if code == FAILED:
        raise ValueError(answer)
    return answer


def _answer(writing: int, function: Callable[..., Any], arguments: tuple, seconds: int, memory: int) -> None:
    """Write the value of a call in JSON, or what it raised, and end this process."""
    code = FAILED
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # what a library asks or says here is neither answered nor seen
            os.dup2(nowhere, descriptor)
        try:
            _limit(seconds, memory)
            data = json.dumps(function(*arguments)).encode()
            code = 0
        except MemoryError:
            data = json.dumps(MemoryError.__name__).encode()
        except Exception as error:
            kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
            data = json.dumps(f"{kind}{str(error)[:2000]}").encode()
        with os.fdopen(writing, "wb") as stream:
            stream.write(data)
    finally:
        os._exit(code)


def _limit(seconds: int, memory: int) -> None:
    import resource  # not on Windows

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    if PAGES.is_file():
        size = int(PAGES.read_text().split()[0]) * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


@contextmanager
def _quiet_fork() -> Iterator[None]:
    """Without the warnings of Python and of tokenizers that a copy has no threads: it wants none."""
    known = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            yield
        finally:
            if known is None:
                del os.environ["TOKENIZERS_PARALLELISM"]


__all__ = ["bounded"]
