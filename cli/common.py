"""What the commands share: clean errors, loading a model folder, and a folder that is written whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from transformers_xl.training.output_lock import output_lock


def is_main_process() -> bool:
    """Whether this is the process that speaks for all that a launcher started; known before torch is imported."""
    return int(os.environ.get("RANK", 0)) == 0


@contextmanager
def clean_errors() -> Iterator[None]:
    """End the command with one line on stderr and exit code 2 where its input is wrong."""
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"Error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from error


def import_models() -> dict:
    """The table of variants, registered with the Auto classes, and transformers told to be quiet."""
    from transformers.utils import logging

    from transformers_xl.hub.saving import install
    from transformers_xl.modeling.auto import VARIANTS, register

    logging.disable_progress_bar()
    register()
    install()
    return VARIANTS


def load_model(folder: Path, any_kind: bool = False) -> tuple:
    """The causal language model in a folder, on the GPU where there is one, and its tokenizer. `any_kind` also takes those
    of transformers.

    Raises:
        ValueError: the folder holds no model of this package, or no language model.
        OSError: a file is missing in the folder.
    """
    config = config_of(str(folder), any_kind)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, config=config)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device=device).eval(), AutoTokenizer.from_pretrained(folder)


def config_of(model: str, any_kind: bool = False):
    """The config of a folder or repository, by the rules of `load_model`."""
    variants = import_models()
    from transformers import AutoConfig

    if Path(model).is_dir() and not Path(model, "config.json").is_file():
        raise ValueError(f"`model`={model!r} has no config.json: give a folder that `transformers-xl train` wrote.")
    config = AutoConfig.from_pretrained(model)
    if not any_kind and config.model_type not in variants:
        raise ValueError(f"`model`={model!r} holds a {config.model_type!r}: known are {', '.join(variants)}.")
    return config


def sampling(temperature: float, top_k: int) -> dict:
    """Arguments of `generate()`: at a temperature of 0 the likeliest token is taken."""
    return {"do_sample": True, "temperature": temperature, "top_k": top_k} if temperature else {"do_sample": False}


def streamer_of(tokenizer):
    """What shows new tokens on standard output while they are written: bytes as they come, or text word by word."""
    import transformers

    from transformers_xl.streams.streamers import ByteStreamer

    if hasattr(tokenizer, "decode_bytes"):
        return ByteStreamer(tokenizer, lambda data: typer.echo(data, nl=False))
    return transformers.TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)


def check_output(folder: Path, overwrite: bool) -> None:
    """Raise a `ValueError` where `folder` cannot be written."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`output`={str(folder)!r} is a file: give the name of a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise ValueError(f"`output`={str(folder)!r} is not empty: choose another folder, or add --overwrite.")


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place at the end, or disappears when the body fails.

    Raises:
        ValueError: another command writes `folder`.
    """
    folder = folder.absolute()
    with (
        output_lock(folder.with_name(f".{folder.name}.lock")),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as workspace,
    ):
        new, old = Path(workspace, "new"), Path(workspace, "old")
        new.mkdir()
        yield new
        if folder.exists():
            os.replace(folder, old)
        try:
            os.replace(new, folder)
        except OSError:
            if old.exists():
                os.replace(old, folder)
            raise


__all__ = [
    "check_output",
    "clean_errors",
    "config_of",
    "import_models",
    "is_main_process",
    "load_model",
    "sampling",
    "streamer_of",
    "written_whole",
]
