"""`transformers-xl train`: what it starts from, what it reads, and that it survives being stopped."""

import gzip
import hashlib
import json
import os
import shlex
import signal
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from optional_packages import needs
from programs import run
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.integrations import TensorBoardCallback

from transformers_xl import ByteTokenizer, WordTokenizer
from transformers_xl.files.output_folder import output_folder
from transformers_xl.files.written import RECORD
from transformers_xl.hub import uploading
from transformers_xl.modeling import modeling_recurrent_memory_transformer
from transformers_xl.runs import training_run
from transformers_xl.training.arguments import MemoryTrainingArguments
from transformers_xl.training.callbacks import SavingOnSignal, TrainingProgress

SMALL = (
    "--model.hidden_size 16 --model.num_hidden_layers 1 --model.num_attention_heads 2 --model.intermediate_size 16 "
    "--model.mem_len 8 --model.segment_length 8 --data.batch_size 2 --training.max_steps 4 --training.warmup_steps 1"
)
TEXT = "It was the best of times , it was the worst of times , it was the age of wisdom .\n" * 20


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def trained(text_file: Path) -> Path:
    return train(text_file, "-o", text_file.parent / "trained", *SMALL.split())


def train(*words: object) -> Path:
    """The folder that a run has written."""
    result = run("train", *words)
    assert result.exit_code == 0, (result.output, result.exception)
    return Path(words[words.index("-o") + 1])


