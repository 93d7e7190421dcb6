"""What `/metrics` says, in the text format of Prometheus."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

PREFIX = "transformers_xl"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counters of one server; every server has a registry of its own.

    Attributes:
        requests: by endpoint and status.
        seconds: of a request until its answer has ended, by endpoint.
        first_seconds: until its first event, by endpoint.
        prompt_tokens, new_tokens: read and written.
        finished: texts, by the reason of their end.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def made(kind: type, name: str, described: str, labels: tuple[str, ...] = (), **more):
            return kind(f"{PREFIX}_{name}", described, labels, registry=self.registry, **more)

        self.requests = made(Counter, "requests", "Requests that were answered.", ("endpoint", "status"))
        self.seconds = made(Histogram, "request_seconds", "Until an answer ended.", ("endpoint",), buckets=SECONDS)
        self.first_seconds = made(
            Histogram, "first_event_seconds", "Until an answer began.", ("endpoint",), buckets=SECONDS
        )
        self.prompt_tokens = made(Counter, "prompt_tokens", "Tokens that were read.")
        self.new_tokens = made(Counter, "new_tokens", "Tokens that were written.")
        self.finished = made(Counter, "texts", "Texts that have ended.", ("reason",))

    def watch(self, name: str, described: str, value: Callable[[], float]) -> None:
        """A number that is asked for when somebody wants to know it."""
        Gauge(f"{PREFIX}_{name}", described, registry=self.registry).set_function(value)

    def count(self, choices: Sequence[Any], prompt_tokens: int) -> None:
        """Texts that have ended ([`~transformers_xl.serve.answers.Choice`]), and what was read for them."""
        self.prompt_tokens.inc(prompt_tokens)
        for each in choices:
            self.new_tokens.inc(len(each.token_ids))
            self.finished.labels(each.finish_reason).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Measured(NamedTuple):
    """An application of ASGI around `app` that counts its answers in `metrics`."""

    app: Any
    metrics: Metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, first = time.perf_counter(), "499", 0.0

        async def counted(message: Any) -> None:
            nonlocal status, first
            if message["type"] == "http.response.start":
                status = str(message["status"])
            elif not first and message.get("body"):
                first = time.perf_counter() - started
            await send(message)

        try:
            await self.app(scope, receive, counted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(route, status).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - started)
            self.metrics.first_seconds.labels(route).observe(first)


__all__ = ["Measured", "Metrics"]
