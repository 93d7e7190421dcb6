"""The model and the tokenizer of a run: new ones, or those of a base."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.training_args import OptimizerNames

from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.files.blaming import blamed
from transformers_xl.hub.installing import pip_install
from transformers_xl.runs.adding_memory import load_with_memory
from transformers_xl.runs.fitting import (
    BYTES_OF_WEIGHT,
    BYTES_WITH_ADAM,
    BYTES_WITH_GRADIENT,
    check_memory,
)
from transformers_xl.runs.loading import (
    TRANSLATOR,
    base_config,
    change_config,
    check_loaded,
    check_weights,
    config_of,
    import_models,
    load_tokenizer,
    to_be_had,
    without_code,
)
from transformers_xl.runs.run_config import LoraSection, RunConfig, config_fields, memory_fields
from transformers_xl.runs.run_data import text_folder
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer


def run_tokenizer(config: RunConfig, trust_remote_code: bool = False) -> Any:
    """The tokenizer of `tokenizer.path`, of `model.base`, or in a folder of texts (or its `tokenizer`); else bytes.
    `trust_remote_code`: let it run custom code.

    Raises:
        ValueError: a file of it is damaged, or `model.vocab_size` is that of another one.
        OSError: it is missing.
    """
    folder = text_folder(config.data)
    path = config.tokenizer.path or config.model.base
    if path is None and folder is not None:
        places = (folder, folder / "tokenizer")
        path = next((str(place) for place in places if (place / "tokenizer_config.json").is_file()), None)
    if path is None:
        size = config.model.vocab_size
        if size not in (None, len(ByteTokenizer())):
            raise ValueError(
                f"`model.vocab_size`={size} is not that of bytes, {len(ByteTokenizer())}: name the tokenizer with "
                "`tokenizer.path`, or read bytes with `model.vocab_size=null`."
            )
        return ByteTokenizer()
    if Path(path).is_dir():
        return load_tokenizer(Path(path), trust_remote_code)
    with (
        to_be_had(
            "tokenizer.path", path, "write it with `transformers-xl prepare` or `transformers-xl tokenizer train`"
        ),
        without_code(path),
    ):
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)


def run_model(config: RunConfig, tokenizer: Any, trust_remote_code: bool = False) -> Any:
    """The model to train, with adapters where there are to be some.

    Args:
        config: the run.
        tokenizer: the run's.
        trust_remote_code: let the base run custom code.

    Raises:
        ValueError: it cannot be built, a field of `model` would change the weights of `model.base`, the vocabulary is
            smaller than the tokenizer's, or the machine's memory smaller than the model.
    """
    section = config.model
    _check_vocabulary(section.vocab_size, tokenizer)
    transformers.set_seed(config.training.seed)
    if section.base is None:
        model = _new_model(config, tokenizer)
    elif (kind := base_config(section.base, trust_remote_code).model_type) in import_models():
        model = _base_model(config)
    elif kind == TRANSLATOR:
        raise ValueError(
            f"`model.base`={section.base!r} is an encoder-decoder: name its pairs with `data.source` and `data.target`."
        )
    else:
        _check_adapters(section.base, config.lora)
        fields = memory_fields(config.memory)
        model = load_with_memory(section.base, fields, trust_remote_code, _bytes_each(config), _dtype(config))
    _check_vocabulary(model.config.vocab_size, tokenizer)
    return _with_adapters(model, config.lora) if config.lora.r else model


def _check_vocabulary(size: int | None, tokenizer: Any) -> None:
    if size is not None and size < len(tokenizer):
        raise ValueError(
            f"`model.vocab_size`={size} is less than the {len(tokenizer)} tokens of the tokenizer: leave it out, or name "
            "another tokenizer with `tokenizer.path`."
        )


def _check_adapters(base: str, section: LoraSection) -> None:
    """Adapters name the model that they belong to: it has to be there, with its memory."""
    if section.r and not section.merge:
        raise ValueError(
            f"`lora.r`={section.r} saves adapters alone, and `model.base`={base!r} has no memory: run `transformers-xl "
            "add-memory` first and use its output as the base, or add --lora.merge true."
        )


def _new_model(config: RunConfig, tokenizer: Any) -> Any:
    row = import_models()[config.model.variant]
    if row.config_class is SegmentMemoryConfig:
        raise ValueError(
            "`model.base`=None, but `memory` needs a model of transformers: give its folder or repository."
        )
    fields = config_fields(config.model)
    fields["vocab_size"] = fields["vocab_size"] or len(tokenizer)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        fields[name] = getattr(tokenizer, name) if fields[name] is None else fields[name]
    if config.tokenizer.clusters:
        fields["cutoffs"] = _suggested_cutoffs(tokenizer, config.tokenizer.clusters, fields["div_val"])
    model_config = row.config_class(**fields)
    check_memory(lambda: row.causal_lm_class(model_config), _bytes_each(config))
    return row.causal_lm_class(model_config)


def _bytes_each(config: RunConfig) -> int:
    """What a parameter takes in training, at the least."""
    if config.lora.r:
        return BYTES_OF_WEIGHT
    is_adam = OptimizerNames(config.training.optim).value.startswith("adamw_torch")
    return BYTES_WITH_ADAM if is_adam else BYTES_WITH_GRADIENT


def _dtype(config: RunConfig) -> torch.dtype | str:
    """The type in which weights of a base are loaded: float32 where they are trained. Adapters are float32 themselves; what
    they are merged into has to hold what they learned."""
    return "auto" if config.lora.r and not config.lora.merge else torch.float32


def _suggested_cutoffs(tokenizer: Any, clusters: int, div_val: int) -> list[int]:
    if not hasattr(tokenizer, "suggest_cutoffs"):
        raise ValueError(
            f"`tokenizer.clusters`={clusters} needs counts of words, which a {type(tokenizer).__name__} does not keep: "
            "give `model.cutoffs`, or a vocabulary that `transformers-xl tokenizer train` wrote."
        )
    return tokenizer.suggest_cutoffs(clusters, div_val)


def _base_model(run: RunConfig) -> Any:
    section, base = run.model, str(run.model.base)
    config = config_of(base)
    asked = memory_fields(run.memory) or config_fields(section)
    changed = {name: value for name, value in asked.items() if getattr(config, name) != value}
    change_config(config, changed)
    if Path(base).is_dir():
        with blamed(Path(base)):
            check_weights(Path(base), config, AutoModelForCausalLM)
    check_memory(lambda: AutoModelForCausalLM.from_config(config), _bytes_each(run))
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        base, config=config, dtype=_dtype(run), output_loading_info=True, trust_remote_code=False
    )
    model, info = loaded
    check_loaded(base, info, changed)
    return model


def _with_adapters(model: Any, section: LoraSection) -> Any:
    """LoRA on the layers that are named; what a memory around the model has learned, or begins with, is saved along."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError(f"`lora.r`={section.r} needs the package peft: {pip_install('lora')}.") from error
    added = model.reader.named_modules() if isinstance(model.config, SegmentMemoryConfig) else ()
    return get_peft_model(
        model,
        LoraConfig(
            modules_to_save=[name for name, module in added if [*module.parameters(recurse=False)]] or None,
            r=section.r,
            lora_alpha=section.alpha or 2 * section.r,
            lora_dropout=section.dropout,
            target_modules=section.target_modules,
            task_type="CAUSAL_LM",
        ),
    )


__all__ = ["run_model", "run_tokenizer"]
