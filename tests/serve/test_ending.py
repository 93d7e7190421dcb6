"""Whose client has left is written no more; a server that is told to end lets answers end, or cuts them."""

import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from optional_packages import needs
from patience import PATIENCE
from served import NAME, Here, Process, greedy, save_letters, serving, wait_until

from transformers_xl.serve.bounds import Bounds

ENDLESS = {
    "completions": {"prompt": "a", "max_tokens": 10**9},
    "chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 10**9},
    "responses": {"input": "a", "max_output_tokens": 10**9},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Here]:
    with serving(bounds=Bounds(new_tokens=10**9, prompt=10**6)) as here:
        yield here


def is_writing(here: Here) -> bool:
    return here.service.engine.num_open > 0 and here.service.engine.num_running > 0


@pytest.mark.parametrize("path", ENDLESS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_its_text(server: Here, path: str, stream: bool):
    """It would be written for days."""
    content = json.dumps(ENDLESS[path] | {"stream": stream, **({"n": 2} if path == "completions" else {})}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        head = f"POST /v1/{path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        wait_until(lambda: is_writing(server))
        if stream:
            assert b"200 OK" in connection.recv(100)
    wait_until(lambda: server.service.engine.num_open == 0 and server.service.engine.num_running == 0)
    settings = {"model": NAME, "prompt": "Once", "max_tokens": 3, "temperature": 0}
    assert server.client.completions.create(**settings).choices[0].text == greedy("Once", 3)


def test_a_client_that_leaves_while_its_prompt_is_read(server: Here):
    """A long prompt holds nobody: others are answered meanwhile, and it ends when its client leaves."""
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(f"{server.url}/v1/completions", json={"prompt": "a" * 900_000}, timeout=httpx2.Timeout(60, read=1))
    settings = {"model": NAME, "prompt": "Once", "max_tokens": 3, "temperature": 0}
    assert server.client.completions.create(**settings).choices[0].text == greedy("Once", 3)
    wait_until(lambda: server.service.engine.num_open == 0)


def test_a_server_that_ends_cuts_what_never_ends(tmp_path: Path):
    """SIGTERM: a stream and a whole answer end with a reason, a session keeps what was written, the process ends."""
    for name in ("openai", "uvicorn", "prometheus_client"):
        needs(name)
    from transformers_xl.serve.server_process import GRACE, LAST_WORDS

    assert GRACE < LAST_WORDS < 5
    model, folder = save_letters(tmp_path / "model"), tmp_path / "sessions"
    words = (model, "--sessions", folder, "--max-tokens", 10**9, "--batch-size", 3)
    process = Process(tmp_path / "first", *words)
    answers: dict[str, object] = {}
    try:
        here = process.wait()
        settings = {"model": str(model), "temperature": 0}
        chat = here.client.chat.completions.create(
            **settings, messages=[{"role": "user", "content": "a"}], max_tokens=10**9, stream=True
        )
        next(chat)

        def ask(name: str, **options) -> None:
            try:
                answers[name] = here.client.responses.create(
                    **settings, input="Who is there?", max_output_tokens=10**9, **options
                )
            except needs("openai").APIStatusError as error:
                answers[name] = error

        threads = [threading.Thread(target=ask, args=(name,)) for name in ("one", "two", "waits")]
        for number, thread in enumerate(threads):
            thread.start()
            running = min(number + 2, 3)
            wait_until(lambda running=running: here.metric("running_texts") == running)
        wait_until(lambda: here.metric("waiting_texts") == 1)
        code = process.end(signal.SIGTERM)
        for thread in threads:
            thread.join()
    finally:
        process.process.kill()
    assert code in (0, -signal.SIGTERM), process.said()
    assert "Traceback" not in process.said()
    assert [chunk.choices[0].finish_reason for chunk in chat][-1] == "length"
    assert (answers["one"].status, answers["one"].incomplete_details.reason) == ("incomplete", None)
    assert answers["waits"].status_code == 503  # nothing was read of it: another server may answer
    written = answers["one"].output_text
    text = "user: Who is there?\nassistant: "
    assert written[:20] == greedy(text, 20)
    process = Process(tmp_path / "second", *words)
    try:
        here = process.wait()
        second = here.client.responses.create(
            **settings, input="And?", max_output_tokens=6, previous_response_id=answers["one"].id
        )
        assert second.output_text == greedy(f"{text}{written}\nuser: And?\nassistant: ", 6)
    finally:
        process.end(signal.SIGTERM)
