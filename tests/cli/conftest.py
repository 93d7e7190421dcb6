"""Small models of every kind that the commands take, made once."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from stand_in_base import save_base
from transformers import PreTrainedModel

from transformers_xl import (
    ByteTokenizer,
    StarTransformerForSequenceClassification,
    TransformerXLForCausalLM,
    WordTokenizer,
)
from transformers_xl.runs.adding_memory import write_with_memory

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "segment_length": 8,
    "initializer_range": 0.2,
}
WORDS = "It was the best of times , it was the worst of times , it was the age of wisdom .\n" * 7
OLD = Path(__file__).parent.parent / "fixtures" / "golden" / "legacy_hf_checkpoint"
KINDS = ("bytes", "words", "adaptive softmax", "encoder", "old folder", "window", "tokens")
MEMORIES = {
    "window": {"mem_len": 16, "num_sinks": 1, "segment_length": 8},
    "tokens": {"num_memory_tokens": 2, "segment_length": 8},
}


def built(model_class: type[PreTrainedModel], vocab_size: int, **fields) -> PreTrainedModel:
    torch.manual_seed(0)
    config_class = model_class.config_class
    known = {each.name for each in dataclasses.fields(config_class)}
    sizes = {name: size for name, size in SIZES.items() if name in known}
    return model_class(config_class(vocab_size=vocab_size, **sizes, **fields))


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(WORDS)
    return path


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each kind of model, with its tokenizer."""
    root, characters = tmp_path_factory.mktemp("kinds"), ByteTokenizer()
    words = WordTokenizer.train_from_iterator([WORDS], progress=False)
    kinds = {
        "bytes": (built(TransformerXLForCausalLM, len(characters), mem_len=16), characters),
        "words": (built(TransformerXLForCausalLM, len(words), mem_len=16), words),
        "adaptive softmax": (built(TransformerXLForCausalLM, len(words), mem_len=16, cutoffs=[4, 8]), words),
        "encoder": (built(StarTransformerForSequenceClassification, len(characters)), characters),
    }
    for kind, parts in kinds.items():
        for part in parts:
            part.save_pretrained(root / kind, include_code=False)
    base = save_base(root / "base")
    for kind, fields in MEMORIES.items():
        write_with_memory(str(base), root / kind, {"kind": kind} | fields)
    shutil.copytree(OLD, root / "old folder", ignore=shutil.ignore_patterns("expected.*"))
    return {kind: root / kind for kind in KINDS}
