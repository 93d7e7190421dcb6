"""Answers over HTTP: whole, or as server-sent events; either ends what is written for it when its client leaves."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.serve.bounds import RequestError, failed
from transformers_xl.serve.engine import Job
from transformers_xl.serve.text_request import Progress, TokenLogprob

logger = logging.getLogger("uvicorn.error")


@dataclass
class Choice:
    """A text as far as it is written."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    finish_reason: str | None = None
    is_cut: bool = False
    memory: Memory | None = None
    unread_ids: tuple[int, ...] = ()

    def take(self, progress: Progress) -> "Choice":
        """Grow by what is new, which is given back.

        Raises:
            RequestError: the server has ended before anything was written.
        """
        is_cut = progress.finish_reason == "cancelled"
        # the protocol has no word for an answer that the end of the server has cut
        reason = "length" if is_cut else progress.finish_reason
        new = Choice(
            progress.text, [*progress.token_ids], [*progress.logprobs], [*progress.prompt_logprobs], reason, is_cut,
            progress.memory, progress.unread_ids,
        )  # fmt: skip
        self.text += new.text
        self.token_ids += new.token_ids
        self.logprobs += new.logprobs
        self.prompt_logprobs += new.prompt_logprobs
        if reason is not None:
            self.finish_reason, self.is_cut = reason, is_cut
            self.memory, self.unread_ids = new.memory, new.unread_ids
        if is_cut and not self.token_ids:
            raise RequestError("The server is ending: ask another one.", status=503)
        return new


async def collected(job: Job) -> list[Choice]:
    """All texts of a job, at their ends."""
    choices = [Choice() for _ in range(job.size)]
    async for number, progress in job:
        choices[number].take(progress)
    return choices


async def unless_left(request: Request, work: Coroutine[Any, Any, Any], close: Callable[[], None]) -> Any:
    """What `work` gives; it is ended where the client leaves before. `close` is called in any case.

    Raises:
        RequestError: the client has left.
    """

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise RequestError("The client has left.", status=499)
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        close()


class EventStream(StreamingResponse):
    """Server-sent events; `close` is called at the end, or when the client leaves, or reads nothing for `seconds`."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[dict[str, Any] | str],
        close: Callable[[], None],
        seconds: float,
        named: bool = False,
    ):
        super().__init__(written(events, named), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self.close, self.seconds = close, seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_in_time(message: Any) -> None:
            async with asyncio.timeout(self.seconds):  # the buffer of a client that does not read is full
                await send(message)

        try:
            async with aclosing(self.body_iterator):  # type: ignore[type-var]  # a generator, from `written`
                with suppress(TimeoutError, ClientDisconnect):
                    await super().__call__(scope, receive, send_in_time)
        finally:
            self.close()


async def written(events: AsyncIterator[dict[str, Any] | str], named: bool) -> AsyncIterator[bytes]:
    """Events as bytes; an error ends them as the last one. `named`: each with its type, as those of a response."""

    def of(event: dict[str, Any] | str) -> bytes:
        head = f"event: {event['type']}\n" if named and isinstance(event, dict) else ""
        data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        return f"{head}data: {data}\n\n".encode()

    count = 0
    try:
        async for event in events:
            count += 1
            yield of(event)
    except Exception as error:
        if not isinstance(error, RequestError):
            logger.exception("an answer failed")
            error = failed()
        body = error.body()
        yield of({**body["error"], "type": "error", "sequence_number": count} if named else body)


__all__ = ["Choice", "EventStream", "collected", "unless_left"]
