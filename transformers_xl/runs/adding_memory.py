"""The run of `transformers-xl add-memory`: a language model of others in, the same with a memory around it out."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from transformers_xl.files.blaming import blamed
from transformers_xl.files.output_folder import output_folder
from transformers_xl.hub.card_choices import choices_of_base
from transformers_xl.hub.cards import write_card
from transformers_xl.modeling.modeling_segment_memory import add_memory
from transformers_xl.runs.fitting import BYTES_OF_WEIGHT, check_memory
from transformers_xl.runs.loading import (
    base_config,
    check_language_model,
    check_weights,
    import_models,
    without_code,
)


def write_with_memory(
    base: str, output: Path, memory: dict[str, Any], trust_remote_code: bool = False
) -> PreTrainedModel:
    """Write the model `base` with a memory around it, its tokenizer and a card to the folder `output`; return the model.

    Args:
        base: folder, or repository on the Hub.
        output: the folder; what is there is replaced.
        memory: fields of the memory, as [`load_with_memory`] takes them.
        trust_remote_code: run the code that the base brings.

    Raises:
        ValueError: as [`load_with_memory`]; or the base has no tokenizer.
    """
    model = load_with_memory(base, memory, trust_remote_code)
    with without_code(base):
        tokenizer = AutoTokenizer.from_pretrained(base, trust_remote_code=trust_remote_code)
    with output_folder(output) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_card(folder, output.resolve().name, choices_of_base(base))
    return model


def load_with_memory(
    base: str,
    memory: dict[str, Any],
    trust_remote_code: bool = False,
    bytes_each: int = BYTES_OF_WEIGHT,
    dtype: torch.dtype | str = "auto",
) -> PreTrainedModel:
    """The model `base` with a memory around it.

    Args:
        base: folder, or repository on the Hub.
        memory: `kind`, and what else [`SegmentMemoryConfig`] has beside `text_config`.
        trust_remote_code: run the code that the base brings.
        bytes_each: what a parameter takes in the use that is made of it, at the least.
        dtype: type of the weights; "auto": that of the file.

    Raises:
        ValueError: the base is no language model, is one of this package, brings code that is not trusted, cannot have
            such a memory, is damaged, or is larger than the machine's memory.
    """
    config = base_config(base, trust_remote_code)
    if config.model_type in import_models():
        raise ValueError(
            f"`base`={base!r} is a {config.model_type!r} of this package, which has a memory already: `transformers-xl "
            "train --model.base` fine-tunes it."
        )
    check_language_model(base, config)
    if Path(base).is_dir():
        with blamed(Path(base)):
            check_weights(Path(base), config, AutoModelForCausalLM)
    check_memory(lambda: AutoModelForCausalLM.from_config(config), bytes_each)
    model = AutoModelForCausalLM.from_pretrained(base, config=config, dtype=dtype, trust_remote_code=False)
    return add_memory(model, **memory)


__all__ = ["load_with_memory", "write_with_memory"]
