"""Adapters by PEFT: what they change before they are merged is what they change afterwards, and training with memory."""

from pathlib import Path

import pytest
import torch
from optional_packages import needs
from tiny import (
    EXACT,
    FLOAT32,
    VARIANTS,
    allows,
    in_turn,
    memory_value,
    one_of_each_kind,
    read,
    result_of,
    tiny_model,
    tokens,
    variants,
)
from torch import nn
from trained import LANES, SEGMENT, arguments, by_hand, small_model, text

peft = needs("peft")
from transformers import AutoModelForCausalLM  # noqa: E402

from transformers_xl import MemoryTrainer  # noqa: E402
from transformers_xl.data.text_stream import TextStream  # noqa: E402

COMPLEX = "complex_order_transformer"
ADAPTIVE = {"cutoffs": [10, 20], "div_val": 2}
HEADS = {"plain": {}, "tied clusters": ADAPTIVE, "clusters": ADAPTIVE | {"tie_word_embeddings": False}}
FORMS = {
    "geometric": (
        "depth_adaptive_transformer",
        {"halting": "geometric", "exit_by_halting": True, "confidence_thresholds": None},
    ),
    "exit classifiers": ("depth_adaptive_transformer", {"shared_classifier": False}),
    "auxiliary": ("vanilla_transformer", {"intermediate_losses": "linear", "num_targets": 2}),
    "lstm gates": ("gtrxl", {"attention_bias": True}),
}


def adapted(model: nn.Module, **fields):
    """`model` with adapters that are no longer zero."""
    torch.manual_seed(1)
    config = peft.LoraConfig(**({"r": 4, "target_modules": "all-linear", "init_lora_weights": False} | fields))
    return peft.get_peft_model(model, config).eval()


@torch.no_grad()
def results(model, model_type: str) -> list[torch.Tensor]:
    """Of a text in segments by both forms of memory, and of `generate()`, where the model has them."""
    ids = tokens(2, 18)
    if VARIANTS[model_type].memory == "none":
        found = [result_of(model(ids))]
    else:
        found = [read(model, ids, [7, 5, 6], use_cache=use_cache)[0] for use_cache in (None, True)]
    if VARIANTS[model_type].causal_lm_class is not None:
        settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
        found.append(
            model.generate(input_ids=ids, output_logits=True, return_dict_in_generate=True, **settings).logits
        )
        found[-1] = torch.stack(found[-1])
    return found


def check_merging(model, model_type: str, **fields) -> None:
    """An adapter has an effect, the same one when it is merged, and none when it is taken off."""
    before = results(model, model_type)
    wrapped = adapted(model, **fields)
    found = results(wrapped, model_type)
    for result, base in zip(found, before, strict=True):
        assert (result - base).abs().max() > 1e-3
    with wrapped.disable_adapter():
        torch.testing.assert_close(results(wrapped, model_type), before, **EXACT)
    torch.testing.assert_close(results(wrapped.merge_and_unload(), model_type), found, **EXACT)


@pytest.mark.parametrize(
    ("model_type", "head"),
    [
        (each, head)
        for each, head in in_turn(dict.fromkeys([*one_of_each_kind(variants(causal_lm=True)), COMPLEX]), HEADS)
        if allows(each, **HEADS[head])
    ],
)
def test_an_adapter_of_all_linear_layers_merges(model_type: str, head: str):
    """That every variant calls its linear layers, and computes by nothing else of theirs, is said below."""
    model = tiny_model(model_type, "causal_lm", **HEADS[head])
    if (model_type, head) == (COMPLEX, "plain"):
        assert [name for name, module in model.named_modules() if isinstance(module, nn.Linear)] == ["lm_head"]
        with pytest.raises(ValueError, match="No `target_modules` passed"):
            adapted(model)
        return
    check_merging(model, model_type)


@pytest.mark.parametrize("form", FORMS)
def test_an_adapter_of_further_layers_merges(form: str):
    model_type, fields = FORMS[form]
    check_merging(tiny_model(model_type, "causal_lm", **fields), model_type)


@pytest.mark.parametrize("head", ["model", "token_classification"])
def test_an_adapter_of_an_encoder_merges(head: str):
    ids = tokens(2, 9)
    model = tiny_model("star_transformer", head)
    wrapped = adapted(model)
    found = result_of(wrapped(ids))
    torch.testing.assert_close(result_of(wrapped.merge_and_unload()(ids)), found, **EXACT)


