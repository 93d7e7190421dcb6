"""Names that a config is given: options of the original code, misspelled fields, what other programs leave in a folder."""

import json
from pathlib import Path

import pytest
from tiny import MEM_LEN, VARIANTS, tiny_config, tiny_model
from transformers import AutoConfig, AutoModel, logging

from transformers_xl import MemoryConfig, TransformerXLConfig
from transformers_xl.configuration.original_options import ORIGINAL_OPTIONS
from transformers_xl.modeling.conversion.transfo_xl import TransfoXLConfig

OWN = [name for name, row in VARIANTS.items() if issubclass(row.config_class, MemoryConfig)]  # not around a base
every_variant = pytest.mark.parametrize("model_type", OWN)


def written(folder: Path, model_type: str = "transformer_xl", **fields) -> Path:
    """A saved config to whose file the fields were added."""
    tiny_config(model_type).save_pretrained(folder, include_code=False)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "has no effect" in record.getMessage()]


# --- the original code


@pytest.mark.parametrize(
    ("option", "value", "fields"),
    [
        ("untie_r", True, {"share_relative_bias": False}),
        ("untie_r", False, {"share_relative_bias": True}),
        ("not_tied", True, {"tie_word_embeddings": False}),
        ("tie_weight", False, {"tie_word_embeddings": False}),
        ("pre_lnorm", True, {"norm_position": "pre", "use_final_norm": False}),
        ("pre_lnorm", False, {"norm_position": "post", "use_final_norm": False}),
        ("proj_share_all_but_first", True, {"tie_projs": [False, True, True]}),
        ("proj_share_all_but_first", False, {"tie_projs": [False, False, False]}),
        ("dropatt", 0.2, {"attention_dropout": 0.2}),
        ("init_std", 0.005, {"initializer_range": 0.005}),
        ("proj_init_std", 0.03, {"proj_initializer_range": 0.03}),
        ("layer_norm_epsilon", 1e-3, {"layer_norm_eps": 1e-3}),
        ("tgt_len", 70, {"segment_length": 70}),
        ("n_token", 300, {"vocab_size": 300}),
    ],
)
def test_options_that_have_a_field(tmp_path: Path, option: str, value, fields: dict):
    """When a config is made, and instead of what a folder says."""
    size = {"cutoffs": [10, 20], "div_val": 2, "embedding_size": 16}
    config = TransformerXLConfig(**size, **{option: value})
    loaded = TransformerXLConfig.from_pretrained(written(tmp_path, **size), **{option: value})
    for made in (config, loaded):
        assert {name: getattr(made, name) for name in fields} == fields
    assert option not in config.to_dict()


def test_options_and_an_old_config_file_say_the_same():
    old = {
        "n_token": 300, "n_layer": 2, "n_head": 2, "d_head": 8, "d_model": 16, "d_inner": 32, "d_embed": 16, "div_val": 2,
        "cutoffs": [100, 200], "pre_lnorm": True, "mem_len": 9, "clamp_len": 5, "same_length": False, "dropout": 0.2,
        "dropatt": 0.1, "untie_r": True, "init_std": 0.03, "layer_norm_epsilon": 1e-4, "proj_share_all_but_first": False,
        "tie_weight": True, "attn_type": 0, "sample_softmax": -1,
    }  # fmt: skip
    config, converted = TransformerXLConfig(**old), TransfoXLConfig.from_dict(dict(old))
    of_its_time = {"initial_memory", "eos_token_id", "tokenizer_class"}  # what a file says by its model type alone
    ours, theirs = config.to_dict(), converted.to_dict()
    assert {name for name in ours | theirs if ours.get(name) != theirs.get(name)} == of_its_time


@pytest.mark.parametrize(
    ("option", "neutral", "refused", "instead"),
    [
        ("attn_type", 0, 1, "ShawTransformerConfig"),
        ("attn_type", 0, 2, "VanillaTransformerConfig"),
        ("ext_len", 0, 8, "`mem_len`"),
        ("sample_softmax", -1, 100, "`cutoffs`"),
        ("init", "normal", "uniform", "`initializer_range`"),
        ("emb_init", "normal", "uniform", "`initializer_range`"),
    ],
)
def test_options_without_a_field(option: str, neutral, refused, instead: str):
    assert option not in TransformerXLConfig(**{option: neutral}).to_dict()
    with pytest.raises(ValueError, match=f"`{option}`={refused!r} has no field.*{instead}"):
        TransformerXLConfig(**{option: refused})


@pytest.mark.parametrize(
    ("option", "value", "instead"),
    [
        ("init_range", 0.1, "`initializer_range`"),
        ("adaptive", True, "`cutoffs`"),
        ("lr", 0.00025, "MemoryTrainingArguments"),
        ("warmup_step", 4000, "MemoryTrainingArguments"),
        ("eval_tgt_len", 50, "MemoryTrainingArguments"),
    ],
)
def test_options_without_a_field_or_a_neutral_value(option: str, value, instead: str):
    with pytest.raises(ValueError, match=f"`{option}`={value!r} has no field.*{instead}"):
        TransformerXLConfig(**{option: value})


