"""`/v1/completions`: texts that continue prompts."""

import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response

from transformers_xl.data.written_text import with_text
from transformers_xl.serve.answers import Choice, EventStream, collected, unless_left
from transformers_xl.serve.bounds import RequestError
from transformers_xl.serve.engine import Job
from transformers_xl.serve.protocol import CompletionRequest
from transformers_xl.serve.service import Service
from transformers_xl.serve.session_store import new_id
from transformers_xl.serve.token_texts import Offsets, lists


class Completions:
    """The endpoint."""

    def __init__(self, service: Service):
        self.service = service

    async def create(self, request: Request) -> Response:
        body = await self.service.body(request, CompletionRequest)
        if body.max_tokens == 0 and not body.echo:
            raise RequestError("`max_tokens`=0 is for `echo`=true: it must be at least 1.", "max_tokens")
        count = self.service.new_tokens(max_tokens=body.max_tokens)
        prompts = [await self.prompt(each) for each in body.prompt]
        wanted = [
            self.service.wanted(
                body, ids, count, number, top_logprobs=body.logprobs,
                prompt_logprobs=body.echo and body.logprobs is not None,
            )
            for ids in prompts
            for number in range(body.n)
        ]  # fmt: skip
        job = await self.service.engine.submit(wanted)
        answer = Answer(self.service, body, [ids for ids in prompts for _ in range(body.n)])
        if body.stream:
            return EventStream(answer.events(job), job.close, self.service.bounds.seconds)
        choices = await unless_left(request, collected(job), job.close)
        return JSONResponse(answer.whole(choices))

    async def prompt(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            return await self.service.text(prompt, begins=True, field="prompt")
        return self.service.checked(prompt, "prompt")


class Answer:
    """What is sent for one request.

    Args:
        service: where it is written.
        body: the request.
        prompts: the ids that each choice continues.
    """

    def __init__(self, service: Service, body: CompletionRequest, prompts: list[list[int]]):
        self.service, self.body, self.prompts = service, body, prompts
        self.head = {"id": new_id("cmpl"), "object": "text_completion", "created": int(time.time())}
        self.head["model"] = service.name
        self.echoes = [self.echo(ids) if body.echo else "" for ids in prompts]
        self.offsets = [Offsets(service.tokenizer, () if body.echo else ids) for ids in prompts]

    def echo(self, ids: list[int]) -> str:
        return str(self.service.tokenizer.decode(with_text(self.service.tokenizer, ids), skip_special_tokens=True))

    def choice(self, number: int, new: Choice, begins: bool) -> dict[str, Any]:
        """What is `new` of a choice; with its echo where it `begins`."""
        logprobs = None
        if self.body.logprobs is not None:
            ids = [*(self.prompts[number] if new.prompt_logprobs else []), *new.token_ids]
            listed = [*new.prompt_logprobs, *new.logprobs]
            logprobs = lists(self.service.tokenizer, ids, listed, self.offsets[number])
        text = (self.echoes[number] if begins else "") + new.text
        return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": new.finish_reason}

    def usage(self, new_tokens: int) -> dict[str, int]:
        read = sum(len(ids) for ids in self.prompts[:: self.body.n])
        return {"prompt_tokens": read, "completion_tokens": new_tokens, "total_tokens": read + new_tokens}

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        self.service.metrics.count(choices, sum(map(len, self.prompts)))
        usage = self.usage(sum(len(each.token_ids) for each in choices))
        return {**self.head, "choices": [self.choice(*pair, True) for pair in enumerate(choices)], "usage": usage}

    async def events(self, job: Job) -> AsyncIterator[dict[str, Any] | str]:
        choices, begun = [Choice() for _ in self.prompts], set()
        with_usage = bool(self.body.stream_options and self.body.stream_options.include_usage)
        more = {"usage": None} if with_usage else {}
        async for number, progress in job:
            new = choices[number].take(progress)
            if number not in begun or new.text or new.logprobs or new.finish_reason is not None:
                yield {**self.head, "choices": [self.choice(number, new, number not in begun)], **more}
                begun.add(number)
        self.service.metrics.count(choices, sum(map(len, self.prompts)))
        if with_usage:
            yield {**self.head, "choices": [], "usage": self.usage(sum(len(each.token_ids) for each in choices))}
        yield "[DONE]"


__all__ = ["Completions"]
