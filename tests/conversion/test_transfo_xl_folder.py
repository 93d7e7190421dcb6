"""Folders that transformers 4.x wrote, through the Auto classes of today."""

import collections
import json
import pickle
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from golden import folder_of
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM, TransformerXLModel
from transformers_xl.tokenization.tokenization_words import WordTokenizer

FOLDER = folder_of("legacy_hf_checkpoint")
OLD = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
BOUNDS = {"atol": EXPECTED["tolerance"]["atol"], "rtol": EXPECTED["tolerance"]["rtol"]}
IDS = load_file(FOLDER / "expected.safetensors")["in.input_ids_seg0"]
SCORES = load_file(FOLDER / "expected.safetensors")["out.prediction_scores_seg0"]


def scores(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities, as the old model gave with any softmax; with an adaptive one the logits are that already."""
    return logits.log_softmax(-1)


def words(*symbols: str) -> list[int]:
    """Ids of words; those that the vocabulary lacks are unknown."""
    ids = {symbol: number for number, symbol in enumerate(EXPECTED["idx2sym"])}
    return [ids.get(symbol, EXPECTED["unk_id"]) for symbol in symbols]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "pytorch_model.bin", "generation_config.json"):
        shutil.copy(FOLDER / name, tmp_path)
    return tmp_path


def old_weights() -> dict[str, torch.Tensor]:
    return torch.load(FOLDER / "pytorch_model.bin", weights_only=True)


def test_the_config_is_translated():
    config = AutoConfig.from_pretrained(FOLDER)
    assert type(config) is TransformerXLConfig
    assert (config.hidden_size, config.head_dim) == (OLD["d_model"], OLD["d_head"])
    assert (config.mem_len, config.clamp_len) == (OLD["mem_len"], OLD["clamp_len"])
    assert config.norm_position == ("pre" if OLD["pre_lnorm"] else "post")
    assert (config.use_final_norm, config.initial_memory) == (False, "zeros")
    assert (config.cutoffs, config.div_val) == (OLD["cutoffs"], OLD["div_val"])
    assert config.tie_projs == OLD["tie_projs"] or not config.has_projections
    assert (config.share_relative_bias, config.eos_token_id) == (not OLD["untie_r"], OLD["eos_token_id"])
    assert AutoConfig.from_pretrained(FOLDER, mem_len=4, dropatt=0.25).mem_len == 4
    assert AutoConfig.from_pretrained(FOLDER, dropatt=0.25).attention_dropout == 0.25


@pytest.mark.parametrize("name", ["mem_len", "dropatt"])
def test_fields_may_be_given_to_a_model_under_either_name(name: str):
    model = TransformerXLForCausalLM.from_pretrained(FOLDER, **{name: 0 if name == "dropatt" else 4})
    assert getattr(model.config, "attention_dropout" if name == "dropatt" else name) == (0 if name == "dropatt" else 4)


def test_a_folder_without_memory_that_is_given_one(folder: Path):
    """transformers 4.x began with zeros, whatever memory length a model was given after it was loaded."""
    old = json.loads((folder / "config.json").read_text())
    whole = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(old | {"mem_len": 0, "same_length": False}))
    config = AutoConfig.from_pretrained(folder)
    assert (config.mem_len, config.initial_memory) == (0, "zeros")
    config.mem_len, config.same_length = old["mem_len"], old["same_length"]
    given = {"mem_len": old["mem_len"], "same_length": old["same_length"]}
    assert AutoConfig.from_pretrained(folder, **given).initial_memory == "zeros"
    for model in (
        AutoModelForCausalLM.from_pretrained(folder, **given),
        TransformerXLForCausalLM.from_pretrained(folder, **given),
        AutoModelForCausalLM.from_pretrained(folder, config=config),
    ):
        torch.testing.assert_close(model(IDS).logits, whole(IDS).logits)
    model = AutoModelForCausalLM.from_pretrained(folder)  # and without one, nothing is attended to
    assert model(IDS).logits.isfinite().all()
    assert model.generate(IDS[:, :4], max_new_tokens=3, do_sample=False).shape[1] == 7


def test_predictions_memories_and_greedy_ids():
    tensors = load_file(FOLDER / "expected.safetensors")
    model, info = AutoModelForCausalLM.from_pretrained(FOLDER, output_loading_info=True)
    assert type(model) is TransformerXLForCausalLM
    assert not any(info.values())
    assert model.name_or_path == str(FOLDER)
    memory = {}
    for segment in range(sum(name.startswith("in.input_ids_seg") for name in tensors)):
        ids = tensors[f"in.input_ids_seg{segment}"]
        output = model(ids, labels=ids, **memory)
        memory = {"mems": output.mems}
        torch.testing.assert_close(scores(output.logits), tensors[f"out.prediction_scores_seg{segment}"], **BOUNDS)
        losses = tensors[f"out.losses_natural_order_seg{segment}"]
        torch.testing.assert_close(output.loss, losses.mean(), **BOUNDS)
        for layer, remembered in enumerate(output.mems.layers if output.mems else ()):
            expected = tensors[f"out.mems_seg{segment}.{layer}"]
            torch.testing.assert_close(remembered.columns[0].transpose(0, 1), expected, **BOUNDS)
    assert model.generation_config.eos_token_id == OLD["eos_token_id"]
    model.generation_config.eos_token_id = None
    prompt, expected = tensors["in.prompt_ids"], tensors["out.generated_ids"]
    written = model.generate(prompt, max_new_tokens=expected.shape[1] - prompt.shape[1], do_sample=False)
    assert torch.equal(written, expected)


def test_it_is_saved_in_our_format(tmp_path: Path):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "transformer_xl"
    assert not [path.name for path in tmp_path.iterdir() if path.suffix in (".bin", ".pkl", ".pt")]
    assert all(name.startswith(("model.", "lm_head.")) for name in load_file(tmp_path / "model.safetensors"))
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in model.state_dict().items())
    torch.testing.assert_close(scores(again(IDS).logits), SCORES, **BOUNDS)
    text = "the boy said: 23,000 fish"
    assert AutoTokenizer.from_pretrained(tmp_path)(text) == tokenizer(text)


@pytest.mark.parametrize("file_name", ["vocab.pkl", "vocab.bin", "vocab_minimal.pkl", "vocab.json"])
def test_the_twenty_tokenizations(file_name: str, tmp_path: Path):
    for name in ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        shutil.copy(FOLDER / name, tmp_path)
    if file_name == "vocab.json":
        (tmp_path / file_name).write_text(json.dumps({word: i for i, word in enumerate(EXPECTED["idx2sym"])}))
    else:
        shutil.copy(FOLDER / file_name, tmp_path / file_name.replace("_minimal", ""))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(tokenizer, WordTokenizer)
    assert len(EXPECTED["tokenizations"]) == 20
    for case in EXPECTED["tokenizations"]:
        assert tokenizer(case["text"])["input_ids"] == case["ids"]
        assert tokenizer.decode(case["ids"]) == case["decoded"]
    assert (tokenizer.eos_token_id, tokenizer.unk_token_id) == (EXPECTED["eos_id"], EXPECTED["unk_id"])


def test_a_vocabulary_without_a_tokenizer_config(tmp_path: Path):
    """Old repositories have none: the words must not be read as bytes for that."""
    shutil.copy(FOLDER / "config.json", tmp_path)
    shutil.copy(FOLDER / "vocab.pkl", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, padding_side="right")
    assert tokenizer("the boat")["input_ids"] == words("the", "boat")
    assert tokenizer.padding_side == "right"
    (tmp_path / "vocab.pkl").unlink()
    with pytest.raises(OSError, match="no vocabulary"):
        AutoTokenizer.from_pretrained(tmp_path)


def test_json_is_read_where_there_is_a_pickle_too(tmp_path: Path):
    shutil.copy(FOLDER / "config.json", tmp_path)
    (tmp_path / "vocab.pkl").write_bytes(
        pickle.dumps({"sym2idx": collections.Counter("ab")})
    )  # refused, if it was read
    (tmp_path / "vocab.json").write_text(json.dumps({"<eos>": 0, "<unk>": 1, "boat": 2}))
    assert AutoTokenizer.from_pretrained(tmp_path)("boat .")["input_ids"] == [2, 1]


def test_other_ways_in(folder: Path):
    """Every class, the type that is asked for, a folder in a folder, and safetensors, whole or in pieces."""
    for model in (
        TransformerXLForCausalLM.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(str(folder), config=AutoConfig.from_pretrained(folder)),
        AutoModelForCausalLM.from_pretrained(folder, config=str(folder / "config.json")),
        AutoModelForCausalLM.from_pretrained(folder.parent, subfolder=folder.name, local_files_only=True),
        AutoModelForCausalLM.from_pretrained(folder, device_map="cpu"),
        AutoModelForCausalLM.from_pretrained(folder, use_safetensors=False),
    ):
        torch.testing.assert_close(scores(model(IDS).logits), SCORES, **BOUNDS)
    base = AutoModel.from_pretrained(folder)
    assert type(base) is TransformerXLModel
    torch.testing.assert_close(base(IDS).last_hidden_state, model.model(IDS).last_hidden_state)
    half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(folder, mem_len=4).config.mem_len == 4
    with pytest.raises(OSError, match="model.safetensors"):
        AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    with pytest.raises(ValueError, match="cluster_order"):
        AutoModelForCausalLM.from_pretrained(folder, cluster_order="backwards")


def test_safetensors_whole_and_in_pieces(folder: Path):
    weights = {name: weight.clone() for name, weight in old_weights().items()}
    for name in list(weights):  # one name of each tied weight is left, as transformers 4.35 saved it
        if name.startswith("crit.out_layers") and name.endswith("weight"):
            del weights[name]
    (folder / "pytorch_model.bin").unlink()
    names = sorted(weights)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, members in parts.items():
        save_file({name: weights[name] for name in members}, folder / file)
    index = {"weight_map": {name: file for file, members in parts.items() for name in members}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.testing.assert_close(scores(AutoModelForCausalLM.from_pretrained(folder)(IDS).logits), SCORES, **BOUNDS)
    for path in (
        folder / "model.safetensors.index.json",
        folder / "model-1.safetensors",
        folder / "model-2.safetensors",
    ):
        path.unlink()
    with pytest.raises(OSError, match="no weights"):
        AutoModelForCausalLM.from_pretrained(folder)
    save_file(weights, folder / "model.fp32.safetensors")
    model = AutoModelForCausalLM.from_pretrained(folder, variant="fp32")
    torch.testing.assert_close(scores(model(IDS).logits), SCORES, **BOUNDS)


def test_a_repository_in_the_cache(tmp_path: Path, monkeypatch):
    """As the Hub's client lays it out: a name, a branch and a commit, without the network."""
    # transformers asks the Hub for an adapter in spite of `local_files_only`, and tries for a minute
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--org--old"
    snapshot = repository / "snapshots" / ("0" * 40)
    shutil.copytree(FOLDER, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    here = {"cache_dir": tmp_path, "local_files_only": True}
    for kwargs in (here, here | {"revision": "0" * 40}):
        model = AutoModelForCausalLM.from_pretrained("org/old", **kwargs)
        torch.testing.assert_close(scores(model(IDS).logits), SCORES, **BOUNDS)
        assert model.name_or_path == "org/old"
        assert AutoTokenizer.from_pretrained("org/old", **kwargs)("the boat")["input_ids"] == words("the", "boat")
    with pytest.raises(OSError, match="files"):
        AutoModelForCausalLM.from_pretrained("org/old", cache_dir=tmp_path, local_files_only=True, revision="other")


def test_a_base_model(folder: Path):
    """Its weights have no `transformer.` before them, and no softmax."""
    weights = {name.removeprefix("transformer."): weight for name, weight in old_weights().items()}
    whole = AutoModelForCausalLM.from_pretrained(folder)
    torch.save({name: weight for name, weight in weights.items() if not name.startswith("crit.")},
               folder / "pytorch_model.bin")  # fmt: skip
    model, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(model(IDS).last_hidden_state, whole.model(IDS).last_hidden_state)


def test_a_pipeline(folder: Path):
    for name in ("vocab.pkl", "tokenizer_config.json"):
        shutil.copy(FOLDER / name, folder)
    write = pipeline("text-generation", model=str(folder), device="cpu")
    answer = write("the boat came", max_new_tokens=5, do_sample=False)[0]["generated_text"]
    assert answer.startswith("the boat came")


def test_a_classifier(folder: Path):
    """Its head has a name of its own, and there is no softmax."""
    weights = {name: weight for name, weight in old_weights().items() if not name.startswith("crit.")}
    weights["score.weight"] = torch.randn(3, OLD["d_model"])
    torch.save(weights, folder / "pytorch_model.bin")
    config = json.loads((folder / "config.json").read_text())
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    (folder / "config.json").write_text(json.dumps(config | labels))
    model, info = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}
    expected = model.model(IDS).last_hidden_state[:, -1] @ weights["score.weight"].T
    torch.testing.assert_close(model(IDS).logits, expected)


def test_the_file_may_be_written_anew(folder: Path):
    """It is mapped into memory while it is read, and not held by the model, whose tied weights are one."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.save({"other": torch.ones(5000)}, folder / "pytorch_model.bin")
    torch.testing.assert_close(scores(model(IDS).logits), SCORES, **BOUNDS)
    head, table = model.lm_head, model.model.embed_tokens
    if model.config.is_adaptive:
        head, table = head.clusters[-1], table.tables[-1]
    assert head.weight.data_ptr() == table.weight.data_ptr()


def test_arguments_of_the_tokenizer_win_over_the_folder(caplog):
    """And the config, to which `AutoTokenizer` passes them too, takes none for a misspelled field."""
    tokenizer = AutoTokenizer.from_pretrained(
        FOLDER, pad_token="<eos>", lower_case=True, additional_special_tokens=["<new>"]
    )
    assert (tokenizer.pad_token, tokenizer.pad_token_id) == ("<eos>", tokenizer.eos_token_id)
    assert tokenizer("THE")["input_ids"] == tokenizer("the")["input_ids"] == words("the")
    assert "<new>" in tokenizer.all_special_tokens
    assert AutoTokenizer.from_pretrained(FOLDER, mask_token="<mask>").mask_token_id == tokenizer.vocab_size + 1
    assert "AutoConfig" not in caplog.text