def test_a_switch_is_a_bool():
    for option in ("untie_r", "not_tied", "pre_lnorm", "proj_share_all_but_first"):
        with pytest.raises(ValueError, match=f"`{option}`='False' must be True or False"):
            TransformerXLConfig(**{option: "False"})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"d_model": 32, "hidden_size": 64}, "hidden_size"),
        ({"d_model": 64, "hidden_size": 512}, "hidden_size"),  # the default is a value too
        ({"tie_weight": True, "not_tied": True}, "tie_word_embeddings"),
        ({"dropatt": 0.2, "attention_dropout": 0.3}, "attention_dropout"),
        ({"untie_r": False, "share_relative_bias": False}, "share_relative_bias"),
        ({"pre_lnorm": True, "norm_position": "post"}, "norm_position"),
        ({"pre_lnorm": True, "use_final_norm": True}, "use_final_norm"),
    ],
)
def test_two_names_of_one_field_must_agree(fields: dict, field: str):
    with pytest.raises(ValueError, match=f"`{field}`=.*give one of them"):
        TransformerXLConfig(**fields)
    with pytest.raises(ValueError, match=f"`{field}`=.*give one of them"):
        TransformerXLConfig.from_dict({"hidden_size": 16, "num_attention_heads": 2}, **fields)
    assert TransformerXLConfig(d_model=64, hidden_size=64).hidden_size == 64
    assert TransformerXLConfig(d_head=24, head_dim=None).head_dim == 24


def test_names_of_the_original_are_no_fields_of_ours():
    names = set(TransformerXLConfig.__dataclass_fields__) | set(TransformerXLConfig.attribute_map)
    assert not ORIGINAL_OPTIONS & names
    for row in map(VARIANTS.get, OWN):
        assert not ORIGINAL_OPTIONS & set(row.config_class.__dataclass_fields__)
        assert MemoryConfig.attribute_map.items() <= row.config_class.attribute_map.items()
        assert set(row.config_class.attribute_map.values()) <= set(row.config_class.__dataclass_fields__)


def test_options_of_other_papers():
    spans = {"attn_span": 64, "adapt_span_ramp": 8, "adapt_span_loss": 0.5, "adapt_span_init": 0.25}
    config = AutoConfig.for_model("adaptive_span", **spans)
    assert [config.max_span, config.span_ramp, config.span_loss_coef, config.initial_span] == [*spans.values()]
    assert AutoConfig.for_model("tensorized_transformer", core_nums=3).num_cores == 3
    assert AutoConfig.for_model("universal_transformer", act_loss_weight=0.2).ponder_loss_coef == 0.2


# --- fields of other programs


FOREIGN = ("mask_token_id", "sep_token_id", "cls_token_id", "num_layers", "type_vocab_size", "my_own_field")


@every_variant
def test_what_somebody_set_is_saved_and_loaded(model_type: str, tmp_path: Path, caplog):
    model = tiny_model(model_type)
    for name in FOREIGN:
        setattr(model.config, name, 4)
    model.save_pretrained(tmp_path, include_code=False)
    logging.enable_propagation()
    loaded = AutoModel.from_pretrained(tmp_path)
    assert [getattr(loaded.config, name) for name in FOREIGN] == [4] * len(FOREIGN)
    assert loaded.config.num_hidden_layers == model.config.num_hidden_layers
    assert [message.split("`")[1] for message in warned(caplog)] == sorted(set(FOREIGN) - {"my_own_field"})
    loaded.save_pretrained(tmp_path / "again", include_code=False)
    assert (tmp_path / "again/config.json").read_text() == (tmp_path / "config.json").read_text()


def test_what_has_no_effect_in_a_folder_gets_none_by_loading(tmp_path: Path, caplog):
    """A folder whose model was made while the option was ignored is that model."""
    logging.enable_propagation()
    folder = written(tmp_path, untie_r=True, lr=0.1, sliding_window=3, num_labels=5)
    config, unused = AutoConfig.from_pretrained(folder, return_unused_kwargs=True, not_a_field=1)
    assert unused == {"not_a_field": 1}
    assert config.share_relative_bias
    assert (config.untie_r, config.lr, config.num_labels) == (True, 0.1, 5)
    assert config.sliding_window == MEM_LEN
    assert [message.split("`")[1] for message in warned(caplog)] == ["lr", "sliding_window", "untie_r"]
    read = TransformerXLConfig.from_json_file(folder / "config.json")
    assert read.to_dict() | {"_name_or_path": str(folder)} == config.to_dict()


def test_what_we_save_is_loaded_without_a_word(tmp_path: Path, caplog):
    logging.enable_propagation()
    for model_type in VARIANTS:
        folder = tmp_path / model_type
        tiny_model(model_type).save_pretrained(folder)
        AutoModel.from_pretrained(folder)
    assert not warned(caplog)


