"""`transformers-xl convert`: old checkpoints in, a folder of this package out."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from transformers_xl.cli.common import check_output
from transformers_xl.experiments.loading import import_models
from transformers_xl.files.atomic_write import output_folder


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
            help="How the tokenizer parts a text into words: moses, by the rules of transformers 4.x; spaces, with <eos> "
            "at line ends, as WikiText is written.",
            show_default="spaces for model.pt, moses for a folder of transformers",
        ),
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output folder if it exists.")] = False,
) -> None:
    """Read a checkpoint of the original Transformer-XL, or of transformers 4.x, and write it in the format of this package.

    Nothing in the files is executed. The output is written whole or not at all.
    """
    check_output(output, overwrite)
    if cluster_order not in (None, "natural", "reversed"):
        raise ValueError(f"`cluster_order`={cluster_order!r} must be 'natural' or 'reversed'.")
    if split not in (None, "moses", "spaces"):
        raise ValueError(f"`split`={split!r} must be 'moses' or 'spaces'.")
    from transformers_xl.files.json_files import read_json

    given = read_json(config) if config is not None else {}
    typer.echo("starting ...", err=True)  # the imports take seconds
    import_models()
    if (source / "config.json").is_file():
        if given:
            raise ValueError(f"`config`={str(config)!r} is of no use: {str(source)!r} has its own config.json.")
        model, tokenizer = _from_transformers(source, vocab, cluster_order, split)
    else:
        model, tokenizer = _from_original(source, vocab, given, cluster_order, split)
    if tokenizer is not None and model.config.eos_token_id is None:
        model.config.eos_token_id = tokenizer.eos_token_id
        if model.can_generate():
            model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.config.tokenizer_class = None  # what the new files say of themselves holds
    with output_folder(output) as folder:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    typer.echo(f"{type(model).__name__}: {model.num_parameters():,} parameters")
    if tokenizer is None:
        typer.echo("no vocabulary found: give one by --vocab to have the tokenizer converted as well")
    typer.echo(f"wrote {output}")


def _from_transformers(source: Path, vocab: Path | None, cluster_order: str | None, split: str | None) -> tuple:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    from transformers_xl.files.json_files import read_json
    from transformers_xl.modeling.conversion.vocabulary import HF_FILES

    described = read_json(source / "config.json")
    if described.get("model_type") != "transfo-xl":
        raise ValueError(
            f"`source`={str(source)!r} holds a {described.get('model_type')!r}: only 'transfo-xl' is converted."
        )
    classifies = "SequenceClassification" in str(described.get("architectures"))
    auto_class = AutoModelForSequenceClassification if classifies else AutoModelForCausalLM
    model = auto_class.from_pretrained(source, cluster_order=cluster_order)
    beside = next((file for name in HF_FILES if (file := source / name).is_file()), None)
    if vocab is None and beside is not None and split != "spaces":
        tokenizer = AutoTokenizer.from_pretrained(source)
        _check_size(model, tokenizer.vocab_size, source)
        return model, tokenizer
    return model, _tokenizer(model, vocab or beside, split or "moses")


def _from_original(
    source: Path, vocab: Path | None, given: dict, cluster_order: str | None, split: str | None
) -> tuple:
    from transformers_xl.modeling.conversion.original import load_original
    from transformers_xl.modeling.conversion.vocabulary import ORIGINAL_FILES

    path = source / "model.pt" if source.is_dir() else source
    if not path.is_file():
        raise ValueError(f"`source`={str(source)!r} is a folder without config.json and without model.pt.")
    model = load_original(path, given, cluster_order or "reversed")
    if vocab is None:
        vocab = next((file for name in ORIGINAL_FILES if (file := path.parent / name).is_file()), None)
    return model, _tokenizer(model, vocab, split or "spaces")


def _tokenizer(model, vocab: Path | None, split: str):
    """The tokenizer of a vocabulary. Texts that are parted at spaces have `<eos>` at line ends, where it has one."""
    if vocab is None:
        return None
    from transformers_xl.modeling.conversion.vocabulary import read_vocabulary
    from transformers_xl.tokenization.tokenization_words import WordTokenizer

    vocabulary = read_vocabulary(vocab)
    _check_size(model, len(vocabulary["idx2sym"]), vocab)
    return WordTokenizer.from_legacy(
        vocabulary,
        split="moses" if split == "moses" else "characters" if vocabulary.get("delimiter") == "" else "spaces",
        add_eos=split == "spaces" and "<eos>" in vocabulary["sym2idx"],
    )


def _check_size(model, size: int, where: Path) -> None:
    if size != model.config.vocab_size:
        raise ValueError(
            f"{str(where)!r} has a vocabulary of {size} symbols, the model one of {model.config.vocab_size}."
        )


__all__ = ["convert"]
