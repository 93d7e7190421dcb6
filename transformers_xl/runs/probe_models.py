"""The models of the memory probe: any causal language model, small, by its model type."""

import dataclasses
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PreTrainedModel

from transformers_xl.evaluation.probe_tasks import find_task
from transformers_xl.runs import baselines  # noqa: F401  registers the LSTM
from transformers_xl.runs.loading import import_models
from transformers_xl.runs.probe_terms import (
    HEADS,
    HIDDEN_SIZE,
    INITIALIZER_RANGE,
    INNER_SIZE,
    LAYERS,
    ProbeTerms,
)

# fields of one type each: two blocks in a call, so that what is written learns from what is read; one state of 16 vectors
FIELDS: dict[str, dict[str, Any]] = {
    "block_recurrent": {"block_length": 16, "num_states": 16},
    "compressive_transformer": {"compressed_mem_len": 64, "compression_rate": 2},
    "infini_transformer": {"mem_len": 16},
    "memorizing_transformer": {"block_length": 16, "num_memory_keys": 256, "num_retrieved": 8},
    "recurrent_memory_transformer": {"segment_length": 16},
    "tensorized_transformer": {"num_attention_heads": 1},
    "gpt2": {"n_inner": INNER_SIZE, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "lstm": {"intermediate_size": 84},  # cells with which it has as many parameters as a Transformer-XL
    "mamba2": {"num_heads": 2, "head_dim": HIDDEN_SIZE, "n_groups": 1, "state_size": HIDDEN_SIZE, "chunk_size": 32},
    "rwkv": {"attention_hidden_size": HIDDEN_SIZE},
}


def build_probe_model(terms: ProbeTerms) -> PreTrainedModel:
    """A causal language model over the tokens of a task, with weights from the seed.

    All have the same width, depth and inner width (the LSTM fewer cells), and no dropout. The memory is `mem_len` long, or
    the window, or what a model without memory reads before a segment; for other types of transformers, what their configs
    make of the sizes.

    Raises:
        ValueError: the type is none of a causal language model, or cannot be built with these sizes.
    """
    variant = import_models().get(terms.model_type)
    if terms.model_type not in CONFIG_MAPPING or CONFIG_MAPPING[terms.model_type] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"`model_type`={terms.model_type!r} is not a causal language model: give one of ours, or gpt2, mistral, "
            "mamba2, ..."
        )
    config_class = CONFIG_MAPPING[terms.model_type]
    without = {"mem_len", "same_length"} if variant is not None and variant.memory == "none" else set()
    known = {field.name for field in dataclasses.fields(config_class)} | set(config_class.attribute_map)
    if "hidden_size" not in known:  # its base would be as large as it is by default
        raise ValueError(
            f"`model_type`={terms.model_type!r} wraps another model and has no sizes itself: give the type of a plain "
            "language model."
        )
    sizes = {name: value for name, value in _sizes(terms).items() if name in known - without}
    config = config_class(**(sizes | FIELDS.get(terms.model_type, {})))
    transformers.set_seed(terms.seed)
    return AutoModelForCausalLM.from_config(config)


def _sizes(terms: ProbeTerms) -> dict[str, Any]:
    """Fields that many configs have, under the names that most give them."""
    return {
        "vocab_size": find_task(terms.task).vocab_size,
        "hidden_size": HIDDEN_SIZE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "intermediate_size": INNER_SIZE,
        "mem_len": terms.mem_len,
        "same_length": terms.mem_len > 0,
        "segment_length": terms.segment_length,
        "sliding_window": terms.mem_len or None,
        "max_position_embeddings": terms.mem_len + terms.segment_length,
        "dropout": 0.0,
        "initializer_range": INITIALIZER_RANGE,
        "share_relative_bias": False,
        "tie_word_embeddings": True,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }


__all__ = ["FIELDS", "build_probe_model"]
