"""`transformers-xl generate`: a model writes on for as long as you like at constant memory."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import sampling, streamer_of
from transformers_xl.experiments.loading import load_model


def generate(
    model_dir: Annotated[Path, Argument(exists=True, file_okay=False, help="Folder of a model.")],
    prompt: Annotated[str, Option("--prompt", "-p", help="Text to continue.")],
    max_new_tokens: Annotated[int, Option(min=1, help="Number of tokens to write.")] = 300,
    temperature: Annotated[float, Option(min=0, help="Of sampling; 0 always takes the likeliest token.")] = 0.8,
    top_k: Annotated[int, Option(min=0, help="Sample from this many likeliest tokens; 0: from all.")] = 0,
    seed: Annotated[int, Option(help="Seed of sampling.")] = 0,
) -> None:
    """Continue a prompt, and stream what is written to standard output."""
    if not prompt:
        raise ValueError("`prompt`='' is empty: give at least one character to continue.")
    model, tokenizer = load_model(model_dir)
    import transformers

    inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").to(model.device)
    transformers.set_seed(seed)
    typer.echo(prompt, nl=False)
    model.generate(
        **inputs,
        max_new_tokens=max_new_tokens,
        streamer=streamer_of(tokenizer, continues=True),
        **sampling(temperature, top_k),
    )
    typer.echo()


__all__ = ["generate"]
