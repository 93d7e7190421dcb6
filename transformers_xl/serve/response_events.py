"""A response while it is written: the events of a stream, of which the last one holds all of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from transformers_xl.serve.answers import Choice
from transformers_xl.serve.service import Service
from transformers_xl.serve.session_store import new_id
from transformers_xl.serve.token_texts import entries


class ResponseEvents:
    """
    Args:
        service: where it is written.
        turn: what is written ([`~transformers_xl.serve.response_endpoint.Turn`]).
        when_over: called by `close`, at the earliest when the answer is kept: till then nothing else continues it.
    """

    def __init__(self, service: Service, turn: Any, when_over: Callable[[], None]):
        self.service, self.turn, self.when_over = service, turn, when_over
        self.saving: asyncio.Future | None = None
        self.input_tokens = turn.response["usage"]["input_tokens"]
        self.response = turn.response | {"usage": None}
        self.item_id, self.count = new_id("msg"), 0

    async def all(self) -> AsyncIterator[dict[str, Any]]:
        """The events of a stream; the last one is sent when the answer is kept."""
        yield self.event("response.created", response=self.response)
        yield self.event("response.in_progress", response=self.response)
        yield self.event("response.output_item.added", output_index=0, item=self.item("in_progress"))
        yield self.within("response.content_part.added", part=self.part(Choice()))
        choice = Choice()
        async for _, progress in self.turn.job:
            new = choice.take(progress)
            if new.text or new.logprobs:
                yield self.within("response.output_text.delta", delta=new.text, logprobs=self.logprobs(new))
        whole = await self.kept(choice)
        yield self.within("response.output_text.done", text=choice.text, logprobs=self.logprobs(choice))
        yield self.within("response.content_part.done", part=self.part(choice))
        yield self.event("response.output_item.done", output_index=0, item=whole["output"][0])
        yield self.event(f"response.{whole['status']}", response=whole)

    async def last(self) -> dict[str, Any]:
        """The whole response, when it is kept."""
        choice = Choice()
        async for _, progress in self.turn.job:
            choice.take(progress)
        return await self.kept(choice)

    async def kept(self, choice: Choice) -> dict[str, Any]:
        whole = self.whole(choice)
        self.service.metrics.count([choice], self.input_tokens)
        if self.turn.keep is not None:
            self.saving = asyncio.ensure_future(asyncio.to_thread(self.turn.keep, whole, choice))
            await asyncio.shield(self.saving)  # a thread goes on where its client leaves
        return whole

    def close(self) -> None:
        if self.saving is None or self.saving.done():
            self.when_over()
        else:
            self.saving.add_done_callback(lambda _: self.when_over())

    def whole(self, choice: Choice) -> dict[str, Any]:
        status = "completed" if choice.finish_reason == "stop" else "incomplete"
        more: dict[str, Any] = {"status": status, "output": [self.item(status, choice)]}
        if status == "incomplete":
            # the protocol has no reason for an answer that the end of the server has cut
            more["incomplete_details"] = {"reason": None if choice.is_cut else "max_output_tokens"}
        else:
            more["completed_at"] = int(time.time())
        return self.response | more | {"usage": self.usage(len(choice.token_ids))}

    def usage(self, new_tokens: int) -> dict[str, Any]:
        """A turn costs its own tokens: those of the session before it are not among them."""
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": new_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.input_tokens + new_tokens,
        }

    def item(self, status: str, choice: Choice | None = None) -> dict[str, Any]:
        content = [] if choice is None else [self.part(choice)]
        return {"id": self.item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def part(self, choice: Choice) -> dict[str, Any]:
        return {
            "type": "output_text", "text": choice.text, "annotations": [], "logprobs": self.logprobs(choice),
        }  # fmt: skip

    def logprobs(self, choice: Choice) -> list[dict[str, Any]]:
        return entries(self.service.tokenizer, choice.logprobs)

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self.count += 1
        return {"type": kind, "sequence_number": self.count - 1, **fields}

    def within(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self.event(kind, item_id=self.item_id, output_index=0, content_index=0, **fields)


__all__ = ["ResponseEvents"]
