"""`transformers-xl convert`: old checkpoints in, a folder of this package out."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsJson, check_output


def convert(
    source: Annotated[
        Path,
        Argument(
            exists=True,
            help="model.pt of the original repository, a state dict of it, or a folder: that of a run with model.pt, or "
            "one that transformers 4.x wrote for transfo-xl.",
        ),
    ],
    output: Annotated[Path, Argument(help="Folder to write: config, weights as safetensors, tokenizer.")],
    vocab: Annotated[
        Path | None,
        Option(
            exists=True,
            dir_okay=False,
            help="Vocabulary: cache.pt of the original repository, vocab.pkl, vocab.bin or vocab.json.",
            show_default="one of these, beside the weights",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        Option(
            exists=True,
            dir_okay=False,
            help="JSON file of hyper-parameters by their original names, for a state dict: mem_len, clamp_len, "
            "same_length, pre_lnorm, and cutoffs with div_val 1.",
        ),
    ] = None,
    cluster_order: Annotated[
        str | None,
        Option(
            help="Row of cluster_weight that belongs to the i-th cluster of rare words: natural, the i-th; reversed, the "
            "i-th from the end.",
            show_default="reversed for model.pt, natural for a folder of transformers",
        ),
    ] = None,
    split: Annotated[
        str | None,
        Option(
            help="How the tokenizer splits a text into words: moses, by the rules of transformers 4.x; spaces, with <eos> "
            "at line ends, as WikiText is written.",
            show_default="spaces for model.pt, moses for a folder of transformers",
        ),
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output folder if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read a checkpoint of the original Transformer-XL, or of transformers 4.x, and write it in the format of this package.

    Nothing in the files is executed. The output is written whole or not at all.
    """
    check_output(output, overwrite, [each for each in (source, vocab, config) if each])
    if cluster_order not in (None, "natural", "reversed"):
        raise ValueError(f"`cluster_order`={cluster_order!r} must be 'natural' or 'reversed'.")
    if split not in (None, "moses", "spaces"):
        raise ValueError(f"`split`={split!r} must be 'moses' or 'spaces'.")
    typer.echo("starting ...", err=True)  # the imports take seconds
    from transformers_xl.runs.checkpoint_conversion import convert_checkpoint

    model, _, vocabulary = convert_checkpoint(source, output, vocab, config, cluster_order, split)
    name, size, mem_len = type(model).__name__, model.num_parameters(), model.config.mem_len
    if as_json:
        found = {"model": name, "parameters": size, "mem_len": mem_len, "output": str(output)}
        typer.echo(json.dumps(found | {"vocabulary": vocabulary and str(vocabulary)}, indent=1))
        return
    typer.echo(f"{name}: {size:,} parameters, a memory of {mem_len:,} tokens (`mem_len`)")
    if vocabulary is None:
        typer.echo("no vocabulary found: pass --vocab to convert the tokenizer as well")
    else:
        typer.echo(f"vocabulary of {model.config.vocab_size:,} tokens: {vocabulary}")
    typer.echo(f"wrote {output}")


__all__ = ["convert"]
