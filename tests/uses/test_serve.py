"""`transformers-xl serve` in a process of its own, asked over HTTP by OpenAI's client."""

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
from transformers_xl.experiments.serving import open_ended
from transformers_xl.streams.text_beginning import beginning_of

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
    settings = {
        "model": server.model_id,
        "input": "Who is there?",
        "max_output_tokens": 12,
        "temperature": 0,
    }  # this endpoint streams unless told
    expected = server.greedy("user: Who is there?\nassistant: ", 12)
    assert server.client.responses.create(**settings, stream=False).output_text == expected
    events = list(server.client.responses.create(**settings, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == expected


def test_models(server: Server):
    assert [model.id for model in server.client.models.list()] == [server.model_id]


def test_wrong_requests_are_answered(server: Server):
    right = {"model": server.model_id, "prompt": "a", "max_tokens": 1}
    for wrong, status, message in (
        ({"model": "another/model"}, 400, "pinned"),
        ({"prompt": [1, 2]}, 400, "prompt must be a string"),
        ({"no_such_field": 1}, 422, "no_such_field"),
        ({"max_tokens": 0}, 400, "max_new_tokens"),  # a ValueError of `generate()`
    ):
        with pytest.raises(needs("openai").APIStatusError) as caught:
            server.client.completions.create(**(right | {"extra_body": wrong}))
        assert caught.value.status_code == status
        assert message in caught.value.response.text
    assert server.client.completions.create(**right).choices[0].text  # it goes on


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
