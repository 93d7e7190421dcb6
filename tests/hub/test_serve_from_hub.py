"""`transformers-xl serve` with a repository of the Hub: its sessions go on after its local copy was made again."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from optional_packages import needs
from programs import run
from served import JSON, letters_model

from transformers_xl import ByteTokenizer

REPOSITORY = "owner/letters"
for name in ("fastapi", "prometheus_client", "uvicorn"):
    needs(name)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """In the place of the server: what is asked of it (method, path, body), and what it answers."""
    from fastapi.testclient import TestClient

    from transformers_xl.serve.app import build_app

    talk: list[Any] = []

    def run_server(service, address) -> None:
        with TestClient(build_app(service, address.host), base_url="http://127.0.0.1") as client:
            talk[:] = [client.request(*words[:2], json=words[2], headers=JSON).json() for words in talk]
        service.close()

    monkeypatch.setattr("transformers_xl.serve.server_process.run_server", run_server)
    return talk


def test_a_repository_is_served_and_its_sessions_go_on(hub, asked: list, tmp_path: Path):
    letters_model().push_to_hub(REPOSITORY)
    ByteTokenizer().push_to_hub(REPOSITORY)
    sessions, settings = tmp_path / "sessions", {"max_output_tokens": 4, "temperature": 0}

    def answer(said: str, **options: Any) -> dict:
        asked[:] = [
            ("GET", "/v1/models", None),
            ("POST", "/v1/responses", {"model": REPOSITORY, "input": said, **settings, **options}),
        ]
        result = run("serve", REPOSITORY, "--sessions", sessions)
        assert result.exit_code == 0, result.output
        assert [each["id"] for each in asked[0]["data"]] == [REPOSITORY]
        assert asked[1]["status"] == "incomplete", asked[1]
        return asked[1]

    first = answer("Once upon")
    shutil.rmtree(tmp_path / "cache")
    second = answer(" a time", previous_response_id=first["id"])
    texts = [each["output"][0]["content"][0]["text"] for each in (first, second)]
    whole = f"Once upon{texts[0]} a time".encode()
    ids = ByteTokenizer()(whole.decode(), return_tensors="pt")["input_ids"]
    assert letters_model().generate(ids, max_new_tokens=4, do_sample=False)[0, -4:].tolist() == list(texts[1].encode())


def test_a_repository_that_is_not_there_is_said(hub, asked: list):
    result = run("serve", "owner/nothing")
    assert result.exit_code == 2
    assert "owner/nothing" in result.output
    assert asked == []
