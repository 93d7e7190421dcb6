"""What is there when a process is killed at a write, or when the disk is full from one on: at each write in turn.

A write is what changes a folder by Python's own calls: a file that is opened to be written, a rename, a removal, a folder.
As a program: `killed.py NUMBER END FOLDER WORDS...` runs the command of these words.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

KILLED = 9
GROWS = ("open", "os.mkdir")  # what a full disk refuses: renames and removals need no room
PATHS = {"open": 1, "os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.link": 2, "os.symlink": 2}


def end_at(number: int, end: str, folder: Path, outside_workspaces: bool = False) -> None:
    """From here on this process ends at the write `number` below `folder` (`end`="kill"), or has no room from it on
    ("full").

    `outside_workspaces`: what is written inside of a workspace, which nobody else reads, does not count.
    """
    left = count(number, -1)

    def watch(event: str, arguments: tuple) -> None:
        if event not in PATHS or (event == "open" and not is_writing(arguments[2])):
            return
        paths = [
            os.fsdecode(path) for path in arguments[: PATHS[event]] if isinstance(path, str | bytes | os.PathLike)
        ]
        below = [path for path in paths if path.startswith(str(folder)) or not os.path.isabs(path)]
        if not below or (outside_workspaces and all(".transformers-xl/" in path for path in below)):
            return
        if end == "kill" and next(left) == 0:
            os._exit(KILLED)
        if end == "full" and event in GROWS and next(left) <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), paths[0])

    sys.addaudithook(watch)


def is_writing(flags: int | None) -> bool:
    return bool(flags and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def killed_at_each_write(folder: Path, prepare: Callable[[], None], action: Callable[[], None]) -> Iterator[int]:
    """Let `action` be killed at each write in turn, in a fork of this process, each time after `prepare`; at last it ends
    by itself. It may write files alone: a fork has none of the threads of torch."""
    for number in count():
        prepare()
        pid = os.fork()
        if not pid:
            end_at(number, "kill", folder)
            try:
                action()
            finally:
                os._exit(int(sys.exc_info()[0] is not None))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, KILLED)
        yield number
        if status == 0:
            return


if __name__ == "__main__":
    from transformers_xl.cli.main import app

    end_at(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), outside_workspaces=sys.argv[2] == "kill")
    app(sys.argv[4:], prog_name="transformers-xl")
