"""`transformers-xl serve`: a server that speaks OpenAI's protocol, for one model."""

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
    seed: Annotated[int | None, Option(help="Seed of sampling, where a request has none.")] = None,
    max_prompt: Annotated[int, Option(min=1, help="Longest prompt that is read, in tokens.")] = 16_384,
    max_tokens: Annotated[int, Option(min=1, help="Most tokens that a request may ask for.")] = 4_096,
) -> None:
    """Serve one model: /v1/completions, and /v1/chat/completions and /v1/responses if it has a chat template.

    Requests use the same name of the model as this command. An argument that is not honoured is refused by its name.
    Ctrl-C stops the server.
    """
    from transformers_xl.runs.serving import prepare_model, run_server
    from transformers_xl.runs.serving_requests import Bounds

    prepare_model(model)
    run_server(model, host, port, device, dtype, seed, Bounds(max_prompt, max_tokens))


__all__ = ["serve"]
