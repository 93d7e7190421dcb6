"""`/v1/chat/completions`: answers to a conversation that the client sends whole each time."""

import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response

from transformers_xl.serve.answers import Choice, EventStream, collected, unless_left
from transformers_xl.serve.bounds import RequestError
from transformers_xl.serve.engine import Job
from transformers_xl.serve.protocol import ChatRequest
from transformers_xl.serve.service import Service
from transformers_xl.serve.session_store import new_id
from transformers_xl.serve.token_texts import entries


class ChatCompletions:
    """The endpoint."""

    def __init__(self, service: Service):
        self.service = service

    async def create(self, request: Request) -> Response:
        body = await self.service.body(request, ChatRequest)
        if body.top_logprobs is not None and not body.logprobs:
            raise RequestError("`top_logprobs` is for `logprobs`=true: leave it out.", "top_logprobs")
        count = self.service.new_tokens(max_tokens=body.max_tokens, max_completion_tokens=body.max_completion_tokens)
        ids = await self.service.turn(body.messages, None, "messages")
        grammar = await self.service.grammar(body.response_format, "response_format")
        top = (body.top_logprobs or 0) if body.logprobs else None
        wanted = [
            self.service.wanted(body, ids, count, number, top_logprobs=top, grammar=grammar)
            for number in range(body.n)
        ]
        job = await self.service.engine.submit(wanted)
        answer = Answer(self.service, body, len(ids))
        if body.stream:
            return EventStream(answer.events(job), job.close, self.service.bounds.seconds)
        choices = await unless_left(request, collected(job), job.close)
        return JSONResponse(answer.whole(choices))


class Answer:
    """What is sent for one request, whose prompt has so many tokens."""

    def __init__(self, service: Service, body: ChatRequest, prompt_tokens: int):
        self.service, self.body, self.prompt_tokens = service, body, prompt_tokens
        self.head = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": service.name}

    def logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        return {"content": entries(self.service.tokenizer, choice.logprobs), "refusal": None}

    def usage(self, choices: list[Choice]) -> dict[str, int]:
        new = sum(len(each.token_ids) for each in choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": new,
            "total_tokens": self.prompt_tokens + new,
        }

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        self.service.metrics.count(choices, self.prompt_tokens * self.body.n)
        rows = [
            {
                "index": number,
                "message": {"role": "assistant", "content": each.text, "refusal": None},
                "logprobs": self.logprobs(each),
                "finish_reason": each.finish_reason,
            }
            for number, each in enumerate(choices)
        ]
        return {**self.head, "object": "chat.completion", "choices": rows, "usage": self.usage(choices)}

    async def events(self, job: Job) -> AsyncIterator[dict[str, Any] | str]:
        choices = [Choice() for _ in range(job.size)]
        with_usage = bool(self.body.stream_options and self.body.stream_options.include_usage)
        head = {**self.head, "object": "chat.completion.chunk", **({"usage": None} if with_usage else {})}

        def chunk(number: int, delta: dict[str, str], reason: str | None = None, logprobs: Any = None) -> dict:
            choice = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
            return {**head, "choices": [choice]}

        for number in range(job.size):
            yield chunk(number, {"role": "assistant", "content": ""})
        async for number, progress in job:
            new = choices[number].take(progress)
            if new.text or new.logprobs:
                yield chunk(number, {"content": new.text}, logprobs=self.logprobs(new))
            if new.finish_reason is not None:
                yield chunk(number, {}, new.finish_reason)
        self.service.metrics.count(choices, self.prompt_tokens * self.body.n)
        if with_usage:
            yield {**head, "choices": [], "usage": self.usage(choices)}
        yield "[DONE]"


__all__ = ["ChatCompletions"]
