"""What weights start from, against the table of Transformer-XL's released code (`weights_init` of its train.py)."""

import math

import pytest
import torch
from tiny import tiny_model
from torch import nn

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.modeling.layers.adaptive_embedding import Projection, TiedTable
from transformers_xl.modeling.layers.adaptive_softmax import TiedLinear
from transformers_xl.modeling.layers.attention import RelativeBias
from transformers_xl.modeling.layers.complex_layers import ComplexLinear
from transformers_xl.modeling.modeling_universal_transformer import HaltingUnit


def test_narrow_models_start_wider():
    assert TransformerXLConfig(hidden_size=1000).initializer_range == pytest.approx(0.02)
    assert TransformerXLConfig(hidden_size=40, num_attention_heads=4).initializer_range == pytest.approx(0.1)
    assert TransformerXLConfig(hidden_size=40, num_attention_heads=4, initializer_range=0.0).initializer_range == 0.0


def test_that_of_the_released_code():
    torch.manual_seed(0)
    config = TransformerXLConfig(
        vocab_size=500, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512,
        norm_position="post", initializer_range=0.02, norm_initializer_range=0.02, cutoffs=[100, 300], div_val=2,
        tie_projs=[False, True, True],
    )  # fmt: skip
    seen = set()
    for module in TransformerXLForCausalLM(config).modules():
        if isinstance(module, nn.LayerNorm):
            assert module.weight.mean().item() == pytest.approx(1.0, abs=0.005)
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.2)
        elif isinstance(module, (nn.Linear, TiedTable, TiedLinear)):
            sampled = 4 / math.sqrt(2 * module.weight.numel())  # four times the spread of a standard deviation
            assert module.weight.mean().item() == pytest.approx(0.0, abs=0.04 * sampled)
            assert module.weight.std().item() == pytest.approx(0.02, rel=sampled)
        elif isinstance(module, Projection):
            assert module.weight.std().item() == pytest.approx(0.01, rel=0.02)
        elif isinstance(module, RelativeBias):
            for bias in (module.content_bias, module.position_bias):
                assert bias.std().item() == pytest.approx(0.02, rel=0.2)
            continue
        else:
            continue
        seen.add(type(module).__name__)
        assert getattr(module, "bias", None) is None or not module.bias.any()
    assert {"SublayerLayerNorm", "Linear", "TiedTable", "Projection", "TiedLinear"} <= seen


@pytest.mark.parametrize("fields", [{}, {"cutoffs": [100, 300], "div_val": 2}, {"tie_word_embeddings": False}])
def test_uniform_linear_maps_and_an_embedding_of_its_own_width(fields, tmp_path):
    torch.manual_seed(0)
    config = TransformerXLConfig(
        vocab_size=500, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512,
        pad_token_id=3, linear_initializer="uniform", embedding_initializer_range=1.0, **fields,
    )  # fmt: skip
    model = TransformerXLForCausalLM(config)
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding | TiedTable)]
    tied = {table.weight for table in tables}
    maps = [module for module in model.modules() if isinstance(module, nn.Linear) and module.weight not in tied]
    assert len(maps) >= 2 * 7
    for module in maps:
        bound = module.in_features**-0.5
        for parameter in module.parameters():
            if parameter.numel() > 50:  # not the bias of an entry or two
                assert 0.9 * bound < parameter.abs().max() <= bound
                assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    for table in tables:
        sampled = 4 / math.sqrt(2 * table.weight.numel())
        assert table.weight.std().item() == pytest.approx(1.0, rel=sampled + 0.01)
    assert not tables[0].weight[3].any()
    model.save_pretrained(tmp_path)  # what was loaded is left alone
    loaded = TransformerXLForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(model.parameters(), loaded.parameters(), strict=True))


@pytest.mark.parametrize("kind", [ComplexLinear, HaltingUnit])
def test_uniform_maps_that_are_no_linear_layers_of_torch(kind):
    """They were normal."""
    model_type = {ComplexLinear: "complex_order_transformer", HaltingUnit: "universal_transformer"}[kind]
    model = tiny_model(model_type, "causal_lm", linear_initializer="uniform", initializer_range=9.0)
    maps = [module for module in model.modules() if isinstance(module, kind)]
    assert maps
    for module in maps:
        bound = module.weight.shape[1] ** -0.5
        assert 0.8 * bound < module.weight.abs().max() <= bound


def test_an_initializer_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="`linear_initializer`='orthogonal' must be one of"):
        TransformerXLConfig(linear_initializer="orthogonal")


def test_gains_of_norms_start_at_one_by_default():
    config = TransformerXLConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    norms = [module for module in TransformerXLForCausalLM(config).modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 3
    assert all(bool((norm.weight == 1).all()) for norm in norms)
    for name in ("embedding_initializer_range", "norm_initializer_range", "proj_initializer_range"):
        with pytest.raises(ValueError, match=f"`{name}`"):
            TransformerXLConfig(**{name: -0.1})
