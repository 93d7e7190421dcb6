"""What is not honoured is refused by its name, in one sentence and never with a traceback."""

import json
import logging
from collections.abc import Iterator

import httpx2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from optional_packages import needs
from patience import PATIENCE
from served import JSON, NAME, Here, client_of, greedy, letters_model, serving

from transformers_xl.serve.bounds import Bounds

MESSAGES = [{"role": "user", "content": "Who is there?"}]
RIGHT = {
    "completions": {"prompt": "a", "max_tokens": 1},
    "chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "responses": {"input": "Who is there?", "max_output_tokens": 1},
    "conversations": {},
}
OF_SAMPLING = [
    ({"model": "another/model"}, "model", "alone"),
    ({"model": 3}, "model", "valid string"),
    ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
    ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
    ({"temperature": "hot"}, "temperature", '"hot"'),
    ({"temperature": True}, "temperature", "true"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"top_p": 1e999}, "top_p", "no JSON"),
    ({"seed": 1.5}, "seed", "integer"),
    ({"seed": -1}, "seed", "greater than or equal to 0"),
    ({"seed": 2**63}, "seed", "less than"),
    ({"stream": "yes"}, "stream", "boolean"),
    ({"stream": 1}, "stream", "boolean"),
    ({"user": 3}, "user", "string"),
    *(({name: value}, name, "not supported") for name, value in {
        "no_such_field": 1, "generation_config": {}, "top_k": 5, "repetition_penalty": 1.1, "a\nb": 1, "x" * 500: 1,
    }.items()),
]  # fmt: skip
OF_CHOICES = [
    ({"stop": 3}, "stop", "must be a string"),
    ({"stop": ["a", ""]}, "stop", "empty"),
    ({"stop": list("abcde")}, "stop", "at most 4"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"n": 17}, "n", "at most 16"),
    ({"n": 10**400}, "n", "at most 16"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "for `stream`=true"),
    ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage", "boolean"),
    ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other", "not supported"),
    *(({name: value}, name, "not supported") for name, value in {
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"5": 1},
    }.items()),
]  # fmt: skip
WRONG = {
    "completions": [
        *OF_SAMPLING, *OF_CHOICES,
        ({"prompt": None}, "prompt", "missing"),
        ({"prompt": ""}, "prompt", "1 to 16384"),
        ({"prompt": []}, "prompt", "not empty"),
        ({"prompt": [[]]}, "prompt", "not empty"),
        ({"prompt": [True]}, "prompt", "token ids"),
        ({"prompt": [1, "a"]}, "prompt", "token ids"),
        ({"prompt": [259]}, "prompt", "from 0 to 258"),
        ({"prompt": [-1]}, "prompt", "from 0 to 258"),
        ({"prompt": [0, 10**300]}, "prompt", "from 0 to 258"),
        ({"prompt": ["a"] * 17}, "prompt", "at most 16"),
        ({"prompt": "a" * 20_000}, "prompt", "20000 tokens: it must have 1 to 16384"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
        ({"max_tokens": 4097}, "max_tokens", "from 1 to 4096"),
        ({"max_tokens": 10**30}, "max_tokens", "from 1 to 4096"),
        ({"max_tokens": [1]}, "max_tokens", "[1]"),
        ({"max_tokens": True}, "max_tokens", "true"),
        ({"logprobs": 6}, "logprobs", "less than or equal to 5"),
        ({"logprobs": True}, "logprobs", "integer"),
        ({"echo": 1}, "echo", "boolean"),
        *(({name: value}, name, "not supported") for name, value in {"best_of": 2, "suffix": "the end"}.items()),
    ],
    "chat/completions": [
        *OF_SAMPLING, *OF_CHOICES,
        ({"messages": []}, "messages", "list of messages"),
        ({"messages": "Hello"}, "messages", "list of messages"),
        ({"messages": ["Hello"]}, "messages", "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages", "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages", "messages[0].role"),
        ({"messages": [{"role": [], "content": "a"}]}, "messages", "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages", "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "messages", "'text'"),
        ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "messages", "messages[0].name"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "differ"),
        ({"max_completion_tokens": 4097}, "max_completion_tokens", "from 1 to 4096"),
        ({"top_logprobs": 2}, "top_logprobs", "for `logprobs`=true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        *(({name: value}, name, "not supported") for name, value in {
            "tools": [{"type": "function"}], "store": True, "echo": False,
            "chat_template_kwargs": {"chat_template": "{{ 1 }}"}, "previous_response_id": "resp_1", "functions": [],
        }.items()),
    ],
    "responses": [
        *OF_SAMPLING,
        ({"input": 3}, "input", "list of messages"),
        ({"input": ""}, "input", "not empty"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "input", "input[0].role"),
        ({"instructions": 3}, "instructions", "string"),
        ({"max_output_tokens": 4097}, "max_output_tokens", "from 1 to 4096"),
        ({"top_logprobs": 2}, "top_logprobs", "include"),
        ({"include": ["reasoning.encrypted_content"]}, "include.0", "logprobs"),
        ({"metadata": {"a": 1}}, "metadata.a", "string"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a", "512"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "no sessions"),
        ({"conversation": "conv_1"}, "conversation", "no sessions"),
        ({"conversation": {"id": 1}}, "conversation", "must be the id"),
        ({"store": True}, "store", "no sessions"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage", "not supported"),
        *(({name: value}, name, "not supported") for name, value in {
            "prompt": {"id": "x"}, "tools": [{"type": "web_search"}], "truncation": "auto", "stop": "a", "n": 2,
            "background": True, "reasoning": {"effort": "low"}, "max_tool_calls": 1,
        }.items()),
    ],
    "conversations": [
        ({}, "conversation", "no sessions"),
        ({"metadata": 3}, "metadata", "dictionary"),
        ({"items": [{"role": "user", "content": "a"}]}, "items", "not supported"),
        ({"other": 1}, "other", "not supported"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Here]:
    with serving() as here:
        yield here


@pytest.mark.parametrize("path", WRONG)
def test_wrong_requests_are_answered_in_one_sentence(server: Here, path: str, caplog: pytest.LogCaptureFixture):
    right = RIGHT[path]
    for wrong, field, message in WRONG[path]:
        answer = server.post(path, content=json.dumps(right | wrong), headers=JSON)
        assert answer.status_code == 400, (wrong, answer.text)
        error = answer.json()["error"]
        assert message in error["message"], (wrong, error)
        assert "\n" not in error["message"]
        assert len(error["message"]) < 400
        if message != "no JSON":
            assert error["param"] == (field if len(field) < 60 and field.isprintable() else error["param"]), (
                wrong,
                error,
            )
            assert error["param"].split(".")[0] in error["message"], (wrong, error)
    if path != "conversations":
        assert server.post(path, json=right).status_code == 200  # it goes on
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("content", "headers", "status", "message"),
    [
        (b'{"prompt": ', JSON, 400, "no JSON"),
        (b"[" * 100_000, JSON, 400, "no JSON"),
        (b'{"prompt": "\xff"}', JSON, 400, "no JSON"),
        (b'{"prompt": "half a pair: \\ud800"}', JSON, 400, "no JSON"),
        (b'{"prompt": "a", "n": 1' + b"0" * 5000 + b"}", JSON, 400, "no JSON"),
        (b"[]", JSON, 400, "JSON object"),
        (b"", JSON, 400, "no JSON"),
        (b'{"prompt": "a"}', {"Content-Type": "text/plain"}, 400, "application/json"),
        (b'{"prompt": "a"}', {}, 400, "application/json"),
        (b'{"prompt": "a", "temperature": NaN}', JSON, 400, "no JSON"),
        (b'{"prompt": "a", "temperature": 1e999}', JSON, 400, "`temperature`=Infinity"),
        (b'{"prompt": "' + b"a" * 2**20 + b'"}', JSON, 413, "longer than 1,048,576 bytes"),
    ],
)
def test_what_is_no_request_is_refused(server: Here, content: bytes, headers: dict, status: int, message: str):
    answer = server.post("completions", content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]


def test_the_client_says_what_is_wrong(server: Here):
    with pytest.raises(needs("openai").BadRequestError, match=r"`suffix`.* is not supported") as caught:
        server.client.completions.create(model=NAME, prompt="a", suffix="b")
    assert caught.value.param == "suffix"


NAMES = sorted(
    {"model", "prompt", "messages", "input", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "seed"}
    | {"temperature", "top_p", "stop", "stream", "stream_options", "logprobs", "top_logprobs", "echo", "user", "store"}
    | {"instructions", "include", "previous_response_id", "conversation", "metadata", "logit_bias", "tools", "text"}
    | {"response_format"}
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 5), st.floats(), st.text(st.characters(), max_size=8),
    st.sampled_from([10**25, -(10**25), "\ud800", "user", "resp_" + "0" * 32, "../../etc/passwd", "{{ 1 }}", "text"]),
    st.just("json_schema"),
)  # fmt: skip
KEYS = st.sampled_from(
    ["role", "content", "type", "text", "id", "include_usage", "format", "schema", "json_schema"]
) | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
BODIES = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), VALUES, max_size=4)
BOUNDED = {"max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2}


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    needs("prometheus_client")
    from transformers_xl.serve.server_process import Sessions

    folder = tmp_path_factory.mktemp("sessions")
    with serving(bounds=Bounds(new_tokens=3, body=10_000), sessions=Sessions(folder, most=20)) as here:
        yield here


@pytest.mark.parametrize("path", RIGHT)
@settings(max_examples=60)
@given(body=BODIES, is_whole=st.booleans())
@example(body={"prompt": "\ud800", "input": "\ud800"}, is_whole=False)
@example(body={"stop": {"a": float("nan")}}, is_whole=True)
def test_no_input_is_answered_with_a_traceback(
    bounded: Here, path: str, caplog_once: list, body: dict, is_whole: bool
):
    """Anything that JSON, or what Python takes for it, can say: alone, and in the place of fields of a right request."""
    sent = (RIGHT[path] | body) if is_whole else body
    with httpx2.Client(timeout=PATIENCE) as client:
        answer = client.post(f"{bounded.url}/v1/{path}", content=json.dumps(sent), headers=JSON)
    assert answer.status_code in (200, 400, 409, 413), (sent, answer.text)
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]
        assert "\n" not in answer.json()["error"]["message"]
    elif not answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.json()["id"]
    assert not caplog_once


