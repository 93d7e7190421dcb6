"""One training at a time writes into a folder: two would delete each other's half-written checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import SoftFileLock, Timeout

LOCK = "_training.lock"  # transformers' pushes leave out what begins with an underscore


@contextmanager
def output_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, which names this process, its start and its host. That of a process of this host that has
    died is taken over.

    Raises:
        ValueError: another process holds it; names the process, its host, and since when.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = SoftFileLock(path, timeout=0.5, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"another run writes into this output folder, {_holder(path)}: wait until it ends, or choose another folder. "
            f"Only a process on the same host can be checked; if that run is dead, delete {str(path)!r}."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    try:
        process, host, *_ = path.read_text().splitlines()
        since = datetime.fromtimestamp(path.stat().st_mtime).isoformat(" ", "seconds")
    except (OSError, ValueError):  # it has just been released, or its file is damaged
        return "of which nothing is known"
    # after the name filelock notes the namespace of process ids
    return f"process {process} on host {host.partition('?')[0]!r} since {since}"


__all__ = ["LOCK", "output_lock"]