def refused(*words: object) -> str:
    result = run("train", *words)
    assert result.exit_code == 2, (result.output, result.exception)
    return result.output


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def equal(one: Path, other: Path) -> bool:
    ours, theirs = weights(one), weights(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_words_that_the_vocabulary_lacks_are_told(text_file: Path, tmp_path: Path):
    """Their letters count, and nothing predicts them."""
    WordTokenizer.train_from_files([text_file], split="spaces").save_pretrained(tmp_path / "words")
    unseen = tmp_path / "unseen.txt"
    unseen.write_text("It was the spring of hope , it was the winter of despair .\n" * 10)
    result = run(
        "train", text_file, "-o", tmp_path / "model", "--data.eval_path", unseen, "--tokenizer.path", tmp_path / "words",
        *SMALL.split(),
    )  # fmt: skip
    note = "40 of 150 tokens of the scored text are <unk>"
    assert result.exit_code == 0, result.output
    assert note in result.stderr
    assert note in run("evaluate", tmp_path / "model", "--text", unseen, "--json").stderr
    assert "<unk>" not in run("evaluate", tmp_path / "model", "--text", text_file).stderr


def test_the_file_in_the_folder_gives_the_same_run(trained: Path, tmp_path: Path):
    values = yaml.safe_load((trained / "run.yaml").read_text())
    assert values["model"]["mem_len"] == 8
    assert equal(train("-o", tmp_path / "again", "--config", trained / "run.yaml"), trained)


def test_a_model_is_fine_tuned_with_a_larger_memory(trained: Path, tmp_path: Path):
    other = tmp_path / "other.txt"
    other.write_text("Something else, at some length. " * 60)
    words = ("--model.base", trained, "--model.mem_len", 24, "--model.dropout", 0.2, "--data.batch_size", 2)
    folder = train(
        other, "-o", tmp_path / "tuned", *words, "--training.max_steps", 1, "--training.learning_rate", 1e-9
    )
    config = AutoModelForCausalLM.from_pretrained(folder).config
    assert (config.mem_len, config.dropout, config.hidden_size) == (24, 0.2, 16)
    before, after = weights(trained), weights(folder)
    assert all((before[name] - after[name]).abs().max() < 1e-6 for name in before)
    assert isinstance(AutoTokenizer.from_pretrained(folder), ByteTokenizer)
    said = refused(other, "-o", tmp_path / "no", *words, "--model.hidden_size", 32)
    assert "asks for" in said
    assert not (tmp_path / "no").exists()


def test_adapters_are_saved_alone_or_merged(trained: Path, text_file: Path, tmp_path: Path):
    needs("peft")
    words = ("--model.base", trained, "--lora.r", 2, "--data.batch_size", 2, "--training.max_steps", 3)
    words = (*words, "--training.learning_rate", 0.1, "--training.warmup_steps", 0)
    adapters = train(text_file, "-o", tmp_path / "adapters", *words)
    merged = train(text_file, "-o", tmp_path / "merged", *words, "--lora.merge", "true")
    assert (adapters / "adapter_model.safetensors").is_file()
    assert not (adapters / "model.safetensors").exists()
    assert not equal(merged, trained)
    scores = [run("evaluate", folder, "--text", text_file, "--json") for folder in (adapters, merged, trained)]
    nats = [json.loads(score.output)["with_memory"]["nats"] for score in scores]
    assert nats[0] == pytest.approx(nats[1], rel=1e-6)
    assert nats[0] != pytest.approx(nats[2], rel=1e-3)
    assert "lora.r" in refused(text_file, "-o", tmp_path / "no", *SMALL.split(), "--lora.merge", "true")


def test_a_model_of_words_with_suggested_clusters(text_file: Path, tmp_path: Path):
    words = WordTokenizer.train_from_files([text_file], progress=False)
    words.save_pretrained(tmp_path / "words")
    options = ("--tokenizer.path", tmp_path / "words", "--tokenizer.clusters", 3)
    folder = train(text_file, "-o", tmp_path / "model", *SMALL.split(), *options)
    config = AutoModelForCausalLM.from_pretrained(folder).config
    assert (config.vocab_size, config.cutoffs) == (len(words), words.suggest_cutoffs(3))
    assert "word" in type(AutoTokenizer.from_pretrained(folder)).__name__.lower()
    assert "counts" in refused(text_file, "-o", tmp_path / "no", *SMALL.split(), "--tokenizer.clusters", 3)
    assert "vocab_size" in refused(
        text_file, "-o", tmp_path / "no", *SMALL.split(), *options[:2], "--model.vocab_size", 3
    )


def test_the_tokenizer_in_the_folder_of_texts(text_file: Path, tmp_path: Path):
    """As `transformers-xl prepare` writes it; a recipe's own path is of its own texts."""
    corpus = tmp_path / "corpus"
    words = WordTokenizer.train_from_files([text_file], progress=False)
    words.save_pretrained(corpus / "tokenizer")
    for name in ("train", "valid"):
        (corpus / f"{name}.txt").write_text(TEXT)
    sizes = ("--model.hidden_size", 16, "--model.num_hidden_layers", 1, "--model.num_attention_heads", 2)
    sizes = (
        *sizes,
        "--model.head_dim",
        8,
        "--model.intermediate_size",
        16,
        "--model.cutoffs",
        "[]",
        "--data.batch_size",
        2,
    )
    sizes = (*sizes, "--model.segment_length", 8, "--model.mem_len", 8, "--training.max_steps", 1)
    options = ("--recipe", "wikitext-103-standard", "--data.path", corpus, *sizes, "--model.vocab_size", "null")
    folder = train("-o", tmp_path / "model", *options)
    assert AutoModelForCausalLM.from_pretrained(folder).config.vocab_size == len(words)
    (corpus / "tokenizer" / "tokenizer_config.json").unlink()
    assert "vocab_size" in refused("-o", tmp_path / "no", *options[:-2])


class Signals(TrainerCallback):
    """Asks the process to end in the third step."""

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("save_strategy", ["steps", "no"])
def test_a_run_that_is_stopped_is_saved_and_resumes_exactly(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_strategy: str
):
    words = (text_file, *SMALL.split(), "--training.save_strategy", save_strategy, "--training.max_steps", 6)
    whole = train(*words, "-o", tmp_path / "whole")
    folder, handler = tmp_path / "stopped", signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "on_step_begin", Signals.on_step_begin)
        result = run("train", *words, "-o", folder)
    assert result.exit_code == 130
    assert "stopped after step 3" in result.output
    assert f"train --resume -o {folder}" in result.output
    assert signal.getsignal(signal.SIGINT) is handler
    assert {path.name for path in folder.iterdir()} == {"checkpoint-3", "run.yaml", RECORD}
    assert "add --resume to continue" in refused(*words, "-o", folder)
    assert "training has not ended" in run("evaluate", folder, "--text", text_file).output.replace("\n", " ")
    assert equal(train("--resume", "-o", folder), whole)
    longer = train("--resume", "-o", folder, "--training.max_steps", 8)
    training = json.loads((longer / "training_metrics.json").read_text())["training"]
    assert training["steps"] == 8
    assert training["command"] == "transformers-xl train -o stopped --resume --training.max_steps 8"


