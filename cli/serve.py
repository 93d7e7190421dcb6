"""`transformers-xl serve`: the server of transformers, which speaks OpenAI's protocol, with our models known to it."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from transformers_xl.experiments.loading import check_language_model, config_of, import_models, load_model


def serve(
    model: Annotated[str, Argument(help="Folder of a language model, or its repository on the Hub.")],
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    device: Annotated[str, Option(help="As cpu, cuda:0, or auto.")] = "auto",
    dtype: Annotated[str, Option(help="Of the weights, as float32 or bfloat16; auto: as they were saved.")] = "auto",
    seed: Annotated[int | None, Option(help="Seed of sampling, where a request has none.")] = None,
) -> None:
    """Serve one model: /v1/completions, and /v1/chat/completions and /v1/responses if it has a chat template.

    Requests name the model as it is named here. Ctrl-C ends the server.
    """
    import_models()
    from transformers.utils.import_utils import is_serve_available

    from transformers_xl.hub.installing import pip_install

    if not is_serve_available():
        raise ValueError(f"`serve` needs fastapi, uvicorn and openai: {pip_install('serve')}.")
    check_model(model)
    server = server_of(model)
    server(force_model=model, host=host, port=port, device=device, dtype=dtype, default_seed=seed)


def check_model(model: str) -> None:
    """Let transformers find the class of `model`, which it looks for among its own names.

    Raises:
        ValueError: it is no language model of this package, or a file of it is damaged.
        OSError: there is no such folder or repository.
    """
    import transformers

    from transformers_xl.cpu.onednn_linear import accelerate_linear_layers

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


def server_of(model: str) -> type:
    """The library's server, which lists `model` and nothing else, and answers wrong requests with status 400."""
    from fastapi import Request
    from fastapi.responses import JSONResponse
    from transformers.cli import serve as library
    from transformers.cli.serving import model_manager, server

    build_server = server.build_server

    def build(*args, **kwargs):
        app = build_server(*args, **kwargs)

        @app.exception_handler(ValueError)
        async def refuse(_: Request, error: ValueError) -> JSONResponse:
            message = {"message": str(error), "type": "invalid_request_error"}
            return JSONResponse({"error": message}, status_code=400)

        return app

    server.build_server = build
    entry = {"id": model, "object": "model", "created": 0, "owned_by": "transformers-xl"}
    setattr(model_manager.ModelManager, "get_gen_models", staticmethod(lambda *_: [entry]))  # noqa: B010
    return library.Serve


__all__ = ["serve"]
