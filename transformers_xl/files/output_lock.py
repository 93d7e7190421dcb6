"""One process at a time writes a folder or a file: two trainings would delete each other's half-written checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import SoftFileLock, Timeout

LOCK = "_training.lock"  # transformers' pushes leave out what begins with an underscore
FOLDER_TAKEN = "another run writes into this output folder, {holder}: wait until it ends, or choose another folder"


@contextmanager
def output_lock(path: Path, taken: str = FOLDER_TAKEN) -> Iterator[None]:
    """Hold the lock file `path`, which names this process, its start and its host. That of a process of this host that has
    died is taken over. `taken`: what is said where another process has it, the `{holder}`.

    Raises:
        ValueError: another process holds it; names the process, its host, and since when.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = SoftFileLock(path, timeout=0.5, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"{taken.format(holder=_holder(path))}. Only a process on the same host can be checked; if that one is dead, "
            f"delete {str(path)!r}."
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
