"""The configuration of every variant: through JSON, by old names, and what its defaults make."""

import json

import pytest
from tiny import AROUND_BASES, ROWS, allows, lacks, models, read_row_alone, result_of, tiny_config, tokens
from transformers import AutoConfig, AutoModel

every_variant = pytest.mark.parametrize("model_type", models())
of_our_own = pytest.mark.parametrize("model_type", [each for each in models() if each not in AROUND_BASES])


@every_variant
def test_config_goes_through_json(model_type, tmp_path):
    width = {"head_dim": 6} if allows(model_type, head_dim=6) else {}
    config = tiny_config(model_type, pad_token_id=0, eos_token_id=[1, 2], dropout=0, **width)
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == config.model_type
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is ROWS[model_type].config_class
    assert loaded.to_json_string() == config.to_json_string()
    again = ROWS[model_type].config_class.from_dict(json.loads(config.to_json_string(use_diff=False)))
    assert again.to_json_string() == config.to_json_string()


@of_our_own
def test_old_names_of_fields(model_type):
    config_class = ROWS[model_type].config_class
    config = config_class(d_model=48, n_layer=3, n_head=6)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (48, 3, 6)
    assert (config.head_dim, config.d_head) == (8, 8)
    if not lacks(model_type, "intermediate_size"):
        assert config_class(d_model=48, n_head=6, d_inner=96).intermediate_size == 96
    if allows(model_type, head_dim=6):
        assert config_class(d_head=6).head_dim == 6


@of_our_own
def test_defaults_make_a_model(model_type):
    """As in the README: a handful of shared fields is enough, whatever the variant."""
    config = AutoConfig.for_model(
        model_type, vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = AutoModel.from_config(config).eval()
    assert result_of(model(tokens(1, 12))).isfinite().all()
    row = read_row_alone(model, tokens(1, 12)[0], [12])
    assert row.shape == (12, 64)
