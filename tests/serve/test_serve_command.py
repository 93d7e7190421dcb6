"""`transformers-xl serve`: what cannot be served is said at once, and options reach the server."""

from pathlib import Path
from typing import Any

import pytest
import torch
from optional_packages import needs
from programs import run
from served import save_letters
from tiny import tiny_model

from transformers_xl.hub import installing

for name in ("fastapi", "uvicorn", "prometheus_client"):
    needs(name)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """In the place of the server."""
    given: list[Any] = []

    def run_server(service, address) -> None:
        service.close()
        given.extend([service, address])

    monkeypatch.setattr("transformers_xl.serve.server_process.run_server", run_server)
    return given


def test_what_cannot_be_served_is_said_at_once(tmp_path: Path, started: list):
    (tmp_path / "empty").mkdir()
    tiny_model("transformer_xl", "sequence_classification").save_pretrained(tmp_path / "classes", include_code=False)
    tiny_model("star_transformer").save_pretrained(tmp_path / "encoder", include_code=False)
    (tmp_path / "gpt").mkdir()
    (tmp_path / "gpt/config.json").write_text('{"model_type": "gpt2"}')
    model, blocked = save_letters(tmp_path / "model"), tmp_path / "file"
    blocked.write_text("")
    for words, message in {
        ("empty",): "config.json",
        ("classes",): "is not a language model",
        ("encoder",): "is not a language model",
        ("gpt",): "'gpt2'",
        (model.name, "--device", "gpu0"): "`device`='gpu0'",
        (model.name, "--dtype", "int8"): "`dtype`='int8'",
        (model.name, "--dtype", "nn"): "`dtype`='nn'",
        (model.name, "--sessions", blocked / "below"): "Not a directory",
        (model.name, "--api-key", ""): "`api_key`='' is no key",
        (model.name, "--api-key", " "): "`api_key`=' ' is no key",
    }.items():
        result = run("serve", tmp_path / words[0], *words[1:])
        assert result.exit_code == 2, (words, result.output)
        assert message in result.output
        assert result.output.startswith("Error: ")
    assert not started


def test_a_conversation_and_its_answer_are_kept_at_least(tmp_path: Path, started: list):
    result = run("serve", save_letters(tmp_path / "model"), "--sessions", tmp_path / "sessions", "--max-sessions", 1)
    assert result.exit_code == 2
    assert "max-sessions" in result.output
    assert not started


def test_a_variable_without_a_key_is_refused(tmp_path: Path, started: list, monkeypatch: pytest.MonkeyPatch):
    """It was meant to protect the server."""
    monkeypatch.setenv("TRANSFORMERS_XL_API_KEY", "")
    result = run("serve", save_letters(tmp_path / "model"))
    assert result.exit_code == 2
    assert "`api_key`='' is no key" in result.output
    assert not started


def test_options_reach_the_server(tmp_path: Path, started: list, monkeypatch: pytest.MonkeyPatch):
    model = save_letters(tmp_path / "model")
    monkeypatch.setenv("TRANSFORMERS_XL_API_KEY", "sesame")
    options = {
        "dtype": "bfloat16", "seed": 3, "sessions": tmp_path / "sessions", "max-sessions": 7, "session-days": 2,
        "batch-size": 4, "max-prompt": 10, "max-tokens": 20, "max-choices": 2, "max-waiting": 9, "max-body": 1000,
        "host": "0.0.0.0", "port": 81,
    }  # fmt: skip
    result = run("serve", model, *(word for name, value in options.items() for word in (f"--{name}", value)))
    assert result.exit_code == 0, result.output
    service, address = started
    assert tuple(service.bounds) == (10, 20, 2, 9, 1000, 60.0)
    assert tuple(address) == ("0.0.0.0", 81, "sesame")
    assert (service.store.most, service.store.seconds, service.store.folder) == (7, 172_800, tmp_path / "sessions")
    scheduler = service.engine.make_scheduler()
    assert (scheduler.capacity, scheduler.model.dtype) == (4, torch.bfloat16)
    run("serve", model, "--seed", 3)
    assert started[2].seeds.random() == service.seeds.random()


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(installing, "find_spec", lambda name: None if name != "uvicorn" else name)
    result = run("serve", "anywhere")
    assert result.exit_code == 2
    assert "`serve` needs fastapi and prometheus_client: pip install '.[serve]'" in result.output
