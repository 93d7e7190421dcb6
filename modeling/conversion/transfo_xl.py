"""Folders and repositories that transformers 1 to 4 wrote for `transfo-xl`, through the Auto classes: they load, run and
generate, and are saved in our format. Code: huggingface/transformers 4.35.2, `models/deprecated/transfo_xl`."""

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedConfig
from transformers.utils import cached_file

from transformers_xl.configuration.configuration_transfo_xl import OLD_FIELDS, TransfoXLConfig
from transformers_xl.configuration.configuration_transformer_xl import TransformerXLConfig
from transformers_xl.modeling.conversion.mem_transformer import translate_weights
from transformers_xl.modeling.conversion.safe_pickle import refusal, short_repr
from transformers_xl.modeling.conversion.torch_module import load_weights
from transformers_xl.modeling.conversion.vocabulary import HF_FILES, read_json, read_vocabulary
from transformers_xl.modeling.modeling_transformer_xl import register_legacy_reader
from transformers_xl.tokenization.tokenization_words import WordTokenizer

HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
MAX_HEADER = 4 * 2**20  # bytes of a safetensors file, of 100 for a tensor
SPECIAL_TOKENS = ("bos_token", "sep_token", "pad_token", "cls_token", "mask_token", "extra_special_tokens")
TOKENIZER_ARGUMENTS = {"lower_case": bool, "unk_token": str, "eos_token": str, "additional_special_tokens": list}


def _hub_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: kwargs[name] for name in HUB_ARGUMENTS if kwargs.get(name) is not None}


def _file(name: str, filename: str, hub: dict[str, Any]) -> str | None:
    """A local path to a file of a folder or repository, None where it has no such file."""
    return cached_file(
        name, filename, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_gated_repo=False, **hub
    )


