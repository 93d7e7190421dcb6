"""`transformers-xl add-memory`: a language model of others in, the same with a memory around it out."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsJson, TrustRemoteCode, check_output


def add_memory(
    base: Annotated[str, Argument(help="Language model of transformers: its folder, or repository on the Hub.")],
    output: Annotated[Path, Option("--output", "-o", help="Folder to write: config, weights, tokenizer, card.")],
    kind: Annotated[
        str,
        Option(
            help="window: every layer keeps the keys and values of the last positions. tokens: vectors that the model "
            "reads before a segment and writes after it; they must be trained.",
        ),
    ] = "window",
    mem_len: Annotated[
        int | None, Option(help="Window: positions that a token sees, itself included.", show_default="1024")
    ] = None,
    num_sinks: Annotated[
        int | None,
        Option(
            help="Window: first tokens of a text that stay visible (attention sinks).",
            show_default="4; 0 if the base has learned sinks, or sees no more than mem_len in any layer",
        ),
    ] = None,
    num_memory_tokens: Annotated[
        int | None, Option(help="Tokens: vectors that are read and written.", show_default="16")
    ] = None,
    segment_length: Annotated[
        int | None,
        Option(help="Tokens of a segment; tokens are written after each.", show_default="512"),
    ] = None,
    bptt_segments: Annotated[
        int | None, Option(help="Tokens: segments that gradients flow back through.", show_default="2")
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output folder if it exists.")] = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Give a language model of transformers a memory, and write a folder for all commands and the Hub.

    Weights, tokenizer, chat template and generation settings are those of the base. `train --model.base` fine-tunes the
    result, or a plain base with `--memory.kind`.
    """
    check_output(output, overwrite, [Path(base)])
    typer.echo("starting ...", err=True)  # the imports take seconds
    from transformers_xl.runs.adding_memory import write_with_memory

    given = {
        "kind": kind,
        "mem_len": mem_len,
        "num_sinks": num_sinks,
        "num_memory_tokens": num_memory_tokens,
        "segment_length": segment_length,
        "bptt_segments": bptt_segments,
    }
    fields = {name: value for name, value in given.items() if value is not None}
    model = write_with_memory(base, output, fields, trust_remote_code)
    if as_json:
        found = {"model": type(model).__name__, "base": type(model.backbone).__name__, "output": str(output)}
        typer.echo(json.dumps(found | {"parameters": model.num_parameters()}, indent=1))
        return
    typer.echo(f"{type(model.backbone).__name__} with memory: {model.num_parameters():,} parameters")
    typer.echo(f"wrote {output}")


__all__ = ["add_memory"]