@pytest.mark.parametrize("model_type", variants())
def test_linear_layers_are_called(model_type: str):
    """Whoever puts something around a linear layer, or in its place, waits for its call."""
    head = "model" if VARIANTS[model_type].causal_lm_class is None else "causal_lm"
    fields = {"halting": "geometric"} if model_type == "depth_adaptive_transformer" else {}
    model = tiny_model(model_type, head, **fields).train()
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    called = set()
    for name, module in linear.items():
        module.register_forward_hook(lambda *_, name=name: called.add(name))
    ids = tokens(2, 9)
    given = {"global_attention_mask": ids == ids[:, :1]} if model_type == "longformer_encoder" else {}
    model(ids, **given, **({} if head == "model" else {"labels": ids}))
    assert called == set(linear)
    for module in linear.values():
        assert type(module).forward is nn.Linear.forward


def test_an_adapter_of_complex_matrices_merges():
    """They are parameters to PEFT."""
    fields = {"target_modules": [], "target_parameters": ["q_proj.weight", "v_proj.weight", "fc1.weight"]}
    check_merging(tiny_model(COMPLEX, "causal_lm"), COMPLEX, **fields)


@pytest.mark.parametrize("model_type", ["transformer_xl", "vanilla_transformer"])
def test_an_adapter_of_the_embedding_merges(model_type: str):
    """Its output is scaled, and PEFT is told by how much."""
    model = tiny_model(model_type, "causal_lm", tie_word_embeddings=False)
    check_merging(model, model_type, target_modules=["embed_tokens"])


UNTIED = {"tie_word_embeddings": False}
TABLES = {
    "clusters": ("transformer_xl", ADAPTIVE | UNTIED, ["tables.0", "tables.2"]),
    "clusters of one width": ("sha_rnn", {"cutoffs": [10, 20]} | UNTIED, ["tables.1"]),
    "frequencies and phases": (COMPLEX, {}, ["frequency", "phase"]),
    "shared frequencies and phases": (
        COMPLEX,
        {"frequency_per": "dimension", "phase_per": "word"},
        ["frequency", "phase"],
    ),
    "complex clusters": (COMPLEX, ADAPTIVE | UNTIED, ["tables.0", "frequency"]),
}


@pytest.mark.parametrize("tables", TABLES)
def test_an_adapter_of_further_tables_merges(tables: str):
    model_type, fields, names = TABLES[tables]
    check_merging(tiny_model(model_type, "causal_lm", **fields), model_type, target_modules=names)


@pytest.mark.parametrize("name", ["clusters.0", "tables.0"])
def test_tied_clusters_take_no_adapter(name: str):
    with pytest.raises(ValueError, match="Target module Tied.* is not supported"):
        adapted(tiny_model("transformer_xl", "causal_lm", **ADAPTIVE), target_modules=[name])


def test_amplitudes_are_adapted_as_parameters():
    """Their module gives frequencies and phases too, to which PEFT cannot add the rows of an adapter."""
    fields = {"target_modules": [], "target_parameters": ["embed_tokens.weight"]}
    check_merging(tiny_model(COMPLEX, "causal_lm", **UNTIED), COMPLEX, **fields)
    wrapped = adapted(tiny_model(COMPLEX, "causal_lm", **UNTIED), target_modules=["embed_tokens"])
    with pytest.raises(RuntimeError, match="must match the size"):
        wrapped(tokens(2, 9))


# around a base they are the base's: test_peft_on_bases.py
@pytest.mark.parametrize("model_type", [each for each in variants() if each != "segment_memory"])
def test_default_target_modules(model_type: str):
    head = "model" if VARIANTS[model_type].causal_lm_class is None else "causal_lm"
    model = tiny_model(model_type, head)
    if model_type == COMPLEX:
        with pytest.raises(ValueError, match="Please specify `target_modules`"):
            adapted(model, target_modules=None)
        return
    names = {"q_proj", "fc1"} if model_type == "sha_rnn" else {"q_proj", "v_proj"}
    expected = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in names}
    wrapped = adapted(model, target_modules=None)
    assert wrapped.peft_config["default"].target_modules == names
    assert {*wrapped.targeted_module_names} == expected
    for name in names:
        assert any(each.endswith(name) for each in expected)


# --- virtual tokens


def prompted(config_class, **fields):
    model = tiny_model("transformer_xl", "causal_lm")
    return peft.get_peft_model(model, config_class(task_type="CAUSAL_LM", num_virtual_tokens=3, **fields)).double()


