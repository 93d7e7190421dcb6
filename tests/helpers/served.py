"""A server in a thread of the tests, or in a process of its own, and a small model whose every token is a letter."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import torch
from forked import fork_server, run_program
from optional_packages import needs
from patience import PATIENCE
from tiny import tiny_model

from transformers_xl import ByteTokenizer

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
NAME = "tiny/model"
JSON = {"Content-Type": "application/json"}


def letters_model(dtype: torch.dtype = torch.float64):
    """In double precision: what others in the batch do to the rounding decides no token."""
    fields = {"vocab_size": 259, "pad_token_id": 256, "eos_token_id": 258, "tie_word_embeddings": False}
    model = tiny_model("transformer_xl", "causal_lm", dtype, **fields)
    model.lm_head.bias.data[ord("a") : ord("z")] += 12.0
    return model


def save_letters(folder: Path, template: str | None = TEMPLATE) -> Path:
    letters_model().save_pretrained(folder, include_code=False)
    ByteTokenizer(chat_template=template).save_pretrained(folder, include_code=False)
    return folder


def greedy(text: str, tokens: int) -> str:
    """What the model alone writes behind a text."""
    ids = torch.tensor([list(text.encode())])
    written = letters_model().generate(ids, max_new_tokens=tokens, do_sample=False)[0, ids.shape[1] :]
    return bytes(written.tolist()).decode()


class Here(NamedTuple):
    """A server: where it is, and a client of OpenAI that asks it."""

    url: str
    client: Any
    service: Any = None

    def post(self, path: str, **options: Any) -> httpx2.Response:
        return httpx2.post(f"{self.url}/v1/{path}", timeout=PATIENCE, **options)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        return httpx2.get(f"{self.url}/{path}", timeout=PATIENCE, **options)

    def metric(self, name: str) -> float:
        found = re.search(rf"^transformers_xl_{re.escape(name)} (\S+)$", self.get("metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0


def client_of(url: str, key: str = "none", kind: str = "OpenAI") -> Any:
    return getattr(needs("openai"), kind)(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=PATIENCE)


def wait_until(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@contextmanager
def serving(
    template: str | None = TEMPLATE, api_key: str | None = None, tokenizer: Any = None, model: Any = None, **options
) -> Iterator[Here]:
    """A server in a thread; `options` are those of `make_service`."""
    for name in ("fastapi", "uvicorn", "prometheus_client"):
        needs(name)
    import uvicorn

    from transformers_xl.serve.app import build_app
    from transformers_xl.serve.server_process import make_service

    model = letters_model() if model is None else model
    service = make_service(model, tokenizer or ByteTokenizer(chat_template=template), NAME, **options)
    app = build_app(service, "127.0.0.1", api_key)
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        url = f"http://{host}:{port}"
        yield Here(url, client_of(url, api_key or "none"), service)
    finally:
        service.engine.cut()
        server.should_exit = True
        thread.join(PATIENCE)
        service.close()


class Process:
    """`transformers-xl serve` with these words in a process of its own, which writes to files named like `written`."""

    def __init__(self, written: Path, *words: object):
        self.written = written
        given = ["serve", *map(str, words), "--port", "0"]
        self.process = fork_server().Process(
            target=run_program, args=("transformers_xl.cli.main", given, {"HF_HUB_OFFLINE": "1"}, str(written))
        )
        self.process.start()

    def wait(self) -> Here:
        """Until it says where it listens."""

        def where() -> Any:
            assert self.process.is_alive(), self.said()
            return re.search(r"running on (http://127\.0\.0\.1:\d+)", self.said())

        wait_until(where)
        url = where()[1]
        return Here(url, client_of(url))

    def said(self) -> str:
        files = [self.written.with_suffix(suffix) for suffix in (".out", ".err")]
        return "".join(file.read_text() for file in files if file.exists())

    def end(self, sign: int) -> int | None:
        """Send a signal, and wait for its end; its exit code."""
        os.kill(self.process.pid, sign)
        self.process.join(PATIENCE)
        return self.process.exitcode
