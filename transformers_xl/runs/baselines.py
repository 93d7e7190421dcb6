"""Models that `compare` trains beside the variants: GPT-2, Mistral and Mamba-2 of transformers, and a stack of LSTMs.

`terms.segment_length` is what they read at once. GPT-2 has as many positions. Mistral's window is as long as the memory of
the variants.
"""

from collections.abc import Callable
from typing import Any

import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Mamba2Config,
    Mamba2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from transformers_xl.configuration.configuration_lstm import LSTMConfig
from transformers_xl.modeling.modeling_lstm import LSTMForCausalLM
from transformers_xl.runs.comparison_terms import ComparisonTerms
from transformers_xl.runs.fitting import token_fields
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer


def gpt2(terms: ComparisonTerms, seed: int, intermediate_size: int, **fields: Any) -> GPT2LMHeadModel:
    """GPT-2 with positions for one segment, with weights from the seed; `fields` are more of its config."""
    sizes = {
        "n_positions": terms.segment_length,
        "n_embd": terms.hidden_size,
        "n_layer": terms.layers,
        "n_head": terms.heads,
        "n_inner": intermediate_size,
        "resid_pdrop": terms.dropout,
        "embd_pdrop": terms.dropout,
        "attn_pdrop": 0.0,
    }
    config = GPT2Config(**(sizes | token_fields(ByteTokenizer()) | fields))
    transformers.set_seed(seed)
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # its name does not say so, and transformers would warn
    return model


def mistral(terms: ComparisonTerms, seed: int, intermediate_size: int, **fields: Any) -> MistralForCausalLM:
    """Mistral whose window is the memory's length, with weights from the seed. It has no dropout but that of attention."""
    sizes = {
        "max_position_embeddings": terms.mem_len + terms.segment_length,
        "sliding_window": terms.mem_len,
        "hidden_size": terms.hidden_size,
        "num_hidden_layers": terms.layers,
        "num_attention_heads": terms.heads,
        "num_key_value_heads": terms.heads,
        "intermediate_size": intermediate_size,
        "tie_word_embeddings": True,
    }
    config = MistralConfig(**(sizes | token_fields(ByteTokenizer()) | fields))
    transformers.set_seed(seed)
    return MistralForCausalLM(config)


def mamba2(terms: ComparisonTerms, seed: int, intermediate_size: int, **fields: Any) -> Mamba2ForCausalLM:
    """Mamba-2 with two layers for each of a Transformer, three times as wide inside, with weights from the seed.

    The heads are as wide as the model, and their states have `intermediate_size / 8` columns, which is what can be chosen
    freely. Short chunks cost less on a CPU. It has no dropout.
    """
    sizes = {
        "hidden_size": terms.hidden_size,
        "num_hidden_layers": 2 * terms.layers,
        "expand": 3,
        "num_heads": 3,
        "head_dim": terms.hidden_size,
        "n_groups": 1,
        "state_size": intermediate_size // 8,
        "chunk_size": 32,
        "tie_word_embeddings": True,
        # no field of its own: the tokens that it is given in one call
        "max_position_embeddings": terms.mem_len + terms.segment_length,
    }
    config = Mamba2Config(**(sizes | token_fields(ByteTokenizer()) | fields))
    transformers.set_seed(seed)
    return Mamba2ForCausalLM(config)


def lstm(terms: ComparisonTerms, seed: int, intermediate_size: int, **fields: Any) -> LSTMForCausalLM:
    """A stack of LSTMs with cells of the inner width and a norm behind the last, with weights from the seed.

    Between the layers there is no norm that would lift small numbers: embeddings start with a variance of 1, as torch's do,
    where the model scales them.
    """
    sizes = {
        "hidden_size": terms.hidden_size,
        "num_hidden_layers": terms.layers,
        "intermediate_size": intermediate_size,
        "mem_len": terms.mem_len,
        "segment_length": terms.segment_length,
        "dropout": terms.dropout,
        "embedding_initializer_range": terms.hidden_size**-0.5,
    }
    config = LSTMConfig(**(sizes | token_fields(ByteTokenizer()) | fields))
    transformers.set_seed(seed)
    return LSTMForCausalLM(config)


# a saved one loads as any other
AutoConfig.register("lstm", LSTMConfig)
AutoModelForCausalLM.register(LSTMConfig, LSTMForCausalLM)

BASELINES: dict[str, Callable[..., PreTrainedModel]] = {
    "gpt2": gpt2,
    "lstm": lstm,
    "mamba2": mamba2,
    "mistral": mistral,
}

__all__ = ["BASELINES", "gpt2", "lstm", "mamba2", "mistral"]