def test_prompt_tuning_without_memory():
    model, ids = prompted(peft.PromptTuningConfig).eval(), tokens(2, 9)
    assert model(ids, labels=ids).loss.isfinite()
    written = model.generate(input_ids=ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    for length in range(9, 13):
        assert torch.equal(model(written[:, :length]).logits[:, -1].argmax(-1), written[:, length])


@pytest.mark.parametrize("config_class", [peft.PromptTuningConfig, peft.PromptEncoderConfig])
def test_prompt_tuning_with_memory_is_refused(config_class, tmp_path: Path):
    model, ids = prompted(config_class), tokens(2, 9)
    with pytest.raises(ValueError, match=r"`shift_labels` has shape \(2, 9\): it must be .* \(2, 12\).*Prompt tuning"):
        model(ids, shift_labels=ids)
    cache = model(ids, use_cache=True).past_key_values
    for memory in ({"mems": memory_value("transformer_xl")}, {"past_key_values": cache}):
        with pytest.raises(ValueError, match="virtual tokens would come again before every segment.*Use LoRA"):
            model.generate(input_ids=ids, max_new_tokens=2, **memory)
    with pytest.raises(ValueError, match="virtual tokens would come again before every segment.*Use LoRA"):
        MemoryTrainer(model, arguments(tmp_path), train_dataset=TextStream(text(200), SEGMENT, LANES))


def test_prefix_tuning_is_refused(tmp_path: Path):
    model, ids = prompted(peft.PrefixTuningConfig), tokens(2, 9)
    for memory in ({}, {"mems": memory_value("transformer_xl")}):
        with pytest.raises(ValueError, match="is a DynamicCache: .*Prefix tuning .*use LoRA"):
            model(ids, **memory)
    with pytest.raises(ValueError, match="`peft_type`='PREFIX_TUNING' cannot be used here: .*Use LoRA"):
        model.generate(input_ids=ids, max_new_tokens=2)
    with pytest.raises(ValueError, match="`peft_type`='PREFIX_TUNING' cannot be used here: .*Use LoRA"):
        MemoryTrainer(model, arguments(tmp_path), train_dataset=TextStream(text(200), SEGMENT, LANES))


# --- training


def test_an_adapter_is_trained_with_memory(tmp_path: Path):
    """As by hand; its checkpoint resumes, and what it saves is the adapter alone, which loads and merges."""
    ids = text(LANES * SEGMENT * 4 + 1)

    def lora(**options):
        return adapted(small_model(), init_lora_weights=True, **options)

    def trainer(model=None, **fields):
        args = arguments(tmp_path / "run", num_train_epochs=2, learning_rate=2.0, **fields)
        return MemoryTrainer(model or lora(), args, train_dataset=TextStream(ids, SEGMENT, LANES))

    whole = trainer(save_strategy="steps", save_steps=4)
    frozen = {name: weight.clone() for name, weight in small_model().named_parameters()}
    whole.train()
    by_loop = lora()
    losses = by_hand(by_loop, ids, epochs=2, lr=2.0)
    logged = [row["loss"] for row in whole.state.log_history if "loss" in row]
    torch.testing.assert_close(torch.tensor(logged), torch.tensor(losses), atol=1e-4, rtol=0)  # logs are rounded
    assert sum(losses[4:]) < sum(losses[:4]) - 0.01
    resumed = trainer(save_strategy="no")
    resumed.train(resume_from_checkpoint=str(tmp_path / "run/checkpoint-4"))
    for mine, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)

    with pytest.raises(ValueError, match="`lora_alpha`=3 of the adapters is"):
        trainer(lora(lora_alpha=3)).train(resume_from_checkpoint=str(tmp_path / "run/checkpoint-4"))

    whole.save_model(str(tmp_path / "adapter"))
    assert {path.suffix for path in (tmp_path / "adapter").glob("*model*")} == {".safetensors"}
    assert not (tmp_path / "adapter/model.safetensors").exists()
    loaded = peft.PeftModel.from_pretrained(small_model(), tmp_path / "adapter").eval()
    trained, here = whole.model.eval(), torch.from_numpy(ids)[None, : 3 * SEGMENT]
    for name, weight in loaded.get_base_model().named_parameters():
        if "lora" not in name:
            assert torch.equal(weight, frozen[name.replace(".base_layer", "")])
    with torch.no_grad():
        expected = read(trained, here, [SEGMENT] * 3)[0]
        assert torch.equal(read(loaded, here, [SEGMENT] * 3)[0], expected)
        assert not torch.allclose(read(small_model().eval(), here, [SEGMENT] * 3)[0], expected, atol=1e-3)
        loaded.merge_and_unload().save_pretrained(tmp_path / "merged")
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        torch.testing.assert_close(read(merged, here, [SEGMENT] * 3)[0], expected, **FLOAT32)
