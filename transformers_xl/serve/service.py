"""What the endpoints share: one model, its bounds, and how a request becomes texts that are written."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from transformers_xl.data.turns import Template, TemplateError, text_ids, turn_ids
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.serve.bounds import Bounds, RequestError
from transformers_xl.serve.engine import Engine
from transformers_xl.serve.grammars import json_grammar, matcher_of
from transformers_xl.serve.protocol import Fields, Sampling, TextFormat, parsed, schema_of, shown
from transformers_xl.serve.request_messages import Message
from transformers_xl.serve.server_metrics import Metrics
from transformers_xl.serve.session_store import SessionStore
from transformers_xl.serve.text_request import TextRequest

LOOK = 0.25  # seconds after which a server that is told to end lets go of what it reads
DEFAULT_NEW_TOKENS = 1024  # of a chat or a response that does not say
Kind = TypeVar("Kind", bound=Fields)


@dataclass(frozen=True)
class Service:
    """One model and all that answers for it.

    Args:
        name: of the model, as requests may call it.
        tokenizer: its tokenizer.
        vocab_size: how many ids the model knows.
        engine: where texts are written.
        metrics: what is counted.
        bounds: what a request may ask for.
        store: of the sessions; None: nothing is kept.
        seeds: of requests without a seed.
        template: of chats; None: the tokenizer has none.
        ends: tokens that end an answer of the model.
    """

    name: str
    tokenizer: Any
    vocab_size: int
    engine: Engine
    metrics: Metrics
    bounds: Bounds
    store: SessionStore | None = None
    seeds: random.Random = field(default_factory=random.SystemRandom)
    template: Template | None = None
    ends: frozenset[int] = frozenset()
    rendering: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def body(self, request: Request, kind: type[Kind]) -> Kind:
        """What a request says.

        Raises:
            RequestError: it is too long or too slow, no JSON, asks for another model, or an argument is wrong or not
                honoured.
        """
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError("The header `Content-Type` of a request must be application/json.", "Content-Type")
        body = parsed(kind, await self.sent(request))
        if isinstance(body, Sampling):
            self.check(body)
        return body

    async def sent(self, request: Request) -> bytes:
        """What a client sends, unless it is too much or too slow, or the server or the client ends before."""
        reading, times = asyncio.ensure_future(self.read(request)), int(self.bounds.seconds / LOOK)
        try:
            for _ in range(times):
                await asyncio.wait([reading], timeout=LOOK)
                if reading.done():
                    return reading.result()
                if self.engine.is_ending:
                    raise RequestError("The server is ending: ask another one.", status=503)
            raise RequestError(f"The request did not arrive within {self.bounds.seconds:g} seconds.", status=408)
        except ClientDisconnect as error:
            raise RequestError("The client has left.", status=499) from error
        finally:
            reading.cancel()

    async def read(self, request: Request) -> bytes:
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > self.bounds.body:
                raise RequestError(f"The request is longer than {self.bounds.body:,} bytes.", status=413)
        return bytes(data)

    def check(self, body: Sampling) -> None:
        if body.model not in (None, self.name):
            raise RequestError(f"`model`={shown(body.model)}: this server has {self.name!r} alone.", "model")
        choices = getattr(body, "n", 1) * len(getattr(body, "prompt", "1"))
        if choices > self.bounds.choices:
            name = "n" if getattr(body, "n", 1) > 1 else "prompt"
            raise RequestError(f"`{name}` asks for {shown(choices)} texts: at most {self.bounds.choices}.", name)
        if not body.stream and getattr(body, "stream_options", None) is not None:
            raise RequestError("`stream_options` is for `stream`=true: leave it out.", "stream_options")

    def new_tokens(self, **given: int | None) -> int:
        """How many tokens are wanted, by any of the names that an endpoint has for it.

        Raises:
            RequestError: more than may be, or two numbers.
        """
        asked = {name: value for name, value in given.items() if value is not None}
        for name, value in asked.items():
            if value > self.bounds.new_tokens:
                said = f"`{name}`={shown(value)} must be an integer from 1 to {self.bounds.new_tokens}."
                raise RequestError(said, name)
        if len({*asked.values()}) > 1:
            names = " and ".join(f"`{name}`" for name in asked)
            raise RequestError(f"{names} differ: give one of them.", next(iter(asked)))
        return next(iter(asked.values()), min(DEFAULT_NEW_TOKENS, self.bounds.new_tokens))

    async def text(self, text: str, begins: bool, field: str) -> list[int]:
        """The ids of a text, as it stands."""
        try:
            ids = await asyncio.to_thread(text_ids, self.tokenizer, text, begins)
        except Exception as error:  # of tokenizers, for a word that a closed vocabulary lacks
            raise RequestError(f"`{field}` is not read by the tokenizer: {error}.", field) from error
        return self.checked(ids, field)

    async def turn(self, messages: Sequence[Message], unread: Sequence[int] | None, field: str) -> list[int]:
        """The ids of new messages, by the chat template."""
        if self.template is None:
            raise RequestError(
                f"`{field}`: this model has no chat template, and reads no messages: give a text.", field
            )
        async with self.rendering:
            try:
                ids = await asyncio.to_thread(turn_ids, self.tokenizer, messages, unread, self.template, self.ends)
            except TemplateError as error:
                raise RequestError(f"`{field}`: {error}", field) from error
        return self.checked(ids, field)

    async def grammar(self, given: TextFormat | None, field: str) -> str | None:
        """The grammar of the texts that `given` asks for; None: any text.

        Raises:
            RequestError: the server cannot write such texts.
        """
        schema = schema_of(given)
        if schema is None:
            return None
        try:
            grammar = json_grammar(schema)
            await asyncio.to_thread(matcher_of, grammar, self.tokenizer, self.vocab_size, self.ends)
        except ValueError as error:
            raise RequestError(f"`{field}` cannot be honoured: {error}.", field) from error
        return grammar

    def checked(self, ids: list[int], field: str) -> list[int]:
        """The ids of a prompt that is read.

        Raises:
            RequestError: there are none, too many, or the model does not know one.
        """
        if not 1 <= len(ids) <= self.bounds.prompt:
            said = f"`{field}` has {len(ids)} tokens: it must have 1 to {self.bounds.prompt}."
            raise RequestError(said, field)
        if wrong := next((each for each in ids if not 0 <= each < self.vocab_size), None):
            raise RequestError(
                f"`{field}`: the model has ids from 0 to {self.vocab_size - 1}, not {shown(wrong)}.", field
            )
        return ids

    def wanted(
        self,
        body: Sampling,
        ids: Sequence[int],
        count: int,
        number: int = 0,
        memory: Memory | None = None,
        **more: Any,
    ) -> TextRequest:
        """A text to be written, the choice `number` of those that a request wants of its prompt."""
        seed = self.seeds.getrandbits(63) if body.seed is None else (body.seed + number) % 2**63
        return TextRequest(
            ids, memory=memory, max_new_tokens=count, temperature=body.temperature, top_p=body.top_p, seed=seed,
            stop=getattr(body, "stop", ()), **more,
        )  # fmt: skip

    def close(self) -> None:
        """End the processes and the thread that work for it."""
        self.engine.close()
        if self.template is not None:
            self.template.end()

    def sessions(self, field: str) -> SessionStore:
        """Where sessions are kept.

        Raises:
            RequestError: nowhere.
        """
        if self.store is None:
            raise RequestError(f"`{field}`: this server keeps no sessions: start it with --sessions DIR.", field)
        return self.store


__all__ = ["Service"]
