"""The application: the endpoints of OpenAI's protocol for one model, and what guards them.

No request loads or unloads a model, and there is no endpoint beside those in `build_app`.
"""

import time
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from transformers_xl.serve.bounds import RequestError, failed
from transformers_xl.serve.chat_endpoint import ChatCompletions
from transformers_xl.serve.completion_endpoint import Completions
from transformers_xl.serve.conversation_endpoint import Conversations
from transformers_xl.serve.guards import Guard, check_key
from transformers_xl.serve.response_endpoint import Responses
from transformers_xl.serve.server_metrics import Measured
from transformers_xl.serve.service import Service


def build_app(service: Service, host: str, api_key: str | None = None) -> FastAPI:
    """The application of `service`, which listens on `host` and answers who knows `api_key`, if there is one.

    Raises:
        ValueError: the key is empty: who sends none would know it.
    """
    check_key(api_key)
    # no page of documentation: it would run scripts of another site here
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    responses, conversations = Responses(service), Conversations(service)
    for method, path, answer in (
        ("POST", "/v1/completions", Completions(service).create),
        ("POST", "/v1/chat/completions", ChatCompletions(service).create),
        ("POST", "/v1/responses", responses.create),
        ("GET", "/v1/responses/{response_id}", responses.retrieve),
        ("DELETE", "/v1/responses/{response_id}", responses.delete),
        ("POST", "/v1/conversations", conversations.create),
        ("GET", "/v1/conversations/{conversation_id}", conversations.retrieve),
        ("DELETE", "/v1/conversations/{conversation_id}", conversations.delete),
    ):
        app.add_api_route(path, answer, methods=[method])
    add_descriptions(app, service)
    add_refusals(app)
    app.add_middleware(Guard, host=host, api_key=api_key)  # type: ignore[arg-type]  # the last one is asked first
    app.add_middleware(Measured, metrics=service.metrics)  # type: ignore[arg-type]  # the type of `app` is any
    return app


def add_descriptions(app: FastAPI, service: Service) -> None:
    """What the server says of itself."""
    entry = {"id": service.name, "object": "model", "created": int(time.time()), "owned_by": "transformers-xl"}
    service.metrics.watch("running_texts", "Texts that are being written.", lambda: service.engine.num_running)
    service.metrics.watch("waiting_texts", "Texts that wait for a place.", lambda: service.engine.num_waiting)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry]}

    @app.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> dict[str, Any]:
        if model_id != service.name:
            raise RequestError(f"This server has {service.name!r} alone.", "model", 404, "model_not_found")
        return entry

    @app.get("/health")
    async def health() -> Response:
        said = "ending" if service.engine.is_ending else "ok"
        return JSONResponse({"status": said}, 503 if service.engine.is_ending else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def add_refusals(app: FastAPI) -> None:
    """Say in one sentence what is wrong with a request."""

    @app.exception_handler(ValueError)
    async def refuse(_: Request, error: ValueError) -> Response:
        said = error if isinstance(error, RequestError) else RequestError(str(error))
        headers = {"Retry-After": "1"} if said.status == 503 else None
        headers = {"Connection": "close"} if said.status in (408, 413) else headers  # else it is sent to its end
        return JSONResponse(said.body(), said.status, headers)

    @app.exception_handler(HTTPException)
    async def refuse_path(request: Request, error: HTTPException) -> Response:
        said = RequestError(f"{request.method} {request.url.path[:100]}: {error.detail}.", status=error.status_code)
        return JSONResponse(said.body(), said.status, error.headers)

    @app.exception_handler(Exception)
    async def fail(_: Request, error: Exception) -> Response:
        return JSONResponse(failed().body(), 500)


__all__ = ["build_app"]
