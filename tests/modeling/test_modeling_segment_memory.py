"""The wrapper around a base: what it shares with it, how it is saved and loaded, and which bases it refuses."""

import copy
import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from tiny import tokens
from tiny_bases import FIELDS, tiny_base, tiny_base_config
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
    XLNetConfig,
)
from transformers.utils import logging

from transformers_xl.configuration.configuration_segment_memory import WITH_SINKS, SegmentMemoryConfig
from transformers_xl.modeling.modeling_segment_memory import (
    SegmentMemoryForCausalLM,
    SegmentMemoryModel,
    add_memory,
)
from transformers_xl.modeling.pretrained import supported_bases


def test_the_base_stays_what_it_was():
    """Its configuration is not shared: a model changes the one that it is built with."""
    base, ids = tiny_base("llama"), tokens(2, 12)
    before, config, weights = base(ids).logits, base.config.to_dict(), copy.deepcopy(base.state_dict())
    model = add_memory(base, mem_len=4)
    torch.testing.assert_close(base(ids).logits, before, atol=0, rtol=0)
    assert not torch.allclose(model(ids).logits, before)
    assert base.config.to_dict() == config
    assert base.config._attn_implementation == "sdpa"
    assert model.config.text_config is not base.config
    torch.testing.assert_close(model.backbone.state_dict(), weights, atol=0, rtol=0)
    assert SegmentMemoryConfig(text_config=base.config).text_config is not base.config


@pytest.mark.parametrize("tied", [True, False])
def test_saved_loaded_and_the_base_alone(tied, tmp_path):
    base, ids = tiny_base("llama", tie_word_embeddings=tied).float(), tokens(2, 12)
    base.generation_config.max_new_tokens = 3
    model = add_memory(base, mem_len=4, num_sinks=2)
    model.save_pretrained(tmp_path / "mine")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "mine")
    assert type(loaded) is SegmentMemoryForCausalLM
    assert (loaded.config.mem_len, loaded.config.num_sinks, loaded.generation_config.max_new_tokens) == (4, 2, 3)
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    assert (loaded.lm_head.weight is loaded.get_input_embeddings().weight) == tied
    without_head = AutoModel.from_pretrained(tmp_path / "mine")
    assert type(without_head) is SegmentMemoryModel
    assert without_head(ids).last_hidden_state.shape == (2, 12, 32)
    model.backbone.save_pretrained(tmp_path / "base")
    alone = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert type(alone) is LlamaForCausalLM
    torch.testing.assert_close(alone(ids).logits, base(ids).logits)


@pytest.mark.parametrize("family", [name for name in FIELDS if name != "mamba"])
def test_a_loaded_base_has_all_that_it_was_saved_with(family: str, tmp_path):
    """Its buffers too, which are in no file: of Falcon-H1 the base writes those of its layers."""
    base = tiny_base(family).float()
    add_memory(base, "tokens", segment_length=6, num_memory_tokens=2).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).backbone
    for names in ("named_parameters", "named_buffers"):
        expected, found = dict(getattr(base, names)()), dict(getattr(loaded, names)())
        assert found.keys() == expected.keys()
        for name, each in expected.items():
            torch.testing.assert_close(found[name], each, atol=0, rtol=0, equal_nan=True)


