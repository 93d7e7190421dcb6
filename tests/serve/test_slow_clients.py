"""Clients that are slow, or leave in the middle: nothing is written for them, and a turn ends when it has been kept."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from transformers_xl import ByteTokenizer
from transformers_xl.serve.answers import Choice, EventStream
from transformers_xl.serve.bounds import Bounds, RequestError
from transformers_xl.serve.response_events import ResponseEvents
from transformers_xl.serve.service import Service
from transformers_xl.serve.text_request import TokenLogprob
from transformers_xl.serve.token_texts import Offsets, key_of, lists


async def forever(*_: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
def test_an_answer_that_nobody_reads_is_ended(spec_version: str):
    closed = []

    async def events():
        yield {"said": "a"}
        await forever()

    scope = {"type": "http", "asgi": {"spec_version": spec_version}}
    stream = EventStream(events(), lambda: closed.append(True), seconds=0.01)
    asyncio.run(stream(scope, forever, forever))
    assert closed == [True]


def service_of(seconds: float, is_ending: bool = False) -> Service:
    engine: Any = SimpleNamespace(is_ending=is_ending)
    parts: Any = {"tokenizer": None, "metrics": None, "engine": engine}
    return Service(name="m", vocab_size=3, bounds=Bounds(body=8, seconds=seconds), **parts)


def sent(service: Service, *messages: dict[str, Any]) -> bytes:
    """What arrives of a client that sends these messages, and then nothing."""
    rest = list(messages)

    async def receive() -> Any:
        return rest.pop(0) if rest else await forever()

    return asyncio.run(service.sent(Request({"type": "http"}, receive)))


def test_a_request_that_does_not_arrive():
    part = {"type": "http.request", "body": b"{}", "more_body": True}
    whole = part | {"more_body": False}
    assert sent(service_of(60.0), part, part, whole) == b"{}{}{}"
    for service, messages, status in (
        (service_of(0.5), [part], 408),
        (service_of(60.0, is_ending=True), [part], 503),
        (service_of(60.0), [part, {"type": "http.disconnect"}], 499),
        (service_of(60.0), [part] * 5, 413),
    ):
        with pytest.raises(RequestError) as refused:
            sent(service, *messages)
        assert refused.value.status == status


class PartsOfCharacters:
    """A tokenizer none of whose tokens is a text."""

    def __len__(self) -> int:
        return 5

    def decode(self, ids: list[int]) -> str:
        return "\ufffd" * len(ids)


def test_every_likely_token_has_a_key_of_its_own():
    """Of bytes, many of which are no text alone; and of a tokenizer that cannot tell them."""
    likely = tuple((token_id, -float(token_id)) for token_id in (65, 128, 129, 255))
    found = lists(ByteTokenizer(), [129], [TokenLogprob(129, -129.0, likely)], Offsets(ByteTokenizer()))
    assert found["tokens"] == ["bytes:\\x81"]
    keys = ["A", "bytes:\\x80", "bytes:\\x81", "bytes:\\xff"]
    assert found["top_logprobs"] == [dict(zip(keys, (-65.0, -128.0, -129.0, -255.0), strict=True))]
    others = PartsOfCharacters()
    assert [key_of(others, each) for each in (3, 4)] == ["token_id:3", "token_id:4"]


def test_a_turn_is_over_when_it_is_kept():
    """Its client leaves while it is written to the disk: nothing may continue the session before."""
    order, may_end, begun = [], threading.Event(), threading.Event()

    def keep(whole: dict[str, Any], choice: Choice) -> None:
        begun.set()
        may_end.wait()
        order.append("kept")

    async def leaving() -> None:
        service: Any = SimpleNamespace(metrics=SimpleNamespace(count=lambda *_: None), tokenizer=None)
        turn = SimpleNamespace(response={"usage": {"input_tokens": 1}}, keep=keep)
        events = ResponseEvents(service, turn, lambda: order.append("over"))
        keeping = asyncio.ensure_future(events.kept(Choice(finish_reason="stop")))
        await asyncio.to_thread(begun.wait)
        keeping.cancel()
        events.close()
        await asyncio.sleep(0)
        before = list(order)
        may_end.set()  # whatever comes: the loop waits for its threads
        assert before == []
        while "over" not in order:
            await asyncio.sleep(0.001)

    asyncio.run(leaving())
    assert order == ["kept", "over"]
