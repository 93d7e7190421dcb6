"""`transformers-xl serve`: a server that speaks OpenAI's protocol, for one model."""

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def serve(
    model: Annotated[str, Argument(help="Folder of a language model, or its repository on the Hub.")],
    host: Annotated[
        str, Option(help="Address to listen on, and the name by which requests may call it.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0: any free one, which is shown.")] = 8000,
    device: Annotated[str, Option(help="Device: cpu, cuda:0, ..., or auto.")] = "auto",
    dtype: Annotated[
        str, Option(help="Type of the weights: float32, bfloat16, ...; auto: as they were saved.")
    ] = "auto",
    seed: Annotated[int | None, Option(min=0, help="Seed of sampling, where a request has none.")] = None,
    sessions: Annotated[
        Path | None, Option(file_okay=False, help="Folder to keep sessions in; without it there are none.")
    ] = None,
    max_sessions: Annotated[
        int, Option(min=2, help="Answers and conversations that are kept; those unused for longest are removed.")
    ] = 10_000,
    session_days: Annotated[float, Option(min=0, help="Days for which an answer is kept that nobody uses.")] = 30.0,
    batch_size: Annotated[int, Option(min=1, help="Texts that are written at the same time.")] = 16,
    max_prompt: Annotated[int, Option(min=1, help="Longest prompt that is read, in tokens.")] = 16_384,
    max_tokens: Annotated[int, Option(min=1, help="Most tokens that a request may ask for.")] = 4_096,
    max_choices: Annotated[int, Option(min=1, help="Most texts that a request may ask for (`n`, prompts).")] = 16,
    max_waiting: Annotated[int, Option(min=1, help="Most texts that are written or wait; others get 503.")] = 256,
    max_body: Annotated[int, Option(min=1, help="Longest request, in bytes.")] = 2**20,
    api_key: Annotated[
        str | None,
        Option(
            envvar="TRANSFORMERS_XL_API_KEY",
            show_envvar=True,
            help="Key that requests must know; others see one on the command line, and none in the environment.",
        ),
    ] = None,
) -> None:
    """Serve one model: /v1/completions, /v1/chat/completions, /v1/responses, /v1/conversations, /v1/models, /metrics.

    Requests use the same name of the model as this command. An argument that is not honoured is refused by its name.
    With --sessions a response can be continued (`previous_response_id`, `conversation`), also after a restart.
    Ctrl-C or SIGTERM stops the server within 5 seconds.
    """
    empty = os.environ.get("TRANSFORMERS_XL_API_KEY") == ""  # which Typer takes for none
    from transformers_xl.hub.installing import check_installed
    from transformers_xl.runs.loading import load_anywhere
    from transformers_xl.serve.bounds import Bounds

    check_installed("serve", ("fastapi", "prometheus_client", "uvicorn"))
    from transformers_xl.serve.guards import check_key

    check_key("" if empty and api_key is None else api_key)
    loaded, tokenizer = load_anywhere(model, device, dtype)
    from transformers_xl.serve.server_process import Address, Sessions, make_service, run_server

    service = make_service(
        loaded,
        tokenizer,
        model,
        bounds=Bounds(max_prompt, max_tokens, max_choices, max_waiting, max_body),
        sessions=None if sessions is None else Sessions(sessions, max_sessions, session_days),
        capacity=batch_size,
        seed=seed,
    )
    run_server(service, Address(host, port, api_key))


__all__ = ["serve"]
