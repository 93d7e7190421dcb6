"""`transformers-xl serve`: the server of transformers, which speaks OpenAI's protocol, with our models known to it."""

from typing import Annotated

from typer import Argument, Option


def serve(
    model: Annotated[str, Argument(help="Folder of a language model, or its repository on the Hub.")],
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0: any free one, which is shown.")] = 8000,
    device: Annotated[str, Option(help="Device: cpu, cuda:0, ..., or auto.")] = "auto",
    dtype: Annotated[
        str, Option(help="Type of the weights: float32, bfloat16, ...; auto: as they were saved.")
    ] = "auto",
    seed: Annotated[int | None, Option(help="Seed of sampling, where a request has none.")] = None,
) -> None:
    """Serve one model: /v1/completions, and /v1/chat/completions and /v1/responses if it has a chat template.

    Requests use the same name of the model as this command. Ctrl-C stops the server.
    """
    from transformers_xl.experiments.serving import build_server

    server = build_server(model)
    server(force_model=model, host=host, port=port, device=device, dtype=dtype, default_seed=seed)


__all__ = ["serve"]
