"""Who is answered: users of this machine, or whoever knows the key; never a page of another site."""

from collections.abc import Iterator

import httpx2
import pytest
from optional_packages import needs
from patience import PATIENCE
from served import JSON, NAME, Here, client_of, serving

needs("fastapi")

from transformers_xl.serve.guards import is_own_authority  # noqa: E402  it imports the server


@pytest.fixture(scope="module")
def server() -> Iterator[Here]:
    with serving(api_key="sesame \u00e9") as here:
        yield here


@pytest.mark.parametrize("method", ["GET", "POST"])
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
def test_a_page_of_another_site_is_not_answered(server: Here, headers: dict, named: str, method: str):
    """Its name may lead to this address (DNS rebinding), or it asks across sites."""
    path = {"GET": "/v1/models", "POST": "/v1/completions"}[method]
    answer = httpx2.request(method, server.url + path, headers=headers | JSON, timeout=PATIENCE)
    assert answer.status_code == 403
    assert named in answer.json()["error"]["message"]
    assert httpx2.get(f"{server.url}/health", headers=headers, timeout=PATIENCE).status_code == 403


def test_a_page_of_this_machine_is_answered(server: Here):
    port = server.url.rpartition(":")[2]
    for headers in ({"Host": f"localhost:{port}"}, {"Origin": f"http://localhost:{port}"}):
        assert httpx2.get(f"{server.url}/health", headers=headers, timeout=PATIENCE).status_code == 200


def test_the_key(server: Here):
    assert server.get("health").status_code == 200
    for path in ("v1/models", "metrics", "v1/responses/resp_1"):
        answer = server.get(path)
        assert answer.status_code == 401
        assert "--api-key" in answer.json()["error"]["message"]
    for key in ("Basic sesame", "Bearer", "Bearer sesame", b"Bearer sesame \xff"):
        assert server.get("v1/models", headers={"Authorization": key}).status_code == 401
    assert server.get("v1/models", headers={"Authorization": "bearer sesame \u00e9".encode()}).status_code == 200
    with pytest.raises(needs("openai").AuthenticationError, match="api-key"):
        client_of(server.url, "wrong").completions.create(model=NAME, prompt="a")


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
