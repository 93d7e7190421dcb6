"""`transformers-xl convert`, run as a user runs it."""

import collections
import json
import os
import pickle
import re
import shutil
import sys
import types
from pathlib import Path

import pytest
import torch
from golden import folder_of
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from typer.testing import CliRunner

from transformers_xl.cli.main import app
from transformers_xl.files.output_folder import output_folder
from transformers_xl.modeling.conversion.original import HYPER_PARAMETERS, NOT_IN_WEIGHTS

HF_FOLDER, ORIGINAL = folder_of("legacy_hf_checkpoint"), folder_of("legacy_txl_checkpoint")
CASE = json.loads((ORIGINAL / "expected.json").read_text(encoding="utf-8"))
IDS = {symbol: number for number, symbol in enumerate(CASE["idx2sym"])}
BOUNDS = {"atol": CASE["tolerance"]["atol"], "rtol": CASE["tolerance"]["rtol"]}
HYPER = {name: CASE["hyper"][name] for name in (*NOT_IN_WEIGHTS, "tgt_len", "cutoffs")}


def words(*symbols: str) -> list[int]:
    """Ids of words; those that the vocabulary lacks are unknown."""
    return [IDS.get(symbol, IDS.get("<unk>")) for symbol in symbols]


def run(*arguments) -> "tuple[int, str]":
    result = CliRunner().invoke(app, ["convert", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def assert_is_the_original(folder: Path) -> None:
    """Losses, hidden states and memories of all segments."""
    tensors = load_file(ORIGINAL / "expected.safetensors")
    model, memory = AutoModelForCausalLM.from_pretrained(folder), {}
    for segment in range(len(CASE["hyper"]["segments"])):
        ids, targets = tensors[f"in.data_seg{segment}"].T, tensors[f"in.target_seg{segment}"].T
        output = model(ids, shift_labels=targets, output_hidden_states=True, **memory)
        memory = {"mems": output.mems}
        losses = -output.logits.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
        torch.testing.assert_close(losses.T, tensors[f"out.loss_seg{segment}"], **BOUNDS)
        torch.testing.assert_close(output.loss, losses.mean())
        torch.testing.assert_close(
            output.hidden_states[-1].transpose(0, 1), tensors[f"out.hidden_seg{segment}"], **BOUNDS
        )
        for layer, remembered in enumerate(output.mems.layers if output.mems else ()):
            expected = tensors[f"out.mems_seg{segment}.{layer}"]
            torch.testing.assert_close(remembered.columns[0].transpose(0, 1), expected, **BOUNDS)


@pytest.mark.parametrize("source", ["model.pt", "model_oldformat.pt", "model_state_dict.pt", "."])
def test_the_original(source: str, tmp_path: Path):
    config = tmp_path / "hyper.json"
    config.write_text(json.dumps(HYPER))
    options = ["--config", config] if source == "model_state_dict.pt" else []
    code, output = run(ORIGINAL / source, tmp_path / "out", *options)
    assert code == 0, output
    assert f"vocabulary of {len(IDS)} tokens: {ORIGINAL}/" in output
    assert_is_the_original(tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not [name for name in names if name.endswith((".pt", ".bin", ".pkl"))]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    # the original parted words at spaces, and wrote the end of every line
    expected = words("the", "wall,", "<eos>", "the", "boat")
    assert tokenizer("the wall,\nthe boat")["input_ids"] == expected
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id == IDS["<eos>"]
    assert model.config.segment_length == CASE["hyper"]["tgt_len"]


@pytest.mark.skipif(len(HYPER["cutoffs"]) < 2, reason=f"cutoffs={HYPER['cutoffs']}: one row or none has no order")
def test_the_order_of_clusters_can_be_given(tmp_path: Path):
    code, output = run(ORIGINAL / "model.pt", tmp_path / "natural", "--cluster-order", "natural")
    assert code == 0, output
    with pytest.raises(AssertionError, match="not close"):
        assert_is_the_original(tmp_path / "natural")
    for order in ("natural", "reversed"):
        run(ORIGINAL / "model.pt", tmp_path / order, "--cluster-order", order, "--overwrite")
    rows = [
        load_file(tmp_path / order / "model.safetensors")["lm_head.tails.weight"] for order in ("natural", "reversed")
    ]
    assert torch.equal(rows[0], rows[1].flip(0))


def test_a_folder_of_transformers(tmp_path: Path):
    code, output = run(HF_FOLDER, tmp_path / "out")
    assert code == 0, output
    config = json.loads((HF_FOLDER / "config.json").read_text())
    assert f"a memory of {config['mem_len']} tokens" in output
    assert f"vocabulary of {config['vocab_size']} tokens: {HF_FOLDER / 'vocab.'}" in output
    tensors = load_file(HF_FOLDER / "expected.safetensors")
    model, tokenizer = (each.from_pretrained(tmp_path / "out") for each in (AutoModelForCausalLM, AutoTokenizer))
    scores = model(tensors["in.input_ids_seg0"]).logits.log_softmax(-1)
    torch.testing.assert_close(scores, tensors["out.prediction_scores_seg0"], atol=1e-5, rtol=1e-4)
    for tokenization in json.loads((HF_FOLDER / "expected.json").read_text(encoding="utf-8"))["tokenizations"]:
        assert tokenizer(tokenization["text"])["input_ids"] == tokenization["ids"]
    assert json.loads((tmp_path / "out" / "config.json").read_text()).get("tokenizer_class") is None


def test_it_is_evaluated_and_its_words_are_parted_as_the_text_is(tmp_path: Path):
    """The way of docs/migrating.md: words at spaces, `<eos>` at line ends, other lengths than those of training."""
    text = tmp_path / "test.txt"
    text.write_text("the boat came home .\n\nthe wall , the boy and the town .\n" * 4)
    (tmp_path / "hyper.json").write_text(json.dumps({"mem_len": 9, "clamp_len": 4, "same_length": True, "tgt_len": 3}))
    for source, options in (
        (ORIGINAL / "model.pt", ["--config", tmp_path / "hyper.json"]),
        (HF_FOLDER, ["--split", "spaces"]),
    ):
        code, output = run(source, tmp_path / "out", "--overwrite", *options)
        assert code == 0, output
        arguments = ["evaluate", tmp_path / "out", "--text", text, "--batch-size", 2, "--json"]
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        score = json.loads(result.output[result.output.index("{") :])["with_memory"]
        assert score["tokens"] == 4 * (5 + 9 + 3) - 1  # words and line ends, all but the first of the text
        assert score["nats"] > 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.mem_len == json.loads((HF_FOLDER / "config.json").read_text())["mem_len"]


def without_cutoffs(folder: Path) -> None:
    """Make the model of an old folder one with a plain softmax."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"cutoffs": [], "div_val": 1, "d_embed": config["d_model"]})
    )
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    weights = {name: weight for name, weight in weights.items() if "crit." not in name and "word_emb." not in name}
    torch.manual_seed(0)
    weights["transformer.word_emb.emb_layers.0.weight"] = torch.randn(config["vocab_size"], config["d_model"])
    weights["crit.out_layers.0.bias"] = torch.randn(config["vocab_size"])
    torch.save(weights, folder / "pytorch_model.bin")


@pytest.mark.parametrize("adaptive", [True, False])
def test_the_code_of_the_page(adaptive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (Path(__file__).parent.parent.parent / "docs" / "migrating.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wt103-test.json").write_text(json.dumps({"with_memory": {"nats": 30.0, "tokens": 10}}))
    shutil.copytree(HF_FOLDER, tmp_path / "path" / "to" / "folder")
    if not adaptive:
        without_cutoffs(tmp_path / "path" / "to" / "folder")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, "migrating.md", "exec"), namespace)
    assert bool(namespace["model"].config.cutoffs) is adaptive
    ids, first, losses = (namespace[name] for name in ("ids", "first", "losses"))
    assert losses.shape == (1, ids.shape[1] - 1)
    torch.testing.assert_close(losses.mean(), first.loss)
    expected = torch.nn.functional.cross_entropy(first.logits[0, :-1], ids[0, 1:], reduction="none")
    torch.testing.assert_close(losses[0], expected)
    assert (tmp_path / "new-folder" / "model.safetensors").is_file()
    assert namespace["perplexity"] == pytest.approx(20.0855, abs=1e-3)
    assert set(HYPER_PARAMETERS) <= set(page.replace("`", " ").replace(".", " ").split())


def test_a_classifier_stays_one(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    config = json.loads((HF_FOLDER / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["TransfoXLForSequenceClassification"]}))
    weights = torch.load(HF_FOLDER / "pytorch_model.bin", weights_only=True)
    weights = {name: weight for name, weight in weights.items() if not name.startswith("crit.")}
    score = torch.ones(2, config["d_model"])
    torch.save(weights | {"score.weight": score}, source / "pytorch_model.bin")
    code, output = run(source, tmp_path / "out", "--json")
    assert code == 0, output
    found = json.loads(output[output.index("{") :])
    assert (found["vocabulary"], found["mem_len"]) == (None, config["mem_len"])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert torch.equal(model.score.weight, score)


def test_a_checkpoint_without_a_head(tmp_path: Path):
    """Nothing random is written: the model without heads, or a message."""
    source = tmp_path / "source"
    source.mkdir()
    config = json.loads((HF_FOLDER / "config.json").read_text())
    weights = torch.load(HF_FOLDER / "pytorch_model.bin", weights_only=True)
    torch.save({name: each for name, each in weights.items() if "crit." not in name}, source / "pytorch_model.bin")
    for written_as in ("TransfoXLLMHeadModel", "TransfoXLForSequenceClassification"):
        (source / "config.json").write_text(json.dumps(config | {"architectures": [written_as]}))
        code, output = run(source, tmp_path / "out")
        assert code != 0
        assert "which would be random: correct `architectures`=" in output
        assert not (tmp_path / "out").exists()
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["TransfoXLModel"]}))
    code, output = run(source, tmp_path / "out")
    assert code == 0, output
    model, whole = AutoModel.from_pretrained(tmp_path / "out"), AutoModelForCausalLM.from_pretrained(HF_FOLDER)
    ids = load_file(HF_FOLDER / "expected.safetensors")["in.input_ids_seg0"]
    torch.testing.assert_close(model(ids).last_hidden_state, whole.model(ids).last_hidden_state)
    state_dict = torch.load(ORIGINAL / "model_state_dict.pt", weights_only=True)
    torch.save({name: each for name, each in state_dict.items() if "crit." not in name}, tmp_path / "model.pt")
    (tmp_path / "hyper.json").write_text(json.dumps(HYPER))
    code, output = run(tmp_path / "model.pt", tmp_path / "other", "--config", tmp_path / "hyper.json")
    assert code != 0
    assert "it holds no head" in output


def test_weights_of_several_types(tmp_path: Path):
    """They have the type that holds the numbers of all."""
    state_dict = torch.load(ORIGINAL / "model_state_dict.pt", weights_only=True)
    mixed = {name: each.half() if "_net" in name else each for name, each in state_dict.items()}
    torch.save(mixed, tmp_path / "model.pt")
    (tmp_path / "hyper.json").write_text(json.dumps(HYPER))
    code, output = run(tmp_path / "model.pt", tmp_path / "out", "--config", tmp_path / "hyper.json")
    assert code == 0, output
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.float32
    assert torch.equal(model.model.layers[0].mlp.fc1.bias, state_dict["layers.0.pos_ff.CoreNet.0.bias"])


def test_the_arguments_of_a_folders_tokenizer(tmp_path: Path):
    """They hold however its vocabulary is chosen and its texts are parted."""
    source = tmp_path / "source"
    shutil.copytree(HF_FOLDER, source)
    written = source / "tokenizer_config.json"
    vocabulary = next(
        each for each in (source / "vocab.json", source / "vocab.pkl", source / "vocab.bin") if each.is_file()
    )
    for lower in (True, False):
        written.write_text(json.dumps(json.loads(written.read_text()) | {"lower_case": lower}))
        found = []
        for options in ([], ["--split", "spaces"], ["--vocab", vocabulary]):
            code, output = run(source, tmp_path / "out", "--overwrite", *options)
            assert code == 0, output
            tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
            found.append(tokenizer("The Boat came", add_special_tokens=False)["input_ids"])
        assert found[0] == found[1] == found[2]
        assert (found[0] == tokenizer("the boat came", add_special_tokens=False)["input_ids"]) == lower


def test_a_cache_of_the_original(tmp_path: Path):
    """The original pickled its whole corpus, with the vocabulary in it."""
    vocabulary_module, corpus_module = types.ModuleType("utils.vocabulary"), types.ModuleType("data_utils")
    vocabulary_module.Vocab = type("Vocab", (), {"__module__": "utils.vocabulary"})
    corpus_module.Corpus = type("Corpus", (), {"__module__": "data_utils"})
    vocab, corpus = vocabulary_module.Vocab(), corpus_module.Corpus()
    symbols = CASE["idx2sym"]
    vocab.__dict__ |= {
        "idx2sym": symbols,
        "sym2idx": collections.OrderedDict(IDS),
        "special": ["<eos>"],
        "lower_case": True,
        "eos_idx": IDS["<eos>"],
    }
    vocab.__dict__ |= {"counter": collections.Counter(symbols), "delimiter": None, "min_freq": 0, "max_size": None}
    corpus.__dict__ |= {"vocab": vocab, "dataset": "wt103", "train": torch.arange(50), "valid": torch.arange(5)}
    modules = {"utils": types.ModuleType("utils"), "utils.vocabulary": vocabulary_module, "data_utils": corpus_module}
    sys.modules.update(modules)
    try:
        torch.save(corpus, tmp_path / "cache.pt", _use_new_zipfile_serialization=False)
    finally:
        for name in modules:
            del sys.modules[name]
    code, output = run(ORIGINAL / "model.pt", tmp_path / "out", "--vocab", tmp_path / "cache.pt")
    assert code == 0, output
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("The BOAT")["input_ids"] == words(
        "the", "boat"
    )  # lower case


def test_without_a_vocabulary(tmp_path: Path):
    shutil.copy(ORIGINAL / "model.pt", tmp_path)
    code, output = run(tmp_path / "model.pt", tmp_path / "out")
    assert code == 0, output
    assert "--vocab" in output
    assert_is_the_original(tmp_path / "out")
    assert not (tmp_path / "out" / "tokenizer.json").exists()


class Attack:
    def __init__(self, sentinel: Path):
        self.sentinel = sentinel

    def __reduce__(self):
        return os.system, (f"touch {self.sentinel}",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{evil}", "{out}"), "system"),
        (("{evil_folder}", "{out}"), "system"),
        (("{good}", "{out}", "--vocab", "{evil_vocab}"), "system"),
        (("{hf}", "{out}", "--vocab", "{evil_vocab}"), "system"),
        (("{good}", "{out}", "--vocab", "{short_vocab}"), "vocabulary of 2 symbols"),
        (("{cut}", "{out}"), "refused"),
        (("{state}", "{out}"), "mem_len"),
        (("{state}", "{out}", "--config", "{good}"), "not JSON"),
        (("{state}", "{out}", "--config", "{list}"), "JSON object"),
        (("{good}", "{out}", "--config", "{wrong}"), "mem_length"),
        (("{hf}", "{out}", "--config", "{hyper}"), "own config.json"),
        (("{good}", "{out}", "--cluster-order", "backwards"), "cluster_order"),
        (("{good}", "{out}", "--split", "words"), "split"),
        (("{good}", "{full}"), "not empty"),
        (("{empty}", "{out}"), "without model.pt"),
        (("{other}", "{out}"), "bert"),
        (("{missing}", "{out}"), "exist"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(arguments: tuple, message: str, tmp_path: Path):
    sources = tmp_path / "sources"
    sentinel = tmp_path / "it-ran"
    for name in ("evil_folder", "full", "empty", "other"):
        (sources / name).mkdir(parents=True)
    (sources / "full" / "mine.txt").write_text("mine")
    (sources / "other" / "config.json").write_text('{"model_type": "bert"}')
    torch.save(Attack(sentinel), sources / "evil")
    for name in ("config.json", "pytorch_model.bin"):
        shutil.copy(HF_FOLDER / name, sources / "evil_folder")
    (sources / "evil_folder" / "vocab.pkl").write_bytes(pickle.dumps(Attack(sentinel)))
    (sources / "evil_vocab").write_bytes(pickle.dumps({"sym2idx": Attack(sentinel)}))
    (sources / "short_vocab").write_bytes(pickle.dumps({"sym2idx": {"<eos>": 0, "<unk>": 1}}))
    (sources / "cut").write_bytes((ORIGINAL / "model.pt").read_bytes()[:9000])
    (sources / "list").write_text("[1]")
    (sources / "wrong").write_text('{"mem_length": 5}')
    (sources / "hyper").write_text(json.dumps(HYPER))
    names = {path.name: path for path in sources.iterdir()} | {
        "out": tmp_path / "out",
        "good": ORIGINAL / "model.pt",
        "state": ORIGINAL / "model_state_dict.pt",
        "hf": HF_FOLDER,
        "missing": sources / "missing",
    }
    before = sorted(tmp_path.rglob("*"))
    code, output = run(*(argument.format(**names) for argument in arguments))
    assert code == 2, output
    assert message in output
    assert "Traceback" not in output
    assert not sentinel.exists()
    assert sorted(tmp_path.rglob("*")) == before


def test_overwrite(tmp_path: Path):
    with output_folder(tmp_path / "out") as new:
        (new / "old.txt").write_text("old")
    code, output = run(ORIGINAL / "model.pt", tmp_path / "out", "--overwrite", "--json")
    assert code == 0, output
    assert json.loads(output[output.index("{") :])["parameters"] > 0
    assert not (tmp_path / "out" / "old.txt").exists()
    assert_is_the_original(tmp_path / "out")
