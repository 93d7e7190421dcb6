"""Models of transformers that `compare` trains beside the variants, and how a model without memory is given a context.

GPT-2 has learned positions, as many as a segment has tokens: it sees its segment. Mistral's window is as long as the memory
of the variants: it reads every segment behind so many tokens of the text, each time anew.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM, PreTrainedModel

from transformers_xl.streams.text_stream import TextStream
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer


def gpt2(arguments: dict[str, Any], intermediate_size: int) -> GPT2LMHeadModel:
    """GPT-2 with positions for one segment, with weights from the seed."""
    config = GPT2Config(
        n_positions=arguments["segment_length"],
        n_embd=arguments["hidden_size"],
        n_layer=arguments["layers"],
        n_head=arguments["heads"],
        n_inner=intermediate_size,
        resid_pdrop=arguments["dropout"],
        embd_pdrop=arguments["dropout"],
        attn_pdrop=0.0,
        **_tokens(),
    )
    transformers.set_seed(arguments["seed"])
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # its name does not say so, and the library would warn
    return model


def mistral(arguments: dict[str, Any], intermediate_size: int) -> MistralForCausalLM:
    """Mistral whose window is the memory's length, with weights from the seed. It has no dropout but that of attention."""
    config = MistralConfig(
        max_position_embeddings=arguments["mem_len"] + arguments["segment_length"],
        sliding_window=arguments["mem_len"],
        hidden_size=arguments["hidden_size"],
        num_hidden_layers=arguments["layers"],
        num_attention_heads=arguments["heads"],
        num_key_value_heads=arguments["heads"],
        intermediate_size=intermediate_size,
        tie_word_embeddings=True,
        **_tokens(),
    )
    transformers.set_seed(arguments["seed"])
    return MistralForCausalLM(config)


def _tokens() -> dict[str, Any]:
    tokenizer = ByteTokenizer()
    return {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


class WindowStream(Dataset):
    """The segments of a stream in its order, each behind the tokens of its lane that stand before it.

    Items are those of [`TextStream`], with `context` tokens more, less at the start of a lane; only the segment has labels.
    All rows of a batch are equally long.

    Args:
        stream: the segments.
        context: tokens to read anew before each.
    """

    def __init__(self, stream: TextStream, context: int):
        self.stream = stream
        self.context = context
        self.lanes = stream.lanes

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        item = self.stream[index]
        segment, lane = divmod(index, self.lanes)
        first = self.stream.starts[lane]
        start = first + segment * self.stream.segment_length
        before = self.stream.ids[max(first, start - self.context) : start].astype(np.int64)
        ignored = torch.full((len(before),), -100)
        return {
            "input_ids": torch.cat([torch.from_numpy(before), item["input_ids"]]),
            "labels": torch.cat([ignored, item["labels"]]),
            "shift_labels": torch.cat([ignored, item["shift_labels"]]),
        }


BASELINES: dict[str, Callable[[dict[str, Any], int], PreTrainedModel]] = {"gpt2": gpt2, "mistral": mistral}

__all__ = ["BASELINES", "WindowStream", "gpt2", "mistral"]
