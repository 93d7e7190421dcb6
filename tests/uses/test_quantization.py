"""Weights of 8 bits on the CPU by torchao, through `from_pretrained`.

torchao is not among what development needs, because importing it prints warnings into every command; `.ci/run` installs it
beside the wheel and runs this file there.
"""

from pathlib import Path

import pytest
import torch
from eight_bits import COMPLEX, goes_on, is_near, log_probs, remembering, small
from optional_packages import needs
from tiny import tokens
from transformers import AutoModelForCausalLM, TorchAoConfig

needs("torchao")
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8Tensor, Int8WeightOnlyConfig  # noqa: E402

ADAPTIVE = {"cutoffs": [10, 20], "div_val": 2}


def quantized(model, folder: Path, config=None, **options):
    model.save_pretrained(folder, include_code=False)
    config = TorchAoConfig(config or Int8WeightOnlyConfig(), **options)
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=config).eval()


def in_int8(model) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(getattr(module, "weight", None), Int8Tensor)}


@remembering
def test_weights_in_int8_by_torchao(model_type: str, tmp_path: Path):
    model, ids = small(model_type), tokens(2, 20)
    mine = quantized(model, tmp_path)
    assert in_int8(mine)
    assert not in_int8(model)
    assert is_near(log_probs(mine, ids), log_probs(model, ids))
    assert goes_on(mine, ids).shape == (2, 5)


@pytest.mark.parametrize("config", [Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig])
def test_an_adaptive_softmax_in_int8_by_torchao(config: type, tmp_path: Path):
    """transformers leaves an output layer as it is, unless it is told: then untied clusters are linear layers like others.
    `Projection`, whose weight is read both ways, stays as it is."""
    model, ids = small("transformer_xl", tie_word_embeddings=False, **ADAPTIVE), tokens(2, 20)
    assert not [name for name in in_int8(quantized(model, tmp_path, config())) if name.startswith("lm_head")]
    mine = quantized(model, tmp_path, config(), modules_to_not_convert=[])
    assert {"lm_head.clusters.0", "lm_head.clusters.2", "lm_head.tails"} <= in_int8(mine)
    assert not [name for name in in_int8(mine) if "projections" in name]
    assert is_near(log_probs(mine, ids), log_probs(model, ids))
    assert goes_on(mine, ids).shape == (2, 5)


def test_complex_matrices_stay_as_they_are(tmp_path: Path):
    model, ids = small(COMPLEX), tokens(2, 20)
    mine = quantized(model, tmp_path)
    assert not in_int8(mine)
    assert torch.equal(log_probs(mine, ids), log_probs(model, ids))


def test_tied_words_are_left_as_they_are(tmp_path: Path):
    """A table that also embeds cannot be turned into int8 for one of its uses."""
    for fields in ({}, ADAPTIVE):
        mine = quantized(small("transformer_xl", **fields), tmp_path)
        assert in_int8(mine)
        embedding = mine.get_input_embeddings()
        table = embedding.tables[0] if fields else embedding
        head = mine.lm_head.clusters[0] if fields else mine.lm_head
        assert head.weight is table.weight
        assert not isinstance(table.weight, Int8Tensor)


def test_int8_weights_are_saved_and_loaded(tmp_path: Path):
    mine, ids = quantized(small("transformer_xl"), tmp_path / "float"), tokens(2, 20)
    mine.save_pretrained(tmp_path / "int8", include_code=False)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "int8").eval()
    assert in_int8(again) == in_int8(mine)
    assert torch.equal(log_probs(again, ids), log_probs(mine, ids))
    assert {path.suffix for path in (tmp_path / "int8").iterdir()} == {".safetensors", ".json"}
