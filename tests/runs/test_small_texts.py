"""Where nobody chose them: a text that is read at most once has no dropout, and a small one fewer steps."""

from pathlib import Path

import pytest
from programs import run

from transformers_xl import ByteTokenizer, StreamingTransformerConfig, StreamingTransformerForCausalLM
from transformers_xl.runs.run_options import read_config
from transformers_xl.runs.training_run import TrainingRun

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "mem_len": 8}
OPTIONS = [f"--model.{name}={value}" for name, value in SMALL.items()] + ["--model.segment_length=10"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--training.max_steps=9"], 0.0),  # of 10 x 10 tokens
        (["--training.max_steps=10"], 0.1),
        (["--training.max_steps=5", "--training.gradient_accumulation_steps=2"], 0.1),
        (["--training.num_train_epochs=1"], 0.0),
        (["--training.num_train_epochs=2"], 0.1),
        (["--training.max_steps=1", "--model.dropout=0.2"], 0.2),
        (["--training.max_steps=1", "--model.dropout=0.1"], 0.1),
        (["--training.max_steps=1", "--data.documents=true", "--model.variant=transformer_xl"], 0.0),
    ],
    ids=str,
)
def test_a_text_that_is_read_once_is_read_without_dropout(options: list[str], expected: float, tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("abcdefghi\n" * 100)
    data = [f"--data.path={text}", "--data.batch_size=10"]
    if "--data.documents=true" in options:
        held_out = tmp_path / "held_out.txt"
        held_out.write_text("abcdefghi\n" * 20)
        text.write_text("abcdefghi\n" * 90)
        data = [f"--data.path={[str(text)]}", f"--data.eval_path={held_out}", "--data.batch_size=1"]
    config = read_config([*OPTIONS, *data, *options])
    training = TrainingRun(config, tmp_path / "model", command="train")
    assert training.model.config.dropout == config.model.dropout == expected
    assert (training.note is not None) == (expected == 0)
    assert f"dropout: {expected}" in config.to_yaml()
    again = tmp_path / "run.yaml"
    again.write_text(config.to_yaml())
    assert not read_config(files=[again]).dropout_is_default


@pytest.mark.parametrize(
    ("lines", "options", "expected"),
    [
        (100, [], 40),  # 1,000 tokens, of which a step reads 100
        (50, [], 40),  # the least number
        (2500, [], 1000),
        (3001, [], 1000),
        (1250, [], 500),  # four times
        (1000, ["--training.gradient_accumulation_steps=2"], 200),
        (100, ["--training.max_steps=700"], 700),
        (100, ["--training.num_train_epochs=30"], -1),
    ],
    ids=str,
)
def test_a_small_text_has_fewer_steps(lines: int, options: list[str], expected: int, tmp_path: Path):
    text, held_out = tmp_path / "text.txt", tmp_path / "held_out.txt"
    text.write_text("abcdefghi\n" * lines)
    held_out.write_text("abcdefghi\n" * 100)
    data = [f"--data.path={text}", f"--data.eval_path={held_out}", "--data.batch_size=10"]
    config = read_config([*OPTIONS, *data, *options])
    training = TrainingRun(config, tmp_path / "model", command="train")
    assert training.args.max_steps == config.training.max_steps == expected
    assert training.model.config.dropout == 0.1
    assert (training.note is not None) == (expected in (40, 200, 500))
    again = tmp_path / "run.yaml"
    again.write_text(config.to_yaml())
    assert not read_config(files=[again]).steps_are_default


def test_the_command_says_so(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("abcdefghi\n" * 100)
    options = [f"--data.path={text}", "--data.batch_size=10", "--training.max_steps=1", *OPTIONS]
    said = run("train", "-o", tmp_path / "model", *options).stderr
    assert "the text is read 0.11 times, without dropout" in said


def test_other_recipes_and_bases_keep_theirs(tmp_path: Path):
    config = StreamingTransformerConfig(vocab_size=259, dropout=0.1, **SMALL)
    StreamingTransformerForCausalLM(config).save_pretrained(tmp_path)
    ByteTokenizer().save_pretrained(tmp_path)
    for config in (
        read_config([f"--model.base={tmp_path}"]),
        read_config(recipe="small-bytes"),
        read_config(recipe="enwik8-12l"),
    ):
        assert not config.dropout_is_default
        assert not config.steps_are_default
