"""`transformers-xl recl`, `context-curve` and `speed`, run as a user runs them, on models of this package and of others."""

import json
from pathlib import Path

import pytest
import torch
from programs import run
from transformers import GPT2Config, GPT2LMHeadModel

from transformers_xl import ByteTokenizer, TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.configuration.configuration_lstm import LSTMConfig
from transformers_xl.modeling.modeling_lstm import LSTMForCausalLM

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 10
RECL = ["--c0", "4", "--delta", "4", "--max-context", "24", "--blocks", "4", "--positions", "5", "--resamples", "20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, and folders of models: two of this package, a GPT-2 with 16 positions, and an LSTM."""
    root = tmp_path_factory.mktemp("measure")
    (root / "text.txt").write_text(TEXT)
    torch.manual_seed(0)
    sizes = {"vocab_size": 259, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    memory = {"mem_len": 16, "segment_length": 8, "intermediate_size": 32, "initializer_range": 0.3}
    TransformerXLForCausalLM(TransformerXLConfig(**sizes, **memory)).save_pretrained(root / "xl")
    none = memory | {"mem_len": 0, "same_length": False}
    TransformerXLForCausalLM(TransformerXLConfig(**sizes, **none)).save_pretrained(root / "no-memory")
    gpt2 = GPT2Config(
        vocab_size=259, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=257, eos_token_id=258
    )
    GPT2LMHeadModel(gpt2).save_pretrained(root / "gpt2")
    LSTMForCausalLM(LSTMConfig(**sizes, intermediate_size=24, initializer_range=0.3)).save_pretrained(root / "lstm")
    for name in ("xl", "no-memory", "gpt2", "lstm"):
        ByteTokenizer().save_pretrained(root / name)
    return root


def test_recl_of_a_group(folder: Path, tmp_path: Path):
    group = [folder / name for name in ("xl", "no-memory", "gpt2", "lstm")]
    arguments = ("recl", *group, "--text", folder / "text.txt", *RECL)
    result = run(*arguments, "--json", "--picture", tmp_path / "recl")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["tokens"] == 20
    assert list(found["models"]) == ["xl", "no-memory", "gpt2", "lstm"]
    for row in found["models"].values():
        low, high = row["interval"]
        assert 4 <= low <= row["recl"] <= high <= 24
        assert list(row["nats"]) == ["4", "8", "12", "16", "20", "24"]
    assert len(set(found["models"]["lstm"]["nats"].values())) == 6  # its state reaches back through every context
    gpt2 = found["models"]["gpt2"]
    assert gpt2["longest_window"] == 16
    assert gpt2["nats"]["16"] == gpt2["nats"]["24"] != gpt2["nats"]["12"]  # given more, it reads its 16 positions
    assert (tmp_path / "recl.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "recl.svg").is_file()
    table = run(*arguments)
    assert table.exit_code == 0, table.output
    assert "RECL" in table.stdout
    assert str(found["models"]["xl"]["recl"]) in table.stdout


def test_context_curve(folder: Path, tmp_path: Path):
    group = [folder / name for name in ("xl", "no-memory", "gpt2")]
    arguments = ("context-curve", *group, "--text", folder / "text.txt", "--batch-size", 4)
    result = run(*arguments, "--json", "--picture", tmp_path / "curve.png")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["models"]
    assert list(rows["xl"]["bits_per_byte"]) == ["0", "4", "8", "16", "32", "64"]
    assert list(rows["no-memory"]["bits_per_byte"]) == ["0", "2", "4", "8", "16", "32"]
    assert list(rows["gpt2"]["bits_per_byte"]) == ["0", "2", "4", "8"]
    assert [rows[name]["remembers"] for name in rows] == [True, False, False]
    assert len(rows["xl"]["bits_per_byte_by_position"]["0"]) == 8
    assert rows["xl"]["bytes"] == len(TEXT) - 1
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(
        run("evaluate", folder / "xl", "--text", folder / "text.txt", "--batch-size", 4, "--json").stdout
    )
    assert rows["xl"]["bits_per_byte"]["16"] == pytest.approx(told["with_memory"]["bits_per_byte"], rel=1e-6)
    assert rows["xl"]["bits_per_byte"]["0"] == pytest.approx(told["memory_taken_away"]["bits_per_byte"], rel=1e-6)
    table = run(*arguments, "--length", 5, "--length", 12)
    assert table.exit_code == 0, table.output
    assert "above 5 are left out" in table.stderr  # for GPT-2: segments of 8, 16 positions
    assert "12" in table.stdout


def test_speed(folder: Path):
    arguments = (
        "speed",
        folder / "xl",
        "--text",
        folder / "text.txt",
        "--length",
        40,
        "--length",
        200,
        "--repeats",
        1,
    )
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["attention"] for row in found["rows"]] == [40, 200]
    assert found["segment_length"] == 8
    for row in found["rows"]:  # which of the two is faster hangs on what else the machine does
        assert row["ratio"] == pytest.approx(row["moving_window"] / row["segments"])
    assert "times as fast" in run(*arguments).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("recl", "{xl}", "--text", "{text}", "--c0", 16, "--max-context", 16), "max_context"),
        (("recl", "{xl}", "--text", "{text}", "--r", 0), "`r`=0"),
        (("recl", "{xl}", "{xl}", "--text", "{text}"), "twice"),
        (("recl", "{xl}", "--text", "{text}", "--max-context", 800), "too short"),
        (("recl", "{xl}", "--text", "{text}", "--picture", "{root}/picture.gif"), "picture"),
        (("recl", "{root}", "--text", "{text}"), "config.json"),
        (("context-curve", "{gpt2}", "--text", "{text}", "--length", 500), "longer than the 16"),
        (("speed", "{xl}", "--text", "{text}", "--length", 4000), "longer text"),
        (("speed", "{no-memory}", "--text", "{text}"), "without memory"),
        (("speed", "{gpt2}", "--text", "{text}"), "gpt2"),
    ],
)
def test_errors_are_one_line(folder: Path, arguments: tuple, message: str):
    places = {name: folder / name for name in ("xl", "no-memory", "gpt2")} | {
        "text": folder / "text.txt",
        "root": folder,
    }
    before = sorted(folder.iterdir())
    result = run(*(str(argument).format(**places) for argument in arguments))
    assert result.exit_code == 2, result.output
    (error,) = [text for text in result.stderr.splitlines() if text.startswith("Error: ")]
    assert message in error
    assert sorted(folder.iterdir()) == before


