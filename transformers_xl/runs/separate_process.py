"""A call in a separate process, forked from one that has imported the libraries and done nothing else: its peak of memory
is its own, and what fails takes nothing else with it."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any, cast


def in_a_process(function: Callable, *arguments: Any) -> Any:
    """The result of a call in a new process, which ends with this one.

    Raises:
        OSError: the process was killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])
    with ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=end_with_parent) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise OSError(
                "the process of a run was killed, perhaps because memory ran out: the same command resumes it."
            ) from error


def end_with_parent() -> None:
    """End this process when the one that asked for it ends: a command that is killed must not go on training."""

    def wait() -> None:
        cast(BaseProcess, multiprocessing.parent_process()).join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


__all__ = ["end_with_parent", "in_a_process"]
