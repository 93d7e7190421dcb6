"""`transformers-xl serve` in a process of its own, asked over HTTP by OpenAI's client."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import torch
from forked import fork_server, run_program
from optional_packages import needs
from patience import PATIENCE
from stand_in_base import base_tokenizer
from tiny import tiny_model
from typer.testing import CliRunner

from transformers_xl import ByteTokenizer
from transformers_xl.cli.main import app
from transformers_xl.data.text_beginning import beginning_of
from transformers_xl.runs.serving_prompts import open_ended
from transformers_xl.runs.serving_requests import is_own_authority

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
MESSAGES = [{"role": "user", "content": "Who is there?"}]


def saved(folder: Path, model_type: str = "transformer_xl", template: str | None = TEMPLATE):
    model = tiny_model(model_type, "causal_lm", torch.float32, vocab_size=259, pad_token_id=256, eos_token_id=258)
    model.lm_head.bias.data[ord("a") : ord("z")] += 12.0  # letters, so that every token is a character
    model.save_pretrained(folder, include_code=False)
    ByteTokenizer(chat_template=template).save_pretrained(folder, include_code=False)
    return model


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    """Imported here, not while tests are collected: a client of OpenAI takes longer than the files of this folder."""
    for name in ("openai", "fastapi", "uvicorn"):
        needs(name)


class Server:
    def __init__(self, folder: Path):
        self.model_id, self.model = str(folder), saved(folder)
        self.written = folder.parent / "server"
        words = ["serve", self.model_id, "--port", "0"]
        given = ("transformers_xl.cli.main", words, {"HF_HUB_OFFLINE": "1"}, str(self.written))
        self.process = fork_server().Process(target=run_program, args=given)
        self.process.start()

    def wait(self) -> None:
        """Until it says where it listens."""
        until = time.monotonic() + PATIENCE
        while not (found := re.search(r"running on (http://127\.0\.0\.1:\d+)", self.said())):
            assert time.monotonic() < until, self.said()
            assert self.process.is_alive(), self.said()
            time.sleep(0.1)
        self.url = found[1]
        self.client = needs("openai").OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE
        )
        assert httpx2.get(f"{self.url}/health", timeout=PATIENCE).json() == {"status": "ok"}

    def said(self) -> str:
        files = [self.written.with_suffix(suffix) for suffix in (".out", ".err")]
        return "".join(file.read_text() for file in files if file.exists())

    def greedy(self, text: str, tokens: int) -> str:
        """What the model alone writes."""
        ids = torch.tensor([list(text.encode())])
        return bytes(
            self.model.generate(ids, max_new_tokens=tokens, do_sample=False)[0, ids.shape[1] :].tolist()
        ).decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("serve") / "model")
    try:
        server.wait()
        yield server
    finally:
        os.kill(server.process.pid, signal.SIGINT)
        server.process.join(PATIENCE)
        server.process.kill()


def test_completions(server: Server):
    settings = {"model": server.model_id, "prompt": "Once upon", "max_tokens": 12, "temperature": 0}
    expected = server.greedy("Once upon", 12)
    answer = server.client.completions.create(**settings)
    assert answer.choices[0].text == expected
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (9, 12)
    pieces = [chunk.choices[0].text for chunk in server.client.completions.create(**settings, stream=True)]
    assert "".join(pieces) == expected
    assert len([piece for piece in pieces if piece]) > 1


def test_chat_completions(server: Server):
    settings = {"model": server.model_id, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    expected = server.greedy("user: Who is there?\nassistant: ", 12)
    answer = server.client.chat.completions.create(**settings)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == expected
    chunks = list(server.client.chat.completions.create(**settings, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "length"


def test_responses(server: Server):
    settings = {"model": server.model_id, "input": "Who is there?", "max_output_tokens": 12, "temperature": 0}
    expected = server.greedy("user: Who is there?\nassistant: ", 12)
    assert server.client.responses.create(**settings).output_text == expected
    events = list(server.client.responses.create(**settings, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == expected


def test_models(server: Server):
    assert [model.id for model in server.client.models.list()] == [server.model_id]


def test_a_temperature_samples(server: Server):
    """Greedy where it is 0; above it the seed decides."""
    right = {"model": server.model_id, "prompt": "Once upon", "max_tokens": 24}

    def written(**settings) -> str:
        return server.client.completions.create(**right, **settings).choices[0].text

    greedy = server.greedy("Once upon", 24)
    assert written(temperature=0) == greedy
    sampled = [written(temperature=2.0, seed=seed) for seed in (1, 2, 1)]
    assert sampled[0] == sampled[2] != sampled[1]
    assert greedy not in sampled
    assert written(top_p=0.999, seed=3) != greedy
    assert written(temperature=2.0, top_p=1e-6, seed=1) == greedy


def test_the_text_of_a_stop_is_left_out(server: Server):
    right = {"model": server.model_id, "prompt": "Once upon", "max_tokens": 12, "temperature": 0}
    text = server.greedy("Once upon", 12)
    for stop in (text[4:6], [text[4:6], "never there"]):
        answer = server.client.completions.create(**right, stop=stop)
        assert answer.choices[0].text == text[: text.find(text[4:6])]
        assert answer.choices[0].finish_reason == "stop"


WRONG = {
    "completions": [
        ({"model": "another/model"}, "model", "pinned"),
        ({"prompt": [1, 2]}, "prompt", "must be a string"),
        ({"prompt": ""}, "prompt", "not empty"),
        ({"prompt": "half a pair: \ud800"}, None, "surrogate"),
        ({"prompt": "a" * 20_000}, None, "20000 tokens: it must have 1 to 16384"),
        ({"prompt": "a" * 2**20}, None, "longer than 1,048,576 bytes"),
        ({"max_tokens": 0}, "max_tokens", "from 1 to 4096"),
        ({"max_tokens": 4097}, "max_tokens", "from 1 to 4096"),
        ({"max_tokens": [1]}, "max_tokens", "[1]"),
        ({"max_tokens": True}, "max_tokens", "true"),
        ({"temperature": -0.1}, "temperature", "from 0 to 2"),
        ({"temperature": "hot"}, "temperature", "hot"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"seed": 1.5}, "seed", "integer"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stop": 3}, "stop", "must be a string"),
        ({"stop": ["a", ""]}, "stop", "empty"),
        ({"stop": "a", "stream": True}, "stop", "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        *(({name: value}, name, "not supported") for name, value in {
            "no_such_field": 1, "n": 2, "best_of": 2, "logprobs": 0, "echo": True, "suffix": "the end",
            "presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {"5": 1}, "generation_config": {},
        }.items()),
    ],
    "chat/completions": [
        ({"messages": []}, "messages", "list of messages"),
        ({"messages": ["Hello"]}, "messages", "messages[0]"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages", "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "messages", "'text'"),
        ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "messages", "messages[0].name"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "differ"),
        *(({name: value}, name, "not supported") for name, value in {
            "n": 2, "logprobs": True, "tools": [{"type": "function"}], "response_format": {"type": "json_object"},
            "chat_template_kwargs": {"chat_template": "{{ 1 }}"}, "generation_config": "{}", "store": True,
        }.items()),
    ],
    "responses": [
        ({"input": 3}, "input", "list of messages"),
        ({"input": [{"role": "system", "content": "a"}], "instructions": "b"}, "instructions", "two"),
        *(({name: value}, name, "not supported") for name, value in {
            "previous_response_id": "resp_1", "conversation": "conv_1", "prompt": {"id": "x"}, "store": True,
            "tools": [{"type": "web_search"}], "truncation": "auto", "generation_config": "{}", "stop": "a",
        }.items()),
    ],
}  # fmt: skip
TEXTS = {
    "completions": {"prompt": "a", "max_tokens": 1},
    "chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "responses": {"input": "Who is there?", "max_output_tokens": 1},
}


@pytest.mark.parametrize("path", WRONG)
def test_wrong_requests_are_answered_in_one_sentence(server: Server, path: str):
    right = {"model": server.model_id} | TEXTS[path]
    for wrong, field, message in WRONG[path]:
        answer = httpx2.post(
            f"{server.url}/v1/{path}", content=json.dumps(right | wrong), headers=JSON, timeout=PATIENCE
        )
        assert answer.status_code == 400, (wrong, answer.text)
        error = answer.json()["error"]
        assert (error["param"], "\n" in error["message"]) == (field, False), (wrong, error)
        assert message in error["message"], (wrong, error)
        if field:
            assert field in error["message"]
    assert httpx2.post(f"{server.url}/v1/{path}", json=right, timeout=PATIENCE).status_code == 200  # it goes on
    assert "Traceback" not in server.said()


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("content", "headers", "message"),
    [
        (b'{"prompt": ', JSON, "no JSON"),
        (b"[" * 100_000, JSON, "no JSON"),
        (b'{"prompt": "\xff"}', JSON, "no JSON"),
        (b"[]", JSON, "JSON object"),
        (b'{"prompt": "a"}', {"Content-Type": "text/plain"}, "application/json"),
        (b'{"prompt": "a"}', {}, "application/json"),
        (b'{"prompt": "a", "temperature": NaN}', JSON, "`temperature`=NaN"),
    ],
)
def test_what_is_no_request_is_refused(server: Server, content: bytes, headers: dict, message: str):
    answer = httpx2.post(f"{server.url}/v1/completions", content=content, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]


def test_the_client_says_what_is_wrong(server: Server):
    with pytest.raises(needs("openai").BadRequestError, match=r"`n` is not supported") as caught:
        server.client.completions.create(model=server.model_id, prompt="a", max_tokens=1, n=2)
    assert caught.value.param == "n"


def test_what_asks_for_nothing_else_is_taken(server: Server):
    """Clients send these where nobody gave them."""
    right = {"model": server.model_id, "prompt": "a", "max_tokens": 1, "temperature": 0}
    neutral = {"n": 1, "echo": False, "logprobs": None, "presence_penalty": 0, "frequency_penalty": 0.0, "user": "me"}
    assert server.client.completions.create(**right, **neutral).choices[0].text == server.greedy("a", 1)
    chat = {"model": server.model_id, "messages": MESSAGES, "max_completion_tokens": 2, "stream": True}
    chunks = list(server.client.chat.completions.create(**chat, stream_options={"include_usage": True}, n=1))
    assert chunks[-1].usage.completion_tokens == 2


def test_what_the_server_of_transformers_has_besides_is_not_there(server: Server):
    for path in ("load_model", "reset", "v1/audio/transcriptions", "v1/systemone", "docs", "openapi.json"):
        for method in ("get", "post"):
            answer = httpx2.request(method, f"{server.url}/{path}", headers=JSON, timeout=PATIENCE)
            assert answer.status_code == 404, (path, answer.text)


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"Host": "evil.example"}, "evil.example"),
        ({"Host": "localhost.evil.example:8000"}, "evil.example"),
        ({"Host": "192.168.1.2:8000"}, "192.168.1.2"),
        ({"Host": "[::1"}, "[::1"),
        ({"Origin": "http://evil.example"}, "evil.example"),
        ({"Origin": "null"}, "null"),
    ],
)
def test_a_page_of_another_site_is_not_answered(server: Server, headers: dict, named: str, method: str):
    """Its name may lead to this address (DNS rebinding), or it asks across sites."""
    path = {"get": "/v1/models", "post": "/v1/completions"}[method]
    answer = httpx2.request(method, server.url + path, headers=headers | JSON, timeout=PATIENCE)
    assert answer.status_code == 403
    assert named in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("authority", "host", "expected"),
    [
        ("localhost:8000", "127.0.0.1", True),
        ("LOCALHOST", "127.0.0.1", True),
        ("127.0.0.1:8000", "127.0.0.1", True),
        ("[::1]:8000", "127.0.0.1", True),
        ("127.9.9.9", "127.0.0.1", True),
        ("machine.example:80", "machine.example", True),
        ("machine.example.evil", "machine.example", False),
        ("10.0.0.5:8000", "10.0.0.5", True),
        ("10.0.0.5:8000", "127.0.0.1", False),
        ("10.0.0.5:8000", "0.0.0.0", True),
        ("evil.example", "0.0.0.0", False),
        ("localhost@evil", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        (None, "127.0.0.1", False),
    ],
)
def test_names_of_this_server(authority: str | None, host: str, expected: bool):
    assert is_own_authority(authority, host) == expected


def test_what_cannot_be_served_is_said_at_once(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    tiny_model("transformer_xl", "sequence_classification").save_pretrained(tmp_path / "classes", include_code=False)
    tiny_model("star_transformer").save_pretrained(tmp_path / "encoder", include_code=False)
    (tmp_path / "gpt").mkdir()
    (tmp_path / "gpt/config.json").write_text('{"model_type": "gpt2"}')
    for name, message in {
        "empty": "config.json",
        "classes": "is not a language model",
        "encoder": "is not a language model",
        "gpt": "'gpt2'",
    }.items():
        result = CliRunner().invoke(app, ["serve", str(tmp_path / name)])
        assert result.exit_code == 2, result.output
        assert message in result.output
        assert result.output.startswith("Error: ")


@pytest.mark.parametrize("adds", ["$A", "<s> $A", "$A </s>", "<s> $A </s>"])
def test_a_prompt_has_no_end(adds: str):
    tokenizer = base_tokenizer(adds)
    plain = tokenizer("It was", add_special_tokens=False)["input_ids"]
    served = open_ended(base_tokenizer(adds))
    assert served("It was")["input_ids"] == beginning_of(tokenizer) + plain
