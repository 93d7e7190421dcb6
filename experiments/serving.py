"""The server of `transformers-xl serve`: that of transformers, with our models known to it."""

from pathlib import Path

import transformers
from tokenizers.processors import TemplateProcessing
from transformers.utils.import_utils import is_serve_available

from transformers_xl.cpu.onednn_linear import accelerate_linear_layers
from transformers_xl.experiments.loading import check_language_model, config_of, import_models, load_model
from transformers_xl.hub.installing import pip_install
from transformers_xl.streams.text_beginning import beginning_of


def build_server(model: str) -> type:
    """The class whose construction serves `model`, once the model was found to be whole.

    Raises:
        ValueError: a package is missing, it is no language model of this package, or a file of it is damaged.
        OSError: there is no such folder or repository.
    """
    import_models()
    if not is_serve_available():
        raise ValueError(f"`serve` needs fastapi, uvicorn and openai: {pip_install('serve')}.")
    check_model(model)
    return server_of(model)


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


def server_of(model: str) -> type:
    """The server of transformers, which lists `model` and nothing else, and answers wrong requests with status 400."""
    from fastapi import Request
    from fastapi.responses import JSONResponse
    from transformers.cli import serve as library
    from transformers.cli.serving import model_manager, server

    build_app = server.build_server

    def build(*args, **kwargs):
        app = build_app(*args, **kwargs)

        @app.exception_handler(ValueError)
        async def refuse(_: Request, error: ValueError) -> JSONResponse:
            message = {"message": str(error), "type": "invalid_request_error"}
            return JSONResponse({"error": message}, status_code=400)

        return app

    load_processor = model_manager.ModelManager._load_processor

    def load_open_ended(*args, **kwargs):
        return open_ended(load_processor(*args, **kwargs))

    setattr(model_manager.ModelManager, "_load_processor", load_open_ended)  # noqa: B010
    server.build_server = build
    entry = {"id": model, "object": "model", "created": 0, "owned_by": "transformers-xl"}
    setattr(model_manager.ModelManager, "get_gen_models", staticmethod(lambda *_: [entry]))  # noqa: B010
    return library.Serve


def open_ended(tokenizer):
    """The tokenizer, which begins texts as before and ends none: the server gives it prompts, whose text goes on."""
    beginning = beginning_of(tokenizer)
    if tokenizer("")["input_ids"] != beginning:
        tokens = tokenizer.convert_ids_to_tokens(beginning)
        special = list(zip(tokens, beginning, strict=True))
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=[*tokens, "$A"], special_tokens=special)
    return tokenizer


__all__ = ["build_server"]
