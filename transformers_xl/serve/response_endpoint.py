"""`/v1/responses`: turns of sessions that the server remembers, each read once.

A turn continues an answer (`previous_response_id`) or a conversation (`conversation`): the model reads its own tokens
alone, however long the session is. Every answer is kept, so that any of them can be continued again, in another way.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from fastapi import Request
from starlette.responses import JSONResponse, Response

from transformers_xl.serve.answers import Choice, EventStream, unless_left
from transformers_xl.serve.bounds import RequestError
from transformers_xl.serve.engine import Job
from transformers_xl.serve.protocol import LOGPROBS, ResponseRequest
from transformers_xl.serve.request_messages import Message
from transformers_xl.serve.response_events import ResponseEvents
from transformers_xl.serve.service import Service
from transformers_xl.serve.session_store import Past, new_id


class Turn(NamedTuple):
    """One turn while it is written.

    Args:
        body: the request.
        response: what is answered, without what is written.
        job: that writes it.
        keep: takes the whole answer and what was written, and returns when it is on the disk.
    """

    body: ResponseRequest
    response: dict[str, Any]
    job: Job
    keep: Callable[[dict[str, Any], Choice], None] | None


class Responses:
    """The endpoints of responses."""

    def __init__(self, service: Service):
        self.service = service

    async def create(self, request: Request) -> Response:
        body = await self.service.body(request, ResponseRequest)
        self.check(body)
        with ExitStack() as stack:
            turn = await self.begin(body, stack)
            closing = stack.pop_all()
        events = ResponseEvents(self.service, turn, closing.close)
        if body.stream:
            return EventStream(events.all(), events.close, self.service.bounds.seconds, named=True)
        return JSONResponse(await unless_left(request, events.last(), events.close))

    async def retrieve(self, response_id: str) -> Response:
        store = self.service.sessions("id")
        return JSONResponse(await asyncio.to_thread(store.response, response_id))

    async def delete(self, response_id: str) -> Response:
        await asyncio.to_thread(self.service.sessions("id").delete, "resp", response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    def check(self, body: ResponseRequest) -> None:
        if body.top_logprobs is not None and LOGPROBS not in body.include:
            said = f"`top_logprobs` is for `include`=[{LOGPROBS!r}]: leave it out."
            raise RequestError(said, "top_logprobs")
        if body.previous_response_id is not None and body.conversation is not None:
            said = "`previous_response_id` and `conversation` both say what to continue: give one."
            raise RequestError(said, "previous_response_id")
        if body.store is False and body.conversation is not None:
            raise RequestError("`store`=false: a conversation keeps its turns; leave it out.", "store")
        for name in ("store", "previous_response_id", "conversation"):
            if getattr(body, name) not in (None, False):
                self.service.sessions(name)

    async def begin(self, body: ResponseRequest, stack: ExitStack) -> Turn:
        """Have the answer of a turn written; what `stack` holds is to be closed when it ends."""
        past = await self.past(body, stack)
        ids = await self.ids(body, past)
        count = self.service.new_tokens(max_output_tokens=body.max_output_tokens)
        memory = None if past is None else past.memory
        grammar = await self.service.grammar(body.text.format, "text.format")
        top = (body.top_logprobs or 0) if LOGPROBS in body.include else None
        wanted = self.service.wanted(body, ids, count, memory=memory, top_logprobs=top, grammar=grammar)
        job = await self.service.engine.submit([wanted])
        stack.callback(job.close)
        store = None if body.store is False else self.service.store
        response = described(self.service.name, body, len(wanted.input_ids))

        def keep(whole: dict[str, Any], choice: Choice) -> None:
            if store is not None and choice.memory is not None:
                store.save(whole, choice.memory, choice.unread_ids)

        return Turn(body, response, job, None if store is None else keep)

    async def past(self, body: ResponseRequest, stack: ExitStack) -> Past | None:
        """What the turn continues; a conversation is held until it ends."""
        store = self.service.store
        if store is not None and body.previous_response_id is not None:
            return await asyncio.to_thread(store.past, body.previous_response_id)
        if store is None or body.conversation is None:
            return None
        await asyncio.to_thread(store.conversation, body.conversation, "conversation")
        stack.callback(store.lock(body.conversation).release)
        return await asyncio.to_thread(store.past_of_conversation, body.conversation)

    async def ids(self, body: ResponseRequest, past: Past | None) -> list[int]:
        """What the model reads, with what the memory does not hold of the answer before: messages by the chat template, or,
        where there is none, a text as it stands."""
        if past is not None and body.instructions is not None:
            said = "`instructions` stand at the beginning of a session, which has begun: send a message of the system."
            raise RequestError(said, "instructions")
        if self.service.template is None and isinstance(body.input, str):
            if body.instructions is not None:
                said = "`instructions`: this model has no chat template: write them into `input`."
                raise RequestError(said, "instructions")
            ids = await self.service.text(body.input, begins=past is None, field="input")
            return ids if past is None else [*past.unread_ids, *ids]
        messages: list[Message] = []
        if body.instructions is not None:
            messages = [{"role": "system", "content": body.instructions}]
        given = body.input
        messages += [{"role": "user", "content": given}] if isinstance(given, str) else given
        return await self.service.turn(messages, None if past is None else past.unread_ids, "input")


def described(name: str, body: ResponseRequest, input_tokens: int) -> dict[str, Any]:
    """A response before anything is written."""
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata,
        "model": name,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": body.previous_response_id,
        "conversation": None if body.conversation is None else {"id": body.conversation},
        "store": body.store,
        "temperature": body.temperature,
        "text": body.text.model_dump(by_alias=True, exclude_none=True),
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "user": body.user,
        "usage": {"input_tokens": input_tokens},
    }


__all__ = ["Responses", "Turn"]
