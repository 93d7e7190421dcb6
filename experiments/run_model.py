"""The model and the tokenizer of a run: made anew, or taken from what is to be fine-tuned."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.training_args import OptimizerNames

from transformers_xl.experiments.fitting import (
    BYTES_OF_WEIGHT,
    BYTES_WITH_ADAM,
    BYTES_WITH_GRADIENT,
    check_memory,
)
from transformers_xl.experiments.loading import change_config, check_weights, config_of, import_models, load_tokenizer
from transformers_xl.experiments.run_config import LoraSection, RunConfig, config_fields
from transformers_xl.experiments.run_data import text_folder
from transformers_xl.files.blaming import blamed
from transformers_xl.hub.installing import pip_install
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer


def run_tokenizer(config: RunConfig) -> Any:
    """The tokenizer of `tokenizer.path`, of `model.base`, or in a folder of texts (or its `tokenizer`); else bytes.

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
                "`tokenizer.path`, or leave `vocab_size` out."
            )
        return ByteTokenizer()
    return load_tokenizer(Path(path)) if Path(path).is_dir() else AutoTokenizer.from_pretrained(path)


def run_model(config: RunConfig, tokenizer: Any) -> Any:
    """The model to train, with adapters where there are to be some.

    Raises:
        ValueError: it cannot be built, a field of `model` would change the weights of `model.base`, the vocabulary is
            smaller than the tokenizer's, or the machine's memory smaller than the model.
    """
    section = config.model
    size = section.vocab_size
    if size is not None and size < len(tokenizer):
        raise ValueError(
            f"`model.vocab_size`={size} is less than the {len(tokenizer)} tokens of the tokenizer: leave it out, or name "
            "another tokenizer with `tokenizer.path`."
        )
    transformers.set_seed(config.training.seed)
    model = _new_model(config, tokenizer) if section.base is None else _base_model(config)
    return _with_adapters(model, config.lora) if config.lora.r else model


def _new_model(config: RunConfig, tokenizer: Any) -> Any:
    row = import_models()[config.model.variant]
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
    before = dataclasses.asdict(cast(Any, config))
    changed = {name: value for name, value in config_fields(section).items() if before[name] != value}
    change_config(config, changed)
    if Path(base).is_dir():
        with blamed(Path(base)):
            check_weights(Path(base), config, AutoModelForCausalLM)
    check_memory(lambda: AutoModelForCausalLM.from_config(config), _bytes_each(run))
    loaded: Any = AutoModelForCausalLM.from_pretrained(base, config=config, output_loading_info=True)
    model, info = loaded
    wrong = sorted({*info["missing_keys"], *info["unexpected_keys"], *map(str, info["mismatched_keys"])})
    if wrong:
        raise ValueError(
            f"`model.base`={base!r} has other weights than {changed or 'its config'} asks for, such as {wrong[0]!r}: "
            "change fields that leave the weights as they are, such as `mem_len` and `dropout`."
        )
    return model


def _with_adapters(model: Any, section: LoraSection) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError(f"`lora.r`={section.r} needs the package peft: {pip_install('lora')}.") from error
    return get_peft_model(
        model,
        LoraConfig(
            r=section.r,
            lora_alpha=section.alpha or 2 * section.r,
            lora_dropout=section.dropout,
            target_modules=section.target_modules,
            task_type="CAUSAL_LM",
        ),
    )


__all__ = ["run_model", "run_tokenizer"]