def legacy_arguments(name: str | os.PathLike | None, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments with which transformers' `from_pretrained(None)` makes the model of a `transfo-xl` folder or
    repository; None for any other. `kwargs` are those that the user gave, `cluster_order` among them.

    Raises:
        ValueError: a file holds what such a checkpoint cannot hold; it is named, with the reason.
        OSError: there are no weights.
    """
    if name is None or kwargs.get("state_dict") is not None or kwargs.get("gguf_file") is not None:
        return None
    name, hub = os.fspath(name), _hub_arguments(kwargs)
    try:
        described, _ = PreTrainedConfig.get_config_dict(name, **hub)
    except OSError:
        return None  # transformers says what is missing
    if described.get("model_type") != TransfoXLConfig.model_type:
        return None
    kwargs = dict(kwargs)
    config = kwargs.pop("config", None)
    if not isinstance(config, PreTrainedConfig):
        today = {*TransformerXLConfig.__dataclass_fields__, *TransformerXLConfig.attribute_map, "num_labels"} - {
            "dtype"
        }
        fields = today | OLD_FIELDS
        overrides = {field: kwargs.pop(field) for field in [*kwargs] if field in fields}
        config = TransfoXLConfig.from_pretrained(name if config is None else config, **hub, **overrides)
    order = kwargs.pop("cluster_order", None) or described.get("cluster_order", "natural")
    files = _weight_files(name, hub, kwargs.pop("use_safetensors", None), kwargs.pop("variant", None))
    weights: dict[str, torch.Tensor] = {}
    for path in files:
        weights |= read_weights(path)
    state_dict = translate_weights(weights, config, files[0], order)
    if kwargs.get("generation_config") is None and _file(name, "generation_config.json", hub):
        kwargs["generation_config"] = GenerationConfig.from_pretrained(name, **hub)
    for argument in HUB_ARGUMENTS:
        kwargs.pop(argument, None)
    return kwargs | {"config": config, "state_dict": state_dict}


def _weight_files(name: str, hub: dict[str, Any], use_safetensors: bool | None, variant: str | None) -> list[str]:
    ending = f".{variant}" if variant else ""
    candidates = []
    if use_safetensors is not False:
        candidates += [f"model{ending}.safetensors", f"model.safetensors.index{ending}.json"]
    if use_safetensors is not True:
        candidates += [f"pytorch_model{ending}.bin", f"pytorch_model.bin.index{ending}.json"]
    for candidate in candidates:
        path = _file(name, candidate, hub)
        if path is not None:
            return _shards(name, path, hub) if candidate.endswith(".json") else [path]
    raise OSError(f"{str(name)!r} holds no weights: one of {', '.join(candidates)} is needed.")


def _shards(name: str, index: str, hub: dict[str, Any]) -> list[str]:
    try:
        shards = sorted(set(read_json(index)["weight_map"].values()))
    except (KeyError, TypeError, AttributeError) as error:
        raise refusal(index, "it is no index of weights") from error
    paths = []
    for shard in shards:
        path = _file(name, shard, hub) if isinstance(shard, str) and Path(shard).name == shard else None
        if path is None:
            raise refusal(index, f"it names {short_repr(shard)}, which is no file beside it")
        paths.append(path)
    return paths


def read_weights(path: str) -> dict[str, torch.Tensor]:
    """The tensors of a file, safetensors or of torch.

    Raises:
        ValueError: the file is no such file; it is named, with the reason.
    """
    if not path.endswith(".safetensors"):
        return load_weights(path)
    with open(path, "rb") as file:
        if int.from_bytes(file.read(8), "little") > MAX_HEADER:
            raise refusal(path, f"it is no safetensors file, or one with a header longer than {MAX_HEADER:,} bytes")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dict
    except (SafetensorError, RuntimeError, TypeError) as error:
        raise refusal(path, f"it is no safetensors file ({error})") from error


class TransfoXLTokenizer:
    """What `AutoTokenizer` finds for the `tokenizer_class` of old folders: it reads their vocabulary into a
    [`WordTokenizer`]."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str, *inputs, **kwargs) -> WordTokenizer:
        """The tokenizer of a folder or repository, whose vocabulary is `vocab.json`, `vocab.pkl` or `vocab.bin`.

        Raises:
            ValueError: a file holds what no vocabulary holds; it is named, with the reason.
            OSError: there is no vocabulary.
        """
        name, hub = pretrained_model_name_or_path, _hub_arguments(kwargs)
        if _file(name, "tokenizer.json", hub) is not None:  # saved again
            return WordTokenizer.from_pretrained(name, *inputs, **kwargs)
        paths = [path for filename in HF_FILES if (path := _file(name, filename, hub)) is not None]
        if not paths:
            raise OSError(f"{str(name)!r} holds no vocabulary: one of {', '.join(HF_FILES)} is needed.")
        vocabulary = read_vocabulary(paths[0])
        # what the tokenizer was made with won over what it had pickled, and so did the defaults
        arguments = {"lower_case": False, **tokenizer_arguments(_file(name, "tokenizer_config.json", hub))}
        arguments |= {each: kwargs[each] for each in TOKENIZER_ARGUMENTS if kwargs.get(each) is not None}
        if "unk_token" not in kwargs and arguments.get("unk_token") not in vocabulary["sym2idx"]:
            arguments.pop("unk_token", None)
        try:
            tokenizer = WordTokenizer.from_legacy(vocabulary, **arguments)
        except ValueError as error:
            raise refusal(paths[0], error) from error
        for attribute in ("padding_side", "truncation_side", "model_max_length"):
            if attribute in kwargs:
                setattr(tokenizer, attribute, kwargs[attribute])
        tokenizer.add_special_tokens({each: kwargs[each] for each in SPECIAL_TOKENS if kwargs.get(each) is not None})
        return tokenizer


def tokenizer_arguments(path: str | None) -> dict[str, Any]:
    """What a `tokenizer_config.json` says that the tokenizer's rules depend on; None: there is no such file.

    Raises:
        ValueError: the file says what cannot be.
    """
    if path is None:
        return {}
    try:
        given = read_json(path)
        chosen = {name: given[name] for name in TOKENIZER_ARGUMENTS if given.get(name) is not None}
    except (TypeError, AttributeError) as error:
        raise refusal(path, "it is not a JSON object") from error
    for name, value in chosen.items():
        if isinstance(value, dict):  # a token, written with its flags
            value = chosen[name] = value.get("content")
        if not isinstance(value, TOKENIZER_ARGUMENTS[name]):
            raise refusal(path, f"its `{name}` is {short_repr(value)}")
    return chosen


def register() -> None:
    """Make old folders known to the Auto classes, and to `TransformerXLModel.from_pretrained` and its siblings."""
    AutoConfig.register(TransfoXLConfig.model_type, TransfoXLConfig)
    AutoTokenizer.register(TransfoXLConfig, tokenizer_class=TransfoXLTokenizer)
    register_legacy_reader(legacy_arguments)


__all__ = ["TransfoXLTokenizer", "legacy_arguments", "read_weights", "register", "tokenizer_arguments"]