# --- what is given instead of what a folder says


@every_variant
def test_a_misspelled_field_beside_a_folder(model_type: str, tmp_path: Path):
    folder = written(tmp_path, model_type, num_layers=3)
    for load in (AutoConfig, AutoModel, VARIANTS[model_type].config_class):
        with pytest.raises(ValueError, match="`mem_lenn`=3 is not a field.*did you mean `mem_len`"):
            load.from_pretrained(folder, mem_lenn=3)
        with pytest.raises(ValueError, match="`num_layers`=3 is not a field.*`n_layer`"):
            load.from_pretrained(folder, num_layers=3)


def test_what_is_no_field_beside_a_folder_is_the_models(tmp_path: Path):
    """As in transformers: `AutoConfig` hands it back, and a model's constructor refuses it."""
    tiny_model("transformer_xl").save_pretrained(tmp_path, include_code=False)
    assert AutoConfig.from_pretrained(tmp_path, zzz=3, return_unused_kwargs=True)[1] == {"zzz": 3}
    with pytest.raises(TypeError, match="zzz"):
        AutoModel.from_pretrained(tmp_path, zzz=3)


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("transformer_xl", {"mem_len": -1}, "`mem_len`=-1"),
        ("transformer_xl", {"mem_len": 0}, "`mem_len`=0 with `same_length`=True"),
        ("tensorized_transformer", {"mem_len": 3}, "`attention_window`="),
        ("transformer_xl", {"lr": 0.1}, "`lr`=0.1 has no field"),
        ("transformer_xl", {"sliding_window": 4}, "`sliding_window`=4 cannot be set.*`mem_len`"),
        ("transformer_xl", {"layer_windows": [4]}, "`layer_windows`=.* cannot be set"),
    ],
)
def test_what_a_model_cannot_run_with_beside_a_folder(tmp_path: Path, model_type: str, fields: dict, message: str):
    folder = written(tmp_path, model_type)
    with pytest.raises(ValueError, match=message):
        AutoConfig.from_pretrained(folder, **fields)


@every_variant
def test_keywords_of_the_library_are_not_taken_for_misspelled_fields(model_type: str):
    names = (
        "cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "trust_remote_code",
        "code_revision", "variant", "use_safetensors", "ignore_mismatched_sizes", "output_loading_info",
        "device_map", "max_memory", "offload_folder", "offload_buffers", "quantization_config", "dtype",
        "torch_dtype", "attn_implementation", "experts_implementation", "tp_plan", "tp_size", "device_mesh",
        "key_mapping", "weights_only", "adapter_kwargs", "generation_config", "state_dict", "config", "gguf_file",
        "low_cpu_mem_usage", "num_labels", "id2label", "label2id", "output_hidden_states", "output_attentions",
        "return_dict", "problem_type", "transformers_version", "architectures", "auto_map", "use_kernels",
        "kernel_config", "disable_mmap", "distributed_config", "commit_hash", "_commit_hash", "_from_auto",
        "_from_pipeline", "return_unused_kwargs", "cluster_order", "use_cache", "max_length", "min_length",
        "do_sample", "temperature", "is_decoder", "is_encoder_decoder", "finetuning_task",
    )  # fmt: skip
    config_class = VARIANTS[model_type].config_class
    assert {name: config_class._objection(name) for name in names if config_class._objection(name)} == {}


# --- values


@pytest.mark.parametrize("model_type", ["transformer_xl", "complex_order_transformer", "star_transformer"])
def test_padding_is_a_token(model_type: str):
    """-1 is none, as in older configs: torch would make the last word the padding, whose row learns nothing."""
    assert tiny_model(model_type, pad_token_id=-1).get_input_embeddings().weight[-1].abs().sum() > 0
    with pytest.raises(ValueError, match="`pad_token_id`=300 must be below `vocab_size`="):
        tiny_model(model_type, pad_token_id=300)


@every_variant
def test_numbers_are_no_nan(model_type: str):
    """Each field that may be a broken number, on its own."""
    config = tiny_config(model_type)
    for name, field in config.__dataclass_fields__.items():
        if "float" in str(field.type):
            with pytest.raises(ValueError, match=f"`{name}`=nan"):
                tiny_config(model_type, **{name: float("nan")})


def test_arguments_of_a_tokenizer_are_no_fields():
    """`AutoTokenizer.from_pretrained(folder, pad_token="<pad>")` passes them on to the config."""
    described = {"hidden_size": 16, "num_attention_heads": 2}
    config = TransformerXLConfig.from_dict(described, pad_token="<pad>", eos_token="</s>")
    assert not hasattr(config, "pad_token")
    with pytest.raises(ValueError, match="did you mean `pad_token_id`"):
        TransformerXLConfig.from_dict(described, pad_token=3)
    with pytest.raises(ValueError, match="did you mean `pad_token_id`"):
        TransformerXLConfig(pad_token="<pad>")
