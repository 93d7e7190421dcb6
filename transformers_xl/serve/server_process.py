"""The server as a process: it listens until it is told to end, and then lets answers end, or cuts them."""

import asyncio
import random
import socket
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from transformers_xl.data.turns import Template, end_ids
from transformers_xl.serve.app import build_app
from transformers_xl.serve.bounds import Bounds
from transformers_xl.serve.engine import Engine
from transformers_xl.serve.freed_memory import give_back_freed_memory
from transformers_xl.serve.scheduler import Scheduler
from transformers_xl.serve.server_metrics import Metrics
from transformers_xl.serve.service import Service
from transformers_xl.serve.session_store import SessionStore

GRACE = 2.5  # seconds that running answers have to end by themselves
TICKS = 600  # of a tenth of a second, after which freed memory is given back
LAST_WORDS = 4  # seconds after which whoever still listens is left: the process ends within 5


class Sessions(NamedTuple):
    """Where sessions are kept, how many, and for how many days after they were last used."""

    folder: Path
    most: int = 10_000
    days: float = 30.0


class Address(NamedTuple):
    """What a server listens on, and the key that its requests must know."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None


class Server(uvicorn.Server):
    """A server of `engine`, whose running answers are cut when it has been told to end for `GRACE` seconds."""

    def __init__(self, config: uvicorn.Config, engine: Engine):
        super().__init__(config)
        self.engine = engine

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS == TICKS - 1:
            await asyncio.to_thread(give_back_freed_memory)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.engine.is_ending = True
        cutting = asyncio.get_running_loop().call_later(GRACE, self.engine.cut)
        await super().shutdown(sockets)
        cutting.cancel()
        await asyncio.to_thread(self.engine.close, 0.5)


def make_service(
    model: Any,
    tokenizer: Any,
    name: str,
    *,
    bounds: Bounds | None = None,
    sessions: Sessions | None = None,
    capacity: int = 16,
    seed: int | None = None,
) -> Service:
    """All that answers for a model.

    Args:
        model: a language model that remembers.
        tokenizer: its tokenizer.
        name: how requests call it.
        bounds: what a request may ask for; None: the defaults of [`~transformers_xl.serve.bounds.Bounds`].
        sessions: where they are kept; None: nowhere.
        capacity: texts that are written at the same time.
        seed: of the seeds of requests that have none; None: nobody can tell them.

    Raises:
        ValueError: the model remembers nothing, and sessions were asked for.
        OSError: the folder of the sessions cannot be written to.
    """
    if sessions is not None and not model.config.mem_len:
        raise ValueError(
            f"`sessions`={str(sessions.folder)!r}: `model` is a {model.config.model_type!r} with `mem_len`=0, which has no "
            "memory to keep: leave it out."
        )
    store = None if sessions is None else SessionStore(sessions.folder, model, sessions.most, sessions.days)
    template = None if getattr(tokenizer, "chat_template", None) is None else Template(tokenizer)  # before any thread
    bounds = bounds or Bounds()
    engine = Engine(lambda: Scheduler(model, tokenizer, capacity=capacity), bounds.waiting)
    seeds = random.SystemRandom() if seed is None else random.Random(seed)
    vocab_size = model.get_input_embeddings().num_embeddings
    return Service(name, tokenizer, vocab_size, engine, Metrics(), bounds, store, seeds, template, end_ids(model))


def run_server(service: Service, address: Address) -> None:
    """Answer until the process is told to end (Ctrl-C, SIGTERM)."""
    config = uvicorn.Config(
        build_app(service, address.host, address.api_key),
        host=address.host,
        port=address.port,
        timeout_graceful_shutdown=LAST_WORDS,
        proxy_headers=False,
        server_header=False,
        lifespan="off",
        access_log=False,
    )
    try:
        Server(config, service.engine).run()
    except KeyboardInterrupt:  # uvicorn raises it again when it has ended
        pass
    finally:
        service.close()


__all__ = ["Address", "Sessions", "make_service", "run_server"]
