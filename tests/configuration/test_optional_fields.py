"""Which fields a variant has, and folders of version 0.1, where every variant had all of them."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from tiny import VARIANTS, result_of, tiny_config, tiny_model, tokens
from transformers import AutoConfig, AutoModel

from transformers_xl import AdaptiveSoftmaxConfig, MemoryConfig, RelativeAttentionConfig, StarTransformerConfig
from transformers_xl.configuration.optional_fields import OPTIONAL_FIELDS, OTHER_NAMES
from transformers_xl.configuration.original_options import ORIGINAL_OPTIONS
from transformers_xl.modeling.layers.adaptive_softmax import AdaptiveSoftmax
from transformers_xl.modeling.layers.attention import RelativeAttention

# the wrapper around other models has its own fields, and came after version 0.1
OF_0_1 = {model_type: row for model_type, row in VARIANTS.items() if issubclass(row.config_class, MemoryConfig)}
every_variant = pytest.mark.parametrize("model_type", OF_0_1)
# a value that asks for something
ASKING = {
    "clamp_len": 4, "share_relative_bias": False, "recompute_attention": True, "cutoffs": [10, 20], "div_val": 2,
    "embedding_size": 16, "tie_projs": False, "proj_same_dim": False, "proj_initializer_range": 0.5,
    "intermediate_size": 64, "initial_memory": "zeros", "same_length": False, "lm_head_bias": False,
}  # fmt: skip
NOT_THEIRS = [
    (model_type, name)
    for model_type, row in OF_0_1.items()
    for name in OPTIONAL_FIELDS
    if name not in {field.name for field in fields(row.config_class)}
]
other_variants_field = pytest.mark.parametrize(("model_type", "name"), NOT_THEIRS)


def folder_of_version_0_1(folder: Path, model_type: str, **asking) -> Path:
    """A folder whose config has all fields, as every config of that version had them."""
    tiny_model(model_type).save_pretrained(folder, include_code=False)
    path = folder / "config.json"
    path.write_text(json.dumps(OPTIONAL_FIELDS | json.loads(path.read_text()) | asking))
    return folder


def test_the_optional_fields_are_those_of_the_bases_that_some_variant_lacks():
    lacked = {"intermediate_size", "initial_memory", "same_length", "lm_head_bias"}
    shared = {field.name for field in fields(MemoryConfig)} - lacked
    of_bases = {
        field.name: getattr(base(), field.name)
        for base in (MemoryConfig, RelativeAttentionConfig, AdaptiveSoftmaxConfig)
        for field in fields(base)
        if field.name not in shared
    }
    assert of_bases == OPTIONAL_FIELDS
    assert ASKING.keys() == OPTIONAL_FIELDS.keys()
    assert set(OTHER_NAMES.values()) <= set(OPTIONAL_FIELDS)
    known = {**AdaptiveSoftmaxConfig.attribute_map, **RelativeAttentionConfig.attribute_map}
    assert OTHER_NAMES.keys() - ORIGINAL_OPTIONS == {name for name, field in known.items() if field in OPTIONAL_FIELDS}


@every_variant
def test_a_variant_has_the_fields_that_its_layers_read(model_type: str):
    model = tiny_model(model_type)
    has_relative_attention = any(isinstance(module, RelativeAttention) for module in model.modules())
    assert isinstance(model.config, RelativeAttentionConfig) == has_relative_attention
    predicts_words = OF_0_1[model_type].causal_lm_class is not None
    assert isinstance(model.config, AdaptiveSoftmaxConfig) == predicts_words
    if predicts_words:
        head = tiny_model(model_type, "causal_lm", cutoffs=[10, 20])
        assert isinstance(head.lm_head, AdaptiveSoftmax)


@other_variants_field
def test_a_config_is_not_made_with_a_field_of_other_variants(model_type: str, name: str):
    with pytest.raises(ValueError, match=f"`{name}`=.* has no meaning for .*Config: leave it out"):
        tiny_config(model_type, **{name: ASKING[name]})
    assert name not in vars(tiny_config(model_type))
    assert name not in tiny_config(model_type).to_dict()


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_nor_with_another_name_of_it(name: str):
    with pytest.raises(ValueError, match=f"`{name}`=True has no meaning for StarTransformerConfig: leave it out"):
        StarTransformerConfig(**{name: True})


@every_variant
def test_a_folder_of_version_0_1_is_the_same_model(model_type: str, tmp_path: Path):
    """The fields that the config lost are dropped: they are not written again."""
    tiny_model(model_type).save_pretrained(tmp_path / "new", include_code=False)
    folder = folder_of_version_0_1(tmp_path / "old", model_type)
    loaded = AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
    assert not [name for other, name in NOT_THEIRS if other == model_type and name in vars(loaded.config)]
    input_ids = tokens(2, 5)
    torch.testing.assert_close(result_of(loaded(input_ids)), result_of(tiny_model(model_type)(input_ids)))
    loaded.save_pretrained(tmp_path / "again", include_code=False)
    configs = [(tmp_path / name / "config.json").read_text() for name in ("new", "again")]
    assert configs[0] == configs[1]


@other_variants_field
def test_a_folder_of_version_0_1_that_asks_for_what_was_ignored_is_refused(model_type: str, name: str, tmp_path: Path):
    folder = folder_of_version_0_1(tmp_path, model_type, **{name: ASKING[name]})
    for load in (AutoConfig, OF_0_1[model_type].config_class):
        with pytest.raises(
            ValueError, match=f"`{name}`=.* has no meaning for it: remove it from config.json"
        ) as error:
            load.from_pretrained(folder)
        assert f"`{name}`={ASKING[name]!r}" in str(error.value)


@other_variants_field
def test_a_field_of_other_variants_beside_a_folder_is_refused(model_type: str, name: str, tmp_path: Path):
    tiny_config(model_type).save_pretrained(tmp_path, include_code=False)
    with pytest.raises(ValueError, match=f"`{name}`=.* has no meaning for .*Config: leave it out"):
        AutoConfig.from_pretrained(tmp_path, **{name: ASKING[name]})
