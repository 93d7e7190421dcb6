"""Python programs in processes of their own, forked from one that has imported what they need.

A process that is started anew imports torch and transformers first: four seconds of processor time, more than most programs
take here. What a launcher does itself (`accelerate launch`, `torchrun`) is not seen here: one test starts it in earnest.
"""

import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import pytest
from patience import PATIENCE
from torch.distributed import TCPStore

ROOT = Path(__file__).parents[2]
# nothing of these calls torch while it is imported: a process that has used its threads may not be forked
IMPORTED = [
    "transformers_xl.cli.main",
    "transformers_xl.runs.training_run",
    "transformers_xl.modeling.auto",
    "transformers_xl.serve.server_process",
    "peft",
]


class Finished(NamedTuple):
    """How the processes of a program ended; what all of them wrote, that of the first one first."""

    exit_codes: list[int | None]
    stdout: str
    stderr: str

    @property
    def succeeded(self) -> bool:
        return not any(self.exit_codes)


def run_processes(program: str | Path, *arguments: object, processes: int = 2, **environment: str) -> Finished:
    """`program`, a file or the name of a module, as `torchrun --nproc_per_node` runs it in as many `processes`.

    They meet at a store that is open by then, at a port that the system chose. One process is run as it is.
    """
    server, words = fork_server(), list(map(str, arguments))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = {
        "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        started: list[BaseProcess] = []
        for rank in map(str, range(processes)):
            here = environment | (meeting | {"RANK": rank, "LOCAL_RANK": rank} if processes > 1 else {})
            started.append(server.Process(target=run_program, args=(str(program), words, here, f"{folder}/{rank}")))
            started[-1].start()
        end_together(started)
        written = [
            "".join(Path(f"{folder}/{rank}.{name}").read_text() for rank in range(processes))
            for name in ("out", "err")
        ]
    return Finished([process.exitcode for process in started], *written)


def end_together(processes: list[BaseProcess]) -> None:
    """Wait until all have ended; when one fails, end the others, as `torchrun` does."""
    running, until = {process.sentinel: process for process in processes}, time.monotonic() + PATIENCE
    while running and not any(process.exitcode for process in processes):
        for sentinel in wait(list(running), timeout=until - time.monotonic()) or list(running):
            running.pop(sentinel).join(0)
    for process in processes:
        process.kill()  # does nothing to one that has ended
        process.join()


def fork_server() -> ForkServerContext:
    """The process that others are forked from; it lives as long as the tests."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # the server takes no `sys.path`
        ensure_running()
    return context


def run_program(program: str, arguments: list[str], environment: dict[str, str], written: str) -> None:
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(f"{written}.{name}", os.O_CREAT | os.O_WRONLY)
        os.dup2(file, descriptor)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", buffering=1) for descriptor in (1, 2))
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        sys.path.insert(0, str(Path(program).parent))
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
