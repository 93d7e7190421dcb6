"""The server of `transformers-xl serve`: OpenAI's protocol by the handlers of transformers, with our models known to them.

Its app is ours: it has the endpoints below and no other, reads requests that `serving_requests.py` has checked, and answers
those that name this machine. What transformers would load, or throw away, at a request's word is not there.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import transformers
from transformers.utils.import_utils import is_serve_available

from transformers_xl.hub.installing import pip_install
from transformers_xl.runs.loading import check_language_model, config_of, import_models, load_model
from transformers_xl.runs.onednn_linear import accelerate_linear_layers
from transformers_xl.runs.serving_requests import (
    MAX_BODY,
    Bounds,
    RequestError,
    checked_request,
    is_own_authority,
)

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse


def prepare_model(model: str) -> None:
    """See that `model` can be served.

    Raises:
        ValueError: a package is missing, it is no language model of this package, or a file of it is damaged.
        OSError: there is no such folder or repository.
    """
    import_models()
    if not is_serve_available():
        raise ValueError(f"`serve` needs fastapi, uvicorn and openai: {pip_install('serve')}.")
    check_model(model)


def check_model(model: str) -> None:
    """Let transformers find the class of `model`, which it looks for among its own names.

    Raises:
        ValueError: it is no language model of this package, or a file of it is damaged.
        OSError: there is no such folder or repository.
    """
    config = config_of(model)
    check_language_model(model, config)
    if not config.architectures:  # as in folders of transformers 4: the server would not know what to load
        raise ValueError(f"`model`={model!r} names no `architectures` in config.json: use `transformers-xl convert`.")
    if Path(model).is_dir():
        load_model(Path(model))  # what is damaged is refused before the server starts

    class ServedModel(transformers.AutoModelForCausalLM):
        @classmethod
        def from_pretrained(cls, *args, **kwargs):
            return accelerate_linear_layers(super().from_pretrained(*args, **kwargs))

    for name in config.architectures:
        setattr(transformers, name, ServedModel)  # it finds what we have registered


def run_server(model: str, host: str, port: int, device: str, dtype: str, seed: int | None, bounds: Bounds) -> None:
    """Serve `model` until the process is interrupted; it has passed `prepare_model`."""
    import uvicorn
    from transformers.cli.serving.utils import set_torch_seed

    from transformers_xl.runs.serving_handlers import OneModelManager, handlers_of

    if seed is not None:
        set_torch_seed(seed)
    manager = OneModelManager(device=device, dtype=dtype, force_model=model)
    app = build_app(model, host, bounds, handlers_of(manager, bounds), manager.shutdown)
    uvicorn.run(app, host=host, port=port, log_level="info")


def build_app(
    model: str, host: str, bounds: Bounds, handlers: dict[str, Any], shutdown: Callable[[], None]
) -> "FastAPI":
    """The app: its endpoints, and what guards all of them."""
    from fastapi import FastAPI

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        shutdown()

    # no page of documentation: it would run scripts of another site here
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    add_guards(app, host)
    for path, handler in handlers.items():
        add_endpoint(app, path, handler, model, bounds)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "transformers-xl"}
        return {"object": "list", "data": [entry]}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


def add_guards(app: "FastAPI", host: str) -> None:
    """Answer only who means this server, and say in one sentence what is wrong with a request."""
    from fastapi import Request
    from jinja2 import TemplateError

    @app.middleware("http")
    async def guard(request: Request, call_next: Any) -> Any:
        objection = objection_to(request, host)
        return refused(objection, 403) if objection else await call_next(request)

    @app.exception_handler(ValueError)  # also those of `generate()`
    async def refuse(_: Request, error: ValueError) -> Any:
        return refused(error)

    @app.exception_handler(TemplateError)
    async def refuse_messages(_: Request, error: TemplateError) -> Any:
        return refused(RequestError(f"The chat template refuses these messages: {error}", "messages"))


def add_endpoint(app: "FastAPI", path: str, handler: Any, model: str, bounds: Bounds) -> None:
    from fastapi import Request

    @app.post(f"/v1/{path}")
    async def answer(request: Request) -> Any:
        body = checked_request(path, await read_json(request), model, bounds)
        return await handler.handle_request(body, request.headers.get("x-request-id") or str(uuid4()))


def objection_to(request: "Request", host: str) -> RequestError | None:
    """Why a request is none of a user of this machine: a page of another site sends it, or its name led here."""
    named, origin = request.headers.get("host"), request.headers.get("origin")
    if not is_own_authority(named, host):
        return RequestError(
            f"`Host`={named!r} is not this server: name it localhost, or start it with --host.", "Host"
        )
    if origin is not None and not is_own_authority(origin.partition("://")[2], host):
        return RequestError(f"`Origin`={origin!r}: pages of other sites are not answered.", "Origin")
    return None


def refused(error: Exception, status: int = 400) -> "JSONResponse":
    """An error as OpenAI's clients read it."""
    from fastapi.responses import JSONResponse

    said = {
        "message": str(error),
        "type": "invalid_request_error",
        "param": getattr(error, "field", None),
        "code": None,
    }
    return JSONResponse({"error": said}, status_code=status)


async def read_json(request: "Request") -> Any:
    """The body of a request.

    Raises:
        RequestError: it is too long, or no JSON, or says that it is none.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError("The header `Content-Type` of a request must be application/json.", "Content-Type")
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY:
            raise RequestError(f"The request is longer than {MAX_BODY:,} bytes.")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The request is no JSON: {error}.") from None


__all__ = ["prepare_model", "run_server"]
