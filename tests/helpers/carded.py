"""Models with a card: saved, and with figures as `evaluate --record` writes them."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from tiny import tiny_model

from transformers_xl import ByteTokenizer
from transformers_xl.hub.measurements import Evaluation, Text, lengths_of


def saved(folder: Path, head: str = "causal_lm", model_type: str = "transformer_xl"):
    model = tiny_model(model_type, head, torch.float32, vocab_size=259)
    model.save_pretrained(folder)
    ByteTokenizer().save_pretrained(folder)
    return model


def evaluation(
    model, memory: bool = True, name: str = "test.txt", claims=(None, None, None), bits: float = 2.5
) -> Evaluation:
    return Evaluation(
        data=Text(name, hashlib.sha256(name.encode()).hexdigest(), "bytes", 101, 101, *claims),
        lengths=lengths_of(model, lanes=3, memory=memory),
        memory=memory,
        bits_per_byte=bits,
        nats=bits * 100 * float(np.log(2)),
        tokens=100,
        bytes=100,
        seconds=0.5,
        tokens_per_second=200.0,
        dtype="float32",
        device="a device",
        command=f"transformers-xl evaluate MODEL --text {name} --record",
        bits_per_character=1.25 * bits,
        **{"characters": 80, "words": 20, "perplexity": 2.0**bits, "word_perplexity": 2.0 ** (5 * bits)},
    )