def test_a_base_that_counts_positions_from_its_cache_is_refused():
    fields = {
        "vocab_size": 37,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    torch.manual_seed(0)
    base = RobertaForCausalLM(
        RobertaConfig(**fields, is_decoder=True, initializer_range=0.3, max_position_embeddings=64)
    )
    with pytest.raises(ValueError, match="a roberta, which reads a token otherwise .* in a cache"):
        add_memory(base.eval(), "tokens", segment_length=6, num_memory_tokens=2)


def test_a_folder_of_a_base_loads_without_a_missing_key(tmp_path):
    base, ids = tiny_base("gpt_neox").float(), tokens(2, 12)
    base.save_pretrained(tmp_path)
    config = SegmentMemoryConfig(text_config=AutoConfig.from_pretrained(tmp_path), mem_len=4)
    model, info = SegmentMemoryForCausalLM.from_pretrained(tmp_path, config=config, output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(add_memory(str(tmp_path), mem_len=4)(ids).logits, model(ids).logits, atol=0, rtol=0)


CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
class Config(LlamaConfig):
    model_type = "of_a_folder"
class Model(LlamaForCausalLM):
    config_class = Config
"""


def test_a_base_that_brings_code_is_refused_unless_it_is_trusted_now(tmp_path, monkeypatch):
    """What is saved of a type that transformers does not know is read where its classes are registered."""
    base, ids = tiny_base("llama").float(), tokens(2, 12)
    base.save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "code.py").write_text(CODE)
    path = tmp_path / "base" / "config.json"
    code = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "of_a_folder", "auto_map": code}))
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        add_memory(str(path.parent))
    model = add_memory(str(path.parent), mem_len=4, trust_remote_code=True)
    torch.testing.assert_close(model(ids).logits, add_memory(base, mem_len=4)(ids).logits)
    model.save_pretrained(tmp_path / "mine")
    for mapping in (CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING):  # for this test alone
        monkeypatch.setattr(mapping, "_extra_content", {**mapping._extra_content})
    AutoConfig.register("of_a_folder", type(model.backbone.config))
    AutoModelForCausalLM.register(type(model.backbone.config), type(model.backbone), exist_ok=True)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "mine")
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    ("family", "mem_len", "num_sinks"),
    [
        ("llama", 8, 4),
        ("gemma3_text", 8, 4),  # in its full layers
        ("gpt_oss", 8, 0),  # has learned some
        ("mistral", 12, 0),  # has seen no more than 12 positions
        ("mistral", 11, 4),
    ],
)
def test_a_window_has_sinks_unless_the_base_needs_none(family, mem_len, num_sinks, tmp_path):
    """What is saved says how many; what does not say so has none, as once by default."""
    model = add_memory(tiny_base(family), mem_len=mem_len)
    assert model.config.num_sinks == num_sinks
    model.config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).num_sinks == num_sinks
    path = tmp_path / "config.json"
    saved = json.loads(path.read_text())
    assert saved["num_sinks"] == num_sinks
    path.write_text(json.dumps(saved | {"num_sinks": 0}))
    assert AutoConfig.from_pretrained(tmp_path).num_sinks == 0
    del saved["num_sinks"]
    path.write_text(json.dumps(saved))
    assert AutoConfig.from_pretrained(tmp_path).num_sinks == 0
    assert AutoConfig.from_pretrained(tmp_path, num_sinks=3).num_sinks == 3


def test_bases_with_learned_sinks_are_those_of_transformers():
    """In all layers: where only sliding ones have some, the others need those of the memory."""
    models = Path(transformers.__file__).parent / "models"
    texts = {file.parent.name: file.read_text(encoding="utf-8") for file in models.glob("*/modeling_*.py")}
    learned = {
        name for name, text in texts.items() if re.search(r"self\.sinks = nn\.Parameter\(.*\)$", text, re.MULTILINE)
    }
    assert "gpt_oss" in learned
    assert {name for name in learned if "ForCausalLM(" in texts[name]} <= WITH_SINKS


HALF = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_what_a_memory_adds_is_float32(dtype, tmp_path):
    """Around a base in half precision, however it is loaded, made or cast; and nothing of its value is lost."""
    base, ids = tiny_base("llama").to(dtype), tokens(2, 20)
    model = add_memory(base, "tokens", num_memory_tokens=3, segment_length=8)
    model.save_pretrained(tmp_path / "mine")
    base.save_pretrained(tmp_path / "base")
    before = model.reader.memory_tokens.start.detach().clone()
    loaded = [
        model,
        AutoModelForCausalLM.from_pretrained(tmp_path / "mine"),
        *(AutoModelForCausalLM.from_pretrained(tmp_path / "mine", dtype=each) for each in (dtype, "auto")),
        AutoModelForCausalLM.from_pretrained(tmp_path / "mine", dtype=torch.float32).to(dtype),
        AutoModelForCausalLM.from_pretrained(tmp_path / "mine", dtype=torch.float32).to("cpu", dtype),
    ]
    loaded.append(getattr(loaded[-1], "half" if dtype == torch.float16 else "bfloat16")())
    assert all(torch.equal(each.reader.memory_tokens.start, before) for each in loaded)
    made = [
        add_memory(str(tmp_path / "base"), "tokens", num_memory_tokens=3, segment_length=8),
        SegmentMemoryForCausalLM.from_pretrained(tmp_path / "base", config=model.config, dtype=dtype),
        AutoModelForCausalLM.from_config(model.config, dtype=dtype),
    ]
    for each in (*loaded, *made):
        assert {weight.dtype for weight in each.reader.parameters()} == {torch.float32}
        assert {weight.dtype for weight in each.backbone.parameters()} == {dtype} == {each.dtype}
    output = model(ids, labels=ids)
    output.loss.backward()
    assert output.logits.dtype == dtype
    assert all(weight.grad.any() and weight.grad.dtype == torch.float32 for weight in model.reader.parameters())
    assert {weight.dtype for weight in model.double().parameters()} == {torch.float64}


def test_what_is_no_plain_base_is_refused():
    model = add_memory(tiny_base("llama"))
    with pytest.raises(ValueError, match="has a memory already"):
        add_memory(model)
    with pytest.raises(ValueError, match="a Linear"):
        add_memory(torch.nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("family", "fields", "words"),
    [
        ("gpt2", {}, r"learned positions \(`transformer.wpe`\).*`kind`='tokens'"),
        ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}, "learned positions.*`kind`='tokens'"),
        ("bloom", {}, "ALiBi.*`kind`='tokens'"),
        ("falcon", {"alibi": True}, "ALiBi"),
        ("mamba", {"state_size": 4}, "'linear_attention'.*use another base, it cannot have `kind`='tokens' either"),
        ("falcon_h1", {}, "`kind`='tokens'"),
        ("qwen3_next", {}, "`kind`='tokens'"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "'dynamic'.*yarn"),
        ("bert", {}, "encoder"),
        ("mixtral", {"output_router_logits": True, "num_local_experts": 2}, "`output_router_logits`=True"),
        (
            "llama4_text",
            {"num_local_experts": 2, "intermediate_size_mlp": 32},
            "`layer_types` has 'chunked_attention'",
        ),
    ],
)
def test_bases_without_a_window_are_refused(family, fields, words):
    with pytest.raises(ValueError, match=words):
        SegmentMemoryForCausalLM(SegmentMemoryConfig(text_config=tiny_base_config(family, **fields)))


def test_a_base_without_a_cache_is_refused():
    base = XLNetConfig(vocab_size=37, d_model=16, n_layer=2, n_head=2, d_inner=32)
    with pytest.raises(
        ValueError, match="no `past_key_values`: use another base, it cannot have `kind`='tokens' either"
    ):
        SegmentMemoryForCausalLM(SegmentMemoryConfig(text_config=base))


def test_an_attention_without_masks_is_refused():
    base = tiny_base("llama")
    model = add_memory(base, mem_len=4)
    model(tokens(1, 12))
    base.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="`attn_implementation`='flash_attention_2'"):
        add_memory(base, mem_len=4)
    with pytest.raises(ValueError, match="`attn_implementation`='flash_attention_2'"):
        model(tokens(1, 13))


@pytest.fixture
def _warnings_propagate():
    logging.enable_propagation()
    yield
    logging.disable_propagation()


@pytest.mark.usefixtures("_warnings_propagate")
def test_a_window_longer_than_the_training_is_warned_of(caplog):
    add_memory(tiny_base("llama"), mem_len=256, num_sinks=0)
    assert "mem_len" not in caplog.text
    model = add_memory(tiny_base("llama"), mem_len=257, num_sinks=0)
    assert "`mem_len`=257 reaches further than what the base was trained for" in caplog.text
    caplog.clear()
    model.resize_memory(300)
    assert "`mem_len`=300" in caplog.text
    add_memory(tiny_base("llama"), mem_len=221, num_sinks=4)
    assert "num_sinks" not in caplog.text
    add_memory(tiny_base("llama"), mem_len=222, num_sinks=4)
    assert "`mem_len`=222 with `num_sinks`=4 reaches" in caplog.text
    assert "It does not with `mem_len` up to 221." in caplog.text


@pytest.mark.usefixtures("_warnings_propagate")
def test_positions_that_were_cast_are_warned_of(caplog, tmp_path):
    model = add_memory(tiny_base("llama").float(), mem_len=8)
    model.save_pretrained(tmp_path)
    SegmentMemoryForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)(tokens(1, 4))
    assert "inv_freq" not in caplog.text
    supported_bases.logger.warning_once.__func__.cache_clear()  # other tests cast too
    model.bfloat16()(tokens(1, 4))
    assert "(`inv_freq`) are torch.bfloat16" in caplog.text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "sliding"}, "`kind`='sliding'"),
        ({"num_memory_tokens": 4}, "`num_memory_tokens`=4 belongs to `kind`='tokens'"),
        ({"kind": "tokens", "num_sinks": 4}, "`num_sinks`=4 belongs to `kind`='window'"),
        ({"kind": "tokens", "mem_len": 4}, "`mem_len`=4"),
        ({"mem_len": 0}, "`mem_len`=0 must be at least 1"),
        ({"num_sinks": -1}, "`num_sinks`=-1 must be at least 0"),
        ({"mem_lem": 8}, "did you mean `mem_len`"),
        ({"vocab_size": 8}, "set it in `text_config`"),
        ({"same_length": False}, "cannot be set"),
        ({"clamp_len": 4}, "`clamp_len`=4 has no meaning"),
        ({"norm_position": "post"}, "`norm_position`='post' has no meaning"),
    ],
)
def test_fields_that_cannot_be_meant_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        SegmentMemoryConfig(text_config=tiny_base_config("llama"), **fields)


def test_a_table_of_positions_ends():
    model = add_memory(tiny_base("gptj", n_positions=32, max_position_embeddings=32), mem_len=20, num_sinks=0)
    assert model(tokens(1, 13)).logits.shape[1] == 13
    with pytest.raises(ValueError, match="need 33 positions, but the base has angles, or .*, for only 32"):
        model(tokens(1, 14))


@pytest.mark.parametrize("model_class", [SegmentMemoryModel, SegmentMemoryForCausalLM])
def test_the_config_may_ask_for_hidden_states_and_attentions(model_class: type, tmp_path: Path):
    add_memory(tiny_base("llama"), mem_len=4).save_pretrained(tmp_path)
    model, ids = model_class.from_pretrained(tmp_path, attn_implementation="eager"), tokens(2, 6)
    asked = model(ids, output_hidden_states=True, output_attentions=True)
    model.config.output_hidden_states = model.config.output_attentions = True
    told = model(ids)
    for name in ("hidden_states", "attentions"):
        torch.testing.assert_close(told[name], asked[name], atol=0, rtol=0)
    assert model(ids, output_attentions=False).attentions is None
