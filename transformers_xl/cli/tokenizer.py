"""`transformers-xl tokenizer train`: a vocabulary of the words of text files."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import AsJson, OneForm, check_output
from transformers_xl.files.output_folder import output_folder

tokenizer = typer.Typer(help="Make tokenizers.", no_args_is_help=True)


@tokenizer.command("train", cls=OneForm, no_args_is_help=True)
def train_tokenizer(
    texts: Annotated[
        list[Path],
        Argument(exists=True, dir_okay=False, readable=True, help="Text files in UTF-8, read in this order."),
    ],
    output: Annotated[Path, Option("--output", "--out", "-o", help="Folder to write: the tokenizer, and its counts.")],
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output folder if it exists.")] = False,
    min_freq: Annotated[int, Option(help="Leave out words that occur less often.")] = 1,
    max_size: Annotated[
        int | None, Option(help="Largest number of tokens, special ones included.", show_default="no limit")
    ] = None,
    lower_case: Annotated[bool, Option("--lower-case", help="Lower-case the text.")] = False,
    split: Annotated[
        str,
        Option(help="moses: text as people write it; spaces: text that is already split, like WikiText; characters."),
    ] = "moses",
    add_eos: Annotated[bool, Option(help="Make the end of a line the token <eos>.")] = True,
    clusters: Annotated[int, Option(help="Clusters of the adaptive softmax to suggest cutoffs for.")] = 4,
    div_val: Annotated[int, Option(help="Each cluster's vectors are narrower by this factor.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Make a word tokenizer from text files, and suggest where an adaptive softmax should cut its vocabulary."""
    check_output(output, overwrite, texts)
    for name, value in (("clusters", clusters), ("div_val", div_val)):
        if value < 1:
            raise ValueError(f"`{name}`={value} must be 1 or more.")
    typer.echo("starting ...", err=True)  # the import takes seconds
    from transformers_xl.data.text_files import TextFile, refuse_table
    from transformers_xl.tokenization.tokenization_words import WordTokenizer

    for text in texts:
        refuse_table(str(text))
        if TextFile(text).is_compressed:
            raise ValueError(f"`texts`: {str(text)!r} is compressed: unpack it first.")
    words = WordTokenizer.train_from_files(
        texts, min_freq=min_freq, max_size=max_size, lower_case=lower_case, split=split, add_eos=add_eos
    )
    cutoffs = words.suggest_cutoffs(clusters, div_val)
    with output_folder(output) as folder:
        words.save_pretrained(folder)
    if as_json:
        found = {"tokens": len(words), "unknown_share": words.unknown_share, "cutoffs": cutoffs, "output": str(output)}
        typer.echo(json.dumps(found, indent=1))
        return
    typer.echo(f"{len(words):,} tokens; {words.unknown_share:.3%} of the text is <unk>")
    typer.echo(f"cutoffs for {clusters} clusters at the least expected cost: {cutoffs}")
    typer.echo(f"wrote {output}")


__all__ = ["tokenizer"]