def test_a_group_reads_the_same_tokens(folder: Path, tmp_path: Path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    GPT2LMHeadModel(GPT2Config(vocab_size=259, n_positions=16, n_embd=8, n_layer=1, n_head=1)).save_pretrained(
        tmp_path
    )
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(sorted(set(TEXT.split())))}))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    result = run("recl", folder / "xl", tmp_path, "--text", folder / "text.txt", *RECL)
    assert result.exit_code == 2
    assert "other tokens" in result.stderr


def test_distant_context(folder: Path, tmp_path: Path):
    group = [folder / name for name in ("xl", "gpt2")]
    options = ("--text", folder / "text.txt", "--context", 16, "--positions", 6)
    result = run("distant-context", *group, *options, "--json", "--picture", tmp_path / "distant.png")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["distances"] == [1, 2, 4, 8]
    for row in found["models"].values():
        assert list(row["added"]) == ["drop", "shuffle", "replace"]
        assert all(list(added) == ["1", "2", "4", "8"] for added in row["added"].values())
    assert (tmp_path / "distant.png").read_bytes().startswith(b"\x89PNG")
    table = run("distant-context", *group, *options, "--distance", 3)
    assert table.exit_code == 0, table.output
    assert "shuffle" in table.stdout
    result = run("distant-context", *group, *options, "--distance", 16)
    assert result.exit_code == 2
    assert "`distances`=[16]" in result.stderr
