"""Calls whose time and memory somebody else's file decides: each in a process that the system ends at a bound.

Limits inside of a library hold for the ways to be slow that somebody has thought of. Those of a process hold for all.
"""

import json
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
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


class BoundedCalls:
    """As [`bounded`], for a function that is called often: its process is kept, until a call in it goes wrong.

    The process has no open file of this one. It ends when this one does, however that ends. One thread may call at a time.

    Args:
        function: as in [`bounded`]; what a call changes the next one may see.
        seconds: of processor time, for each call.
        memory: bytes that all calls together may take beside what this process has when theirs begins.
    """

    def __init__(self, function: Callable[..., Any], seconds: int = SECONDS, memory: int = MEMORY):
        self.function, self.seconds, self.memory = function, seconds, memory
        self.child = 0
        self.asking: Any = None  # files, while there is a child
        self.hearing: Any = None

    def __call__(self, *arguments: Any, most: int = MAX_RESULT) -> Any:
        """The value of a call whose arguments JSON can say.

        Raises:
            ValueError: as [`bounded`].
        """
        if not hasattr(os, "fork"):
            return self.function(*arguments)
        self.start()
        data = b""
        try:
            self.asking.write(json.dumps(arguments).encode() + b"\n")
            self.asking.flush()
            data = self.hearing.readline(most + 2)  # with the status before it, and the end of the line
        except BrokenPipeError:
            pass
        if data.endswith(b"\n"):
            return _value(data[0] - ord("0"), data[1:], self.seconds, self.memory)
        code = self.end()
        if len(data) > most:
            raise ValueError(f"it makes more than {most:,} bytes")
        return _value(code or -signal.SIGKILL, b"", self.seconds, self.memory)

    def start(self) -> None:
        """Begin the process, if there is none."""
        if self.child or not hasattr(os, "fork"):
            return
        (questions, asking), (hearing, answers) = os.pipe(), os.pipe()
        with _quiet_fork():
            child = os.fork()
        if child == 0:
            _answer_all(questions, answers, self.function, self.seconds, self.memory)
        os.close(questions)
        os.close(answers)
        self.child, self.asking, self.hearing = child, os.fdopen(asking, "wb"), os.fdopen(hearing, "rb")

    def end(self) -> int:
        """End the process, if there is one; its exit code."""
        if not self.child:
            return 0
        child, self.child = self.child, 0
        with suppress(BrokenPipeError):
            self.asking.close()
        self.hearing.close()
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
        return os.waitstatus_to_exitcode(status)


def _answer_all(questions: int, answers: int, function: Callable[..., Any], seconds: int, memory: int) -> None:
    """Write a line for each line that is read, with the status of a call and its value in JSON, and end this process."""
    import resource  # not on Windows

    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        ends = [2, *sorted((questions, answers)), resource.getrlimit(resource.RLIMIT_NOFILE)[0]]
        for before, after in pairwise(ends):  # what else is open is of the other process
            os.closerange(before + 1, after)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other process
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _limit(seconds, memory, resource.RLIM_INFINITY)
        with os.fdopen(questions, "rb") as lines, os.fdopen(answers, "wb") as stream:
            for line in lines:
                used = resource.getrusage(resource.RUSAGE_SELF)
                until = int(used.ru_utime + used.ru_stime) + 1 + seconds
                resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
                code, data = _called(function, json.loads(line))
                stream.write(b"%d%s\n" % (code, data))
                stream.flush()
    finally:
        os._exit(FAILED)


def _called(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[int, bytes]:
    """The status of a call, and its value or what it raised in JSON."""
    try:
        return 0, json.dumps(function(*arguments)).encode()
    except MemoryError:
        return FAILED, json.dumps(MemoryError.__name__).encode()
    except Exception as error:
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        return FAILED, json.dumps(f"{kind}{str(error)[:2000]}").encode()


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
        _limit(seconds, memory, seconds + 1)
        code, data = _called(function, arguments)
        with os.fdopen(writing, "wb") as stream:
            stream.write(data)
    finally:
        os._exit(code)


def _limit(seconds: int, memory: int, most_seconds: int) -> None:
    import resource  # not on Windows

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, most_seconds))
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


__all__ = ["BoundedCalls", "bounded"]
