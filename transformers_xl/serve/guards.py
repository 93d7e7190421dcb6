"""Who is answered: users of this machine, or whoever knows the key; never a page of another site."""

import hmac
import json
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from transformers_xl.serve.bounds import RequestError


class Guard(NamedTuple):
    """An application of ASGI around `app` that passes on what comes from a user of this server.

    Args:
        app: the application.
        host: what the server listens on, and the name by which it may be called.
        api_key: what a request must know, but one for `/health`; None: nothing.
    """

    app: Any
    host: str
    api_key: str | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        objection = self.objection(scope) if scope["type"] == "http" else None
        if objection is None:
            await self.app(scope, receive, send)
        else:
            await JSONResponse(objection.body(), objection.status)(scope, receive, send)

    def objection(self, scope: Any) -> RequestError | None:
        """Why a request is not answered: a page of another site sends it, its name led here, or it knows no key."""
        headers = Headers(scope=scope)
        named, origin = headers.get("host"), headers.get("origin")
        if not is_own_authority(named, self.host):
            said = f"`Host`={json.dumps(named)} is not this server: name it localhost, or start it with --host."
            return RequestError(said, "Host", 403)
        if origin is not None and not is_own_authority(origin.partition("://")[2], self.host):
            said = f"`Origin`={json.dumps(origin)}: pages of other sites are not answered."
            return RequestError(said, "Origin", 403)
        if self.api_key is not None and scope["path"] != "/health":
            kind, _, key = headers.get("authorization", "").partition(" ")
            is_right = hmac.compare_digest(key.encode("latin-1"), self.api_key.encode())  # bytes, as they came
            if kind.lower() != "bearer" or not is_right:
                said = "`Authorization` must be Bearer and the key that this server was started with (--api-key)."
                return RequestError(said, "Authorization", 401, "invalid_api_key")
        return None


def check_key(api_key: str | None) -> None:
    """Raise a `ValueError` where a key is nothing, as that of a variable that is not set: who sends none would know it."""
    if api_key is not None and not api_key.strip():
        raise ValueError(f"`api_key`={api_key!r} is no key: give one, or leave it out, and its variable unset.")


def is_own_authority(authority: str | None, host: str) -> bool:
    """Whether a request names this server: a page of another name may lead to its address too (DNS rebinding).

    Args:
        authority: of the header `Host`: a name or an address, with or without a port.
        host: what the server listens on.
    """
    try:
        name = urlsplit(f"//{authority}").hostname
    except ValueError:
        return False
    if name in ("localhost", host.lower()):
        return True
    try:
        address = ip_address(name or "")
    except ValueError:
        return False
    # whoever listens on all addresses has many; an address is no name that could lead elsewhere tomorrow
    return address.is_loopback or host in ("0.0.0.0", "::")


__all__ = ["Guard", "is_own_authority"]