@pytest.fixture(scope="module")
def caplog_once() -> Iterator[list]:
    """Errors in the log of the server."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("uvicorn.error").addHandler(handler)
    yield records
    logging.getLogger("uvicorn.error").removeHandler(handler)


@given(data=st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(max_examples=60)
def test_bytes_that_are_no_json(bounded: Here, data: bytes):
    answer = bounded.post("completions", content=data, headers=JSON)
    assert answer.status_code == 400, data


def test_a_queue_that_is_full_says_so():
    """More texts than may wait: status 503, after which clients ask again by themselves."""
    with serving(bounds=Bounds(new_tokens=10**9, waiting=2)) as here:
        endless = {"model": NAME, "prompt": "a", "max_tokens": 10**9}
        first, second = (here.client.completions.create(**endless, stream=True) for _ in range(2))
        next(first), next(second)
        answer = here.post("completions", json={"prompt": "a"})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["code"] == "overloaded"
        first.close()
        patient = client_of(here.url).with_options(max_retries=20)
        assert patient.completions.create(model=NAME, prompt="a", temperature=0, max_tokens=2).choices[
            0
        ].text == greedy("a", 2)
        second.close()


def test_a_step_that_fails_is_no_end(monkeypatch: pytest.MonkeyPatch):
    """What was being written is answered with status 500, and the next request as ever."""
    model = letters_model()
    with serving(model=model) as here:
        forward = model.forward

        def fail(*_, **__):
            raise RuntimeError("out of memory")

        monkeypatch.setattr(model, "forward", fail)
        monkeypatch.setattr(type(model.model), "forward", fail)
        last = list(here.client.responses.create(model=NAME, input="a", stream=True))[-1]
        assert (last.type, last.code) == ("error", None)
        assert "failed" in last.message
        answer = here.post("completions", json={"prompt": "a"})
        assert answer.status_code == 500
        assert answer.json()["error"]["message"] == "The server failed while it wrote this: see its log."
        with pytest.raises(needs("openai").APIError, match="failed"):
            list(here.client.completions.create(model=NAME, prompt="a", stream=True))
        monkeypatch.undo()
        assert model.forward == forward
        settings = {"model": NAME, "prompt": "a", "temperature": 0, "max_tokens": 2}
        assert here.client.completions.create(**settings).choices[0].text == greedy("a", 2)
