"""The run of `transformers-xl convert`: an old checkpoint with its vocabulary in, a folder of this package out."""

from pathlib import Path
from typing import Any, NamedTuple

from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from transformers_xl.files.json_files import read_json
from transformers_xl.files.output_folder import output_folder
from transformers_xl.modeling.conversion.original import load_original
from transformers_xl.modeling.conversion.transfo_xl import tokenizer_arguments
from transformers_xl.modeling.conversion.vocabulary import HF_FILES, ORIGINAL_FILES, read_vocabulary
from transformers_xl.runs.loading import import_models
from transformers_xl.tokenization.tokenization_words import WordTokenizer


class Converted(NamedTuple):
    """A model, its tokenizer, and the file that its vocabulary is from; None where there is no vocabulary."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    vocabulary: Path | None


def convert_checkpoint(
    source: Path,
    output: Path,
    vocab: Path | None = None,
    config: Path | None = None,
    cluster_order: str | None = None,
    split: str | None = None,
) -> Converted:
    """Write the model of `source`, and its tokenizer where there is a vocabulary, to the folder `output`; return them.

    The arguments are those of the command.

    Raises:
        ValueError: a file is no checkpoint or vocabulary that is known, or they do not go together.
    """
    given = read_json(config) if config is not None else {}
    import_models()
    if (source / "config.json").is_file():
        if given:
            raise ValueError(f"`config`={str(config)!r} is of no use: {str(source)!r} has its own config.json.")
        found = _from_transformers(source, vocab, cluster_order, split)
    else:
        found = _from_original(source, vocab, given, cluster_order, split)
    model, tokenizer, _ = found
    if tokenizer is not None and model.config.eos_token_id is None:
        model.config.eos_token_id = tokenizer.eos_token_id
        if model.can_generate():
            model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.config.tokenizer_class = None  # what the new files say of themselves holds
    with output_folder(output) as folder:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    return found


def _from_transformers(source: Path, vocab: Path | None, cluster_order: str | None, split: str | None) -> Converted:
    described = read_json(source / "config.json")
    if described.get("model_type") != "transfo-xl":
        raise ValueError(
            f"`source`={str(source)!r} holds a {described.get('model_type')!r}: only 'transfo-xl' is converted."
        )
    written_as = str(described.get("architectures"))
    auto_class: Any = AutoModelForSequenceClassification if "Classification" in written_as else AutoModelForCausalLM
    auto_class = AutoModel if "TransfoXLModel" in written_as else auto_class
    model, info = auto_class.from_pretrained(
        source, cluster_order=cluster_order, trust_remote_code=False, output_loading_info=True
    )
    if info["missing_keys"]:
        raise ValueError(
            f"`source`={str(source)!r} holds no {min(info['missing_keys'])!r}, which would be random: correct "
            f"`architectures`={written_as} in its config.json, ['TransfoXLModel'] where it has no head."
        )
    beside = next((file for name in HF_FILES if (file := source / name).is_file()), None)
    if vocab is None and beside is not None and split != "spaces":
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        _check_size(model, tokenizer.vocab_size, source)
        return Converted(model, tokenizer, beside)
    written = source / "tokenizer_config.json"
    arguments = tokenizer_arguments(str(written) if written.is_file() else None)
    if vocab is None:
        vocab, arguments = beside, {"lower_case": False, **arguments}  # as `TransfoXLTokenizer`
    return Converted(model, _tokenizer(model, vocab, split or "moses", **arguments), vocab)


def _from_original(
    source: Path, vocab: Path | None, given: dict, cluster_order: str | None, split: str | None
) -> Converted:
    path = source / "model.pt" if source.is_dir() else source
    if not path.is_file():
        raise ValueError(f"`source`={str(source)!r} is a folder without config.json and without model.pt.")
    model = load_original(path, given, cluster_order or "reversed")
    if vocab is None:
        vocab = next((file for name in ORIGINAL_FILES if (file := path.parent / name).is_file()), None)
    return Converted(model, _tokenizer(model, vocab, split or "spaces"), vocab)


def _tokenizer(model, vocab: Path | None, split: str, **arguments: Any):
    """The tokenizer of a vocabulary, with `arguments` in the place of what it was pickled with. Texts that are parted at
    spaces have `<eos>` at line ends, where it has one."""
    if vocab is None:
        return None
    vocabulary = read_vocabulary(vocab)
    _check_size(model, len(vocabulary["idx2sym"]), vocab)
    if arguments.get("unk_token") not in vocabulary["sym2idx"]:
        arguments.pop("unk_token", None)
    return WordTokenizer.from_legacy(
        vocabulary,
        **arguments,
        split="moses" if split == "moses" else "characters" if vocabulary.get("delimiter") == "" else "spaces",
        add_eos=split == "spaces" and "<eos>" in vocabulary["sym2idx"],
    )


def _check_size(model, size: int, where: Path) -> None:
    if size != model.config.vocab_size:
        raise ValueError(
            f"{str(where)!r} has a vocabulary of {size} symbols, the model one of {model.config.vocab_size}."
        )


__all__ = ["Converted", "convert_checkpoint"]
