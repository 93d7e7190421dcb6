"""The scheduler in a thread of its own: requests come from asyncio, and what is written for them goes back there."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue

from transformers_xl.serve.bounds import RequestError, failed
from transformers_xl.serve.scheduler import Scheduler
from transformers_xl.serve.text_request import Progress, TextRequest

logger = logging.getLogger("uvicorn.error")


class Job:
    """The texts that one request of a client has written, until it is closed.

    Args:
        engine: where they are written.
        size: how many.
    """

    def __init__(self, engine: "Engine", size: int):
        self.engine, self.size = engine, size
        self.loop = asyncio.get_running_loop()
        self.progress: asyncio.Queue[tuple[int, Progress] | Exception] = asyncio.Queue()
        self.ids: list[int] = []  # of the scheduler; the engine's thread alone reads and writes them
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[tuple[int, Progress]]:
        """The number of a text, and what is new of it, until all have ended.

        Raises:
            RequestError: the server failed.
        """
        unfinished = self.size
        while unfinished:
            found = await self.progress.get()
            if isinstance(found, Exception):
                raise found
            unfinished -= found[1].finish_reason is not None
            yield found

    def tell(self, found: tuple[int, Progress] | Exception) -> None:
        """Hand something over from the engine's thread."""
        try:
            self.loop.call_soon_threadsafe(self.progress.put_nowait, found)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self.is_closed = True

    def close(self) -> None:
        """Write nothing more for it."""
        if not self.is_closed:
            self.is_closed = True
            self.engine.leave(self)


class Engine:
    """
    Args:
        make_scheduler: makes a scheduler; called again when a step has failed, which loses what it was writing.
        most: texts that are written or wait, of all requests together.

    Attributes:
        num_running, num_waiting: texts that are being written, and that wait.
    """

    def __init__(self, make_scheduler: Callable[[], Scheduler], most: int):
        self.make_scheduler, self.most = make_scheduler, most
        self.scheduler: Scheduler | None = make_scheduler()
        self.commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.owners: dict[int, tuple[Job, int]] = {}
        self.num_open = self.num_running = self.num_waiting = 0  # of which the first is counted by asyncio's thread
        self.is_ending = False
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.thread.start()

    async def submit(self, requests: Sequence[TextRequest]) -> Job:
        """Have texts written; whoever asks closes the job.

        Raises:
            RequestError: too many are waiting, or the server is ending.
            ValueError: the scheduler cannot honour one of them.
        """
        if self.is_ending:
            raise RequestError("The server is ending: ask another one.", status=503)
        if self.num_open + len(requests) > self.most:
            raise RequestError(f"{self.num_open} texts are waiting: ask again later.", status=503, code="overloaded")
        job, added = Job(self, len(requests)), Future[None]()
        self.num_open += job.size
        self.commands.put(lambda: self._add(job, requests, added))
        try:
            await asyncio.wrap_future(added)
        except BaseException:
            job.close()
            raise
        return job

    def leave(self, job: Job) -> None:
        self.num_open -= job.size
        self.commands.put(lambda: self._cancel(job))

    def cut(self) -> None:
        """End what is being written where it is, and take nothing more."""
        self.is_ending = True
        self.commands.put(self._cut)

    def close(self, timeout: float = 1.0) -> None:
        """End the thread behind its step."""
        self.is_ending = True
        self.commands.put(None)
        self.thread.join(timeout)

    def _add(self, job: Job, requests: Sequence[TextRequest], added: Future) -> None:
        if not added.set_running_or_notify_cancel():  # its client has left
            return
        try:
            self.scheduler = self.scheduler or self.make_scheduler()
            for number, request in enumerate(requests):
                request_id = self.scheduler.add(request)
                job.ids.append(request_id)
                self.owners[request_id] = job, number
        except ValueError as error:  # `close` of the job takes the others away
            added.set_exception(error)
        except Exception:
            logger.exception("a request could not be taken")
            added.set_exception(failed())
        else:
            added.set_result(None)

    def _cut(self) -> None:
        for request_id in list(self.owners):
            self._end(request_id)

    def _cancel(self, job: Job) -> None:
        for request_id in job.ids:
            if self.owners.pop(request_id, None) is not None:
                self._end(request_id)

    def _end(self, request_id: int) -> None:
        if self.scheduler is not None:
            self.scheduler.cancel(request_id)

    def _run(self) -> None:
        while True:
            try:
                if not self._obey():
                    return
                self._step()
            except Exception:
                logger.exception("a step of the model failed")
                self._fail()

    def _obey(self) -> bool:
        """Do what was asked for since the last step, or wait until something is; whether to go on."""
        is_idle = not self.owners
        while is_idle or not self.commands.empty():
            command = self.commands.get()
            if command is None:
                return False
            command()
            is_idle = False
        return True

    def _step(self) -> None:
        if self.scheduler is None:
            return
        for progress in self.scheduler.step():
            owner = self.owners.get(progress.request_id)
            if owner is None:  # its client has left
                continue
            if progress.finish_reason is not None:
                del self.owners[progress.request_id]
            owner[0].tell((owner[1], progress))
        self.num_running, self.num_waiting = self.scheduler.num_running, self.scheduler.num_waiting

    def _fail(self) -> None:
        """Tell all who wait; the next request gets a new scheduler, for nobody knows what this one holds."""
        jobs = {id(job): job for job, _ in self.owners.values()}
        self.owners.clear()
        self.scheduler, self.num_running, self.num_waiting = None, 0, 0
        for job in jobs.values():
            job.tell(failed())


__all__ = ["Engine", "Job"]