def test_memory_tokens_learn_through_more_and_more_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The curriculum of the Recurrent Memory Transformer, from a YAML file, also of a run that is stopped on its way."""
    config = tmp_path / "run.yaml"
    config.write_text(
        "model: {variant: recurrent_memory_transformer, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, "
        "intermediate_size: 16, segment_length: 2, mem_len: 2, num_memory_tokens: 1, bptt_segments: 4}\n"
        "data: {batch_size: 2}\n"
        "training: {max_steps: 8, warmup_steps: 1, initial_bptt_segments: 1, bptt_warmup_steps: 6}\n"
    )
    calls: list[tuple[int, int]] = []  # of each step: the segments that it reads, and those of a group

    def note(segments: int, length: int, group: int) -> None:
        calls.append((segments, group))

    monkeypatch.setattr(modeling_recurrent_memory_transformer, "warn_of_writing", note)
    monkeypatch.setattr(training_run.TrainingRun, "_fit_rows", lambda *given: None)  # it reads a row, too
    (tmp_path / "short.txt").write_text(TEXT[:200])
    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "on_step_begin", Signals.on_step_begin)
        words = (tmp_path / "short.txt", "--config", config, "-o", tmp_path / "model")
        assert run("train", *words).exit_code == 130
    assert calls == [(4, 1), (4, 1), (4, 2)]
    folder = train("--resume", "-o", tmp_path / "model")
    assert calls == [(4, group) for group in (1, 1, 2, 2, 3, 3, 4, 4)]
    assert AutoModelForCausalLM.from_pretrained(folder).config.bptt_segments == 4


def test_several_gpus_are_told_the_line_to_type(text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    words = ("train", text_file, "-o", tmp_path / "model", *SMALL.split())
    monkeypatch.setattr(MemoryTrainingArguments, "n_gpu", 4)
    monkeypatch.setattr(sys, "argv", ["transformers-xl", *map(str, words)])
    said = " ".join(refused(*words[1:]).split())
    line = shlex.join(["torchrun", "--nproc_per_node", "4", "-m", "transformers_xl.cli", *map(str, words)])
    assert f"type: {line} " in said
    assert "CUDA_VISIBLE_DEVICES=0" in said
    assert not (tmp_path / "model").exists()


def test_a_report_that_is_not_installed_is_refused_first(text_file: Path, tmp_path: Path, monkeypatch):
    def missing(self) -> None:
        raise RuntimeError("TensorBoardCallback requires tensorboard to be installed.")

    monkeypatch.setattr(TensorBoardCallback, "__init__", missing)
    said = refused(text_file, "-o", tmp_path / "no", *SMALL.split(), "--training.report_to", "tensorboard")
    assert "`training.report_to`=['tensorboard'] cannot be used: TensorBoardCallback requires" in said
    assert not (tmp_path / "no").exists()


def test_nothing_to_resume(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert "run.yaml" in refused("--resume", "-o", tmp_path / "empty")


def test_a_failure_leaves_the_folder_as_it_was(text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "model"
    with output_folder(folder) as new:
        (new / "old.txt").write_text("old")

    def fail(self, args, state, control, **kwargs):
        raise ValueError("the disk is full")

    monkeypatch.setattr(SavingOnSignal, "on_step_end", fail)
    assert "the disk is full" in refused(text_file, "-o", folder, "--overwrite", *SMALL.split())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert {path.name for path in folder.iterdir()} == {"old.txt", RECORD}


def test_early_stopping_and_the_best_model(text_file: Path, tmp_path: Path):
    words = (
        "--training.eval_strategy steps --training.eval_steps 1 --training.save_steps 1 --training.max_steps 9 "
        "--training.load_best_model_at_end true --training.early_stopping_patience 1 --training.learning_rate 5.0"
    )
    folder = tmp_path / "model"
    result = run("train", text_file, "-o", folder, *SMALL.split(), *words.split())
    assert result.exit_code == 0, result.output
    metrics = json.loads((folder / "training_metrics.json").read_text())
    losses = [row["eval_loss"] for row in metrics["log"] if "eval_loss" in row]
    assert f"ended after step {len(losses)} of 9: `training.early_stopping_patience`=1 was reached" in result.output
    assert metrics["training"]["steps"] == len(losses) < 9
    best, scored = min(losses), metrics["evaluations"][0]
    assert scored["nats"] / scored["tokens"] == pytest.approx(best, rel=1e-5)  # weighed by tokens, of the best step
    said = refused(text_file, "-o", tmp_path / "no", *SMALL.split(), "--training.early_stopping_patience", 1)
    assert "early_stopping_patience" in said


def test_scores_for_programs(text_file: Path, tmp_path: Path):
    result = run("train", text_file, "-o", tmp_path / "model", *SMALL.split(), "--json")
    scores = json.loads(result.stdout)
    assert scores["with_memory"]["perplexity"] > 1
    assert scores["with_memory"]["words"] > 1


def test_where_files_lie_is_not_pushed(trained: Path):
    files, left_out = uploading._files_to_push(trained)
    assert "run.yaml" in left_out
    assert not [name for name, path in files.items() if str(trained.parent) in path.read_text(errors="ignore")]


@pytest.mark.parametrize("share", ["0", "1"])
def test_a_share_that_holds_nothing_out_is_refused_before_anything_is_read(
    share: str, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(training_run, "run_tokenizer", lambda *given: pytest.fail("a tokenizer was read"))
    said = refused(text_file, "-o", tmp_path / "model", *SMALL.split(), "--data.eval_fraction", share)
    assert f"`data.eval_fraction`={float(share)} must lie between 0 and 1" in " ".join(said.split())
    assert "`data.eval_path`" in said


def test_all_of_a_text_is_trained_on_where_another_is_held_out(text_file: Path, tmp_path: Path):
    words = ("-o", tmp_path / "model", *SMALL.split(), "--data.eval_fraction", 0, "--data.eval_path", text_file)
    assert f"{len(TEXT):,} training tokens" in run("train", text_file, *words).output


def test_the_command_in_the_card_has_no_secret_and_no_folders(text_file: Path, tmp_path: Path):
    """It is pushed."""
    (tmp_path / "more.txt").write_text(TEXT)
    with zipfile.ZipFile(tmp_path / "texts.zip", "w") as file:
        file.writestr("inside/part.txt", TEXT)
    paths = f"[{text_file}, {tmp_path / 'more.txt'}]"
    words = ("--data.path", paths, "--data.eval_path", f"{tmp_path / 'texts.zip'}::inside/part.txt")
    secret = ("--training.hub_token", "hf_secret")
    folder = train("-o", tmp_path / "model", *words, *secret, *SMALL.split(), "--training.max_steps", 1)
    for name in ("README.md", "training_metrics.json"):
        written = (folder / name).read_text()
        assert "[text.txt, more.txt]" in written
        assert "texts.zip::inside/part.txt" in written
        assert "hf_secret" not in written
        assert str(tmp_path) not in written
        assert str(text_file.parent) not in written


def test_a_resumption_that_is_refused_keeps_the_run(trained: Path, text_file: Path, tmp_path: Path):
    folder = train(text_file, "-o", tmp_path / "model", *SMALL.split(), "--training.save_steps", 2)
    before = (folder / "run.yaml").read_text()
    for options, told in [
        (("--training.max_steps", 8, "--training.average_weights", "ema"), "`average_weights` was asked for"),
        (("--model.hidden_size", 32), "other weights than is asked for, such as"),
        (("--model.num_hidden_layers", 2), "other weights than is asked for, such as"),
        (("--lora.r", 4), "`lora.r`=4, but the run that is resumed has 0"),
        (("--overwrite",), "`overwrite`=True has no effect with --resume"),
    ]:
        assert told in " ".join(refused("--resume", "-o", folder, *options).split())
        assert (folder / "run.yaml").read_text() == before
    train("--resume", "-o", folder, "--training.max_steps", 6, "--model.dropout", 0.1)
    assert "max_steps: 6" in (folder / "run.yaml").read_text()


def test_adapters_are_resumed_as_they_were(trained: Path, text_file: Path, tmp_path: Path):
    needs("peft")
    adapters = ("--model.base", trained, "--lora.r", 2, "--lora.target_modules", "[q_proj]")
    words = (*SMALL.split()[-4:], *adapters, "--training.save_steps", 2)
    folder = train(text_file, "-o", tmp_path / "model", *words)
    for options, told in [
        (("--lora.alpha", 400), "`lora.alpha`=400, but the run that is resumed has 4"),
        (
            ("--lora.target_modules", "[q_proj, o_proj]"),
            "but the run that is resumed has ['q_proj']: it cannot be changed",
        ),
    ]:
        assert told in " ".join(refused("--resume", "-o", folder, *options).split())
    train("--resume", "-o", folder, "--training.max_steps", 6)


def test_a_damaged_checkpoint_is_passed_over(text_file: Path, tmp_path: Path):
    saving = ("--training.save_steps", 2, "--training.save_total_limit", 2)
    folder = train(text_file, *SMALL.split(), *saving, "-o", tmp_path / "model")
    newest = folder / "checkpoint-4" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    train("--resume", "-o", folder, "--training.max_steps", 6)
    assert json.loads((folder / "training_metrics.json").read_text())["training"]["steps"] == 6


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--lora.alpha", 8), "`lora.alpha`=8, but `lora.r`=0 makes no adapters"),
        (("--lora.target_modules", "[q_proj]"), "`lora.target_modules`=['q_proj'], but `lora.r`=0"),
        (("--training.optim", "lomo"), "`training.optim`='lomo' cannot be used"),
    ],
)
def test_what_would_have_no_effect_is_refused_first(options, told, text_file, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(training_run, "run_tokenizer", lambda *given: pytest.fail("a tokenizer was read"))
    assert told in " ".join(refused(text_file, "-o", tmp_path / "no", *SMALL.split(), *options).split())


def test_keywords_of_a_schedule_are_numbers(text_file: Path, tmp_path: Path):
    options = ("--training.lr_scheduler_type", "cosine_with_min_lr", "--training.lr_scheduler_kwargs.min_lr", "1e-5")
    folder = train(text_file, "-o", tmp_path / "model", *SMALL.split(), *options)
    assert yaml.safe_load((folder / "run.yaml").read_text())["training"]["lr_scheduler_kwargs"] == {"min_lr": 1e-5}


def test_a_base_of_adapters_alone_is_refused(text_file: Path, trained: Path, tmp_path: Path):
    needs("peft")
    adapters = train(
        text_file, "-o", tmp_path / "adapters", *SMALL.split()[-4:], "--model.base", trained, "--lora.r", 2
    )
    said = refused(text_file, "-o", tmp_path / "no", "--model.base", adapters)
    assert "holds adapters alone" in " ".join(said.split())


def test_the_record_of_a_text_is_of_its_bytes(tmp_path: Path):
    """Also where a token is the place of a byte in an alphabet, and where the file is compressed."""
    tokenizer = ByteTokenizer(symbols=bytes(sorted(set(TEXT.encode()))))
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "same.txt").write_text(TEXT)
    words = (tmp_path / "text.txt", "--data.eval_path", tmp_path / "same.txt")
    folder = train(*words, "-o", tmp_path / "model", *SMALL.split(), "--tokenizer.path", tmp_path / "tokenizer")
    assert run("evaluate", folder, "--text", tmp_path / "text.txt.gz", "--record").exit_code == 0
    metrics = json.loads((folder / "training_metrics.json").read_text())
    texts = [metrics["training"]["data"], *(each["data"] for each in metrics["evaluations"])]
    assert {text["name"] for text in texts} == {"text.txt", "same.txt", "text.txt.gz"}
    for text in texts:
        assert (text["sha256"], text["sha256_of"]) == (hashlib.sha256(TEXT.encode()).hexdigest(), "bytes")
        assert text["bytes"] == len(TEXT)


def test_a_member_of_an_archive_is_evaluated_and_a_table_is_not(trained: Path, text_file: Path, tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "texts.zip", "w") as file:
        for name in ("one", "two"):
            file.writestr(f"{name}.txt", TEXT)
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n')
    scores = [
        json.loads(run("evaluate", trained, "--text", text, "--json").output)["with_memory"]["nats"]
        for text in (text_file, f"{tmp_path / 'texts.zip'}::two.txt")
    ]
    assert scores[0] == scores[1]
    for command in (("evaluate", trained, "--text"), ("tokenizer", "train", "-o", tmp_path / "words")):
        result = run(*command, tmp_path / "rows.jsonl")
        assert result.exit_code == 2
        assert "is a table" in result.output
    result = run("evaluate", trained, "--text", tmp_path / "missing.txt")
    assert result.exit_code == 2
    assert "does not exist" in " ".join(result.output.split())
