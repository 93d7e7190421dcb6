"""The stand-in for the Hub, with the real client turned to it."""

import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from huggingface_hub.utils import _http


def load_server() -> ModuleType:
    """`tests/hub` is no package, and `hub` is a folder of the project: the server is loaded from its file."""
    name = "stand_in_server"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("server.py"))
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


server = load_server()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator:
    """A server of its own for the test. What HF_ENDPOINT, HF_TOKEN, HF_HUB_DISABLE_XET and HF_HOME would say to a new
    process is set where the client has read them; its retries do not wait."""
    with server.HubServer() as running:
        constants = "huggingface_hub.constants"
        monkeypatch.setattr(f"{constants}.ENDPOINT", running.url)
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", running.url)  # which PEFT asks
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(f"{constants}.HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
        monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("transformers.utils.hub._hf_api", None)
        monkeypatch.setattr(_http, "time", SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None}))
        monkeypatch.setenv("HF_TOKEN", server.OWNER)
        yield running
