"""Hostile files and wrong words, over all commands: the end is status 0, or 2 and one sentence that names the culprit.

Bounds themselves are tested in tests/files/test_foreign_files.py; here that every door has one.
"""

import gzip
import json
import math
import os
import shlex
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from programs import run
from safetensors.torch import save_file

from transformers_xl.files.bounded_calls import bounded

SMALL = (
    "--model.hidden_size 16 --model.num_hidden_layers 1 --model.num_attention_heads 2 --model.mem_len 8 "
    "--model.segment_length 8 --data.batch_size 2 --training.max_steps 1"
)


def assert_said(result: Result, *names: str) -> None:
    assert result.exit_code == 2, (result.output, result.exception)
    assert "Traceback" not in result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert all(name in line for name in names), line
    assert len(line) < 700


def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "__kwdefaults__", {"seconds": 1, "memory": 1 << 27, "most": 1 << 24})


def change(path: Path, **fields: object) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | fields))


def change_base(path: Path, **fields: object) -> None:
    change(path, text_config=json.loads(path.read_text())["text_config"] | fields)


def nest(path: Path, levels: int) -> None:
    inner = json.loads(path.read_text())["text_config"]
    for _ in range(levels):
        inner = {"model_type": "segment_memory", "kind": "window", "text_config": inner}
    change(path, text_config=inner)


# file of a folder of the kind `window`, how it is damaged, and what is said
FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "labels": ("config.json", lambda path: change(path, num_labels=10**9), "it takes more than"),
    "labels of the base": ("config.json", lambda path: change_base(path, num_labels=10**9), "it takes more than"),
    "layers of the base": ("config.json", lambda path: change_base(path, num_hidden_layers=10**9), "at most 4096"),
    "configs in configs": ("config.json", lambda path: nest(path, 9), "has this memory already"),
    "many configs in configs": ("config.json", lambda path: nest(path, 99), "levels deep"),
    "a base of several models": (
        "config.json",
        lambda path: change(path, text_config={"model_type": "llava", "text_config": {"model_type": "llama"}}),
        "",
    ),
    "architectures that are a number": ("config.json", lambda path: change(path, architectures=5), "language model"),
    "architectures of numbers": ("config.json", lambda path: change(path, architectures=[1]), "language model"),
    "a type that is a list": ("config.json", lambda path: change(path, model_type=[1]), "config.json"),
    "a deep tokenizer": ("tokenizer.json", lambda path: path.write_text("[" * 100_000), "levels deep"),
    "a pipe": ("another.file", os.mkfifo, "is a pipe"),
    "a device": ("added_tokens.json", lambda path: path.symlink_to("/dev/zero"), "is a pipe or a device"),
    "a length that is text": ("tokenizer_config.json", lambda path: change(path, model_max_length="x"), "TypeError"),
    "a map that is a number": (
        "tokenizer_config.json",
        lambda path: change(path, auto_map=5),
        "tokenizer_config.json",
    ),
    "many beams": ("generation_config.json", lambda path: change(path, num_beams=10**9), "at most 1024"),
    "guidance that is text": ("generation_config.json", lambda path: change(path, guidance_scale="x"), "TypeError"),
    "a token that there is not": (
        "generation_config.json",
        lambda path: change(path, forced_eos_token_id=10**9),
        "IndexError",
    ),
    "an end that is text": ("generation_config.json", lambda path: change(path, eos_token_id=["a"]), "dimensions"),
    "words that are text": ("generation_config.json", lambda path: change(path, suppress_tokens="abc"), "dimensions"),
}


@pytest.mark.parametrize("case", FILES)
def test_hostile_files_of_a_model(case: str, folders: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small_bounds(monkeypatch)
    name, damage, said = FILES[case]
    folder = shutil.copytree(folders["window"], tmp_path / "model")
    damage(folder / name)
    if case in ("an end that is text", "words that are text"):
        change(folder / name, temperature=0.5)
    result = run("generate", folder, "-p", "It", "--max-new-tokens", 1)
    assert_said(result, str(folder), said)


TEMPLATES = {
    "loops": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "processor time"),
    "width": ("{{ 'a'.center(10**10) }}", "MiB of memory"),
    "length": ("{{ 'a' * 10**6 }}", "bytes"),
    "syntax": ("{% for %}", "TemplateSyntaxError"),
    "an error": ("{{ raise_exception('no') }}", "no"),
    "no error": ("{{ 1 / 0 }}", "division by zero"),
    "a way out": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
    "recursion": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_hostile_chat_templates(case: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small_bounds(monkeypatch)
    template, said = TEMPLATES[case]
    folder = shutil.copytree(folders["window"], tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    assert_said(run("chat", folder, "--max-new-tokens", 1, typed="hi\n"), "chat template", str(folder), said)


BACKTRACKS = "([a-z0-9._]*)*X"
ADAPTERS = {
    "catastrophic modules": ({"target_modules": BACKTRACKS}, "`target_modules`"),
    "catastrophic exceptions": ({"exclude_modules": BACKTRACKS}, "`exclude_modules`"),
    "catastrophic ranks": ({"rank_pattern": {BACKTRACKS: 2}}, "`rank_pattern`"),
    "no pattern": ({"target_modules": "(("}, "unterminated"),
    "a number of modules": ({"target_modules": 5}, "TypeError"),
    "layers that are a number": ({"layers_pattern": 5, "layers_to_transform": [0]}, ""),
    "a rank": ({"r": 10**9}, "`r`=1000000000 must be at most 16"),
    "ranks": ({"rank_pattern": {"q_proj": 10**9}}, "must be at most 16"),
    "a rank that is text": ({"r": "x"}, "TypeError"),
    "NaN": ({"lora_alpha": math.nan}, "NaN"),
    "a kind": ({"peft_type": "NOPE"}, "NOPE"),
    "vectors": ({"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 10**9}, "`num_virtual_tokens`"),
    "an import": ({"megatron_config": {"a": 1}, "megatron_core": "this"}, "`megatron_config`"),
    "no base": ({"base_model_name_or_path": None}, "names no model"),
    "itself": ({"base_model_name_or_path": "{folder}"}, "holds adapters"),
}


def save_adapters(folder: Path, base: Path, **fields: object) -> Path:
    folder.mkdir()
    known = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
        "base_model_name_or_path": str(base), "bias": "none",
    }  # fmt: skip
    fields = {name: str(folder) if value == "{folder}" else value for name, value in fields.items()}
    (folder / "adapter_config.json").write_text(json.dumps(known | fields))
    layers = [f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora" for layer in range(2)]
    tensors = {f"{layer}_A.weight": torch.zeros(2, 16) for layer in layers}
    tensors |= {f"{layer}_B.weight": torch.zeros(16, 2) for layer in layers}
    save_file(tensors, folder / "adapter_model.safetensors")
    for file in base.glob("*token*"):
        shutil.copyfile(file, folder / file.name)
    return folder


@pytest.mark.parametrize("case", [None, *ADAPTERS])
def test_hostile_adapters(case: str | None, folders: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small_bounds(monkeypatch)
    fields, said = ADAPTERS[case] if case else ({}, "")
    folder = save_adapters(tmp_path / "adapters", folders["bytes"], **fields)
    result = run("generate", folder, "-p", "It", "--max-new-tokens", 1)
    if case is None:
        assert result.exit_code == 0, result.output
    else:
        assert_said(result, str(folder), said)


def test_adapters_that_are_a_pickle(folders: dict, tmp_path: Path):
    folder = save_adapters(tmp_path / "adapters", folders["bytes"])
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert_said(run("generate", folder, "-p", "It"), "has no adapter_model.safetensors")


def gzip_bomb(path: Path) -> None:
    path.write_bytes(gzip.compress(bytes(80 << 20)))


def zip_bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text.txt", bytes(80 << 20))


def tar_bomb(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("ptb.train.txt")
        member.size = 80 << 20
        archive.addfile(member, open("/dev/zero", "rb"))  # noqa: SIM115


TEXTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "deep lines": ("a.jsonl", lambda path: path.write_text('{"text": "a"}\n' * 9 + '{"a":' * 100_000), "levels deep"),
    "deep JSON": ("a.json", lambda path: path.write_text("[" * 100_000), "levels deep"),
    "deep lines, packed": ("a.jsonl.gz", lambda path: path.write_bytes(gzip.compress(b"[" * 9999)), "levels deep"),
    "no parquet": ("a.parquet", lambda path: path.write_text("PAR1"), "cannot be read"),
    "a bomb": ("a.txt.gz", gzip_bomb, "times its size"),
    "a bomb in an archive": ("a.zip", zip_bomb, "times its size"),
    "a pipe": ("a.txt", os.mkfifo, "a.txt"),
    "a device": ("a.txt", lambda path: path.symlink_to("/dev/zero"), "a.txt"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_hostile_texts(case: str, folders: dict[str, Path], tmp_path: Path):
    name, make, said = TEXTS[case]
    text = tmp_path / name
    make(text)
    assert_said(run("train", text, "-o", tmp_path / "out", *SMALL.split()), name, said)
    assert not (tmp_path / "out").exists()
    if text.suffix in (".txt", ".gz", ".zip") and "deep" not in case:
        assert_said(run("evaluate", folders["bytes"], "--text", text), name, said)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.tgz", tar_bomb),
        ("a.zip", lambda path: zipfile.ZipFile(path, "w").close()),
        ("a.txt", os.mkfifo),
        ("b.txt", lambda path: path.symlink_to("/dev/zero")),
    ],
)
@pytest.mark.parametrize("corpus", ["ptb", "enwik8", "log"])
def test_hostile_corpora(corpus: str, name: str, make: Callable, tmp_path: Path):
    make(tmp_path / name)
    assert_said(run("prepare", corpus, tmp_path / name, "-o", tmp_path / "out", "--no-check"), name)
    assert not (tmp_path / "out").exists()


# {0} is a folder of a model, {1} a text, {2} a pipe, {3} a folder to write to, {4} a base
LINES = """
generate {0} --prompt-file {2}                                      | is a pipe
generate {0} --prompt-file /dev/zero                                | is a pipe or a device
generate {0} -p It --temperature inf                                | `temperature`=inf must be a finite
generate {0} -p It --temperature 1e-300                             | `temperature`=1e-300 must be 0
generate {0} -p It --repetition-penalty nan                         | `repetition_penalty`=nan must be a finite
generate {0} -p It --repetition-penalty 0                           | `repetition_penalty`=0.0 must be above 0
evaluate {0} --text {2}                                             | is not a file
evaluate {0} --text {1} --mem-len 99999999999999999999              | `mem_len`=99999999999999999999 must be
evaluate {0} --text {1} --segment-length 0                          | segment_length
evaluate {0} --text {1} --batch-size -1                             | lanes
train-probe registers gpt2 -o {3} --learning-rate nan               | `learning_rate`=nan must be a finite
train-probe registers [ -o {3}                                      | [
card {2}/nowhere                                                    |
config --model.variant [                                            | `model.variant`='['
convert {2} {3}                                                     |
prepare log {1} -o {3} --held-out nan                               | `held_out`=nan must be a finite
tokenizer train {2} -o {3}                                          | is not a file
add-memory {4} -o {3} --mem-len -1                                  | `mem_len`=-1
train {1} -o {3} --config {2}                                       | is a pipe
train {1} -o {3} --model.variant [                                  | `model.variant`='['
train {1} -o {3} --model.variant &a                                 | `model.variant`='&a'
train {1} -o {3} --model.mem_len [[[[                               | `model.mem_len`='[[[['
train {1} -o {3} --training.learning_rate .nan                      | `training.learning_rate`=nan must be a finite
train {1} -o {3} --training.weight_decay .inf                       | `training.weight_decay`=inf must be a finite
train {1} -o {3} --training.max_grad_norm -.inf                     | `training.max_grad_norm`=-inf must be a finite
train {1} -o {3} --training.lr_scheduler_type sinus                 | `training.lr_scheduler_type`='sinus' must be one of
train {1} -o {3} --lora.dropout .nan --lora.r 2                     | `lora.dropout`=nan must be a finite
train {1} -o {3} --model.initializer_range .inf                     | `model.initializer_range`=inf must be a finite
train {1} -o {3} --training.max_steps 0                             | `training.max_steps`=0 trains nothing
train {1} -o {3} --data.batch_size 0                                | `data.batch_size`=0 must be at least 1
train {1} -o {3} --model.segment_length 1000000000000               | too short for
train {1} -o {3} --data.batch_size 1000000000                       | too short for `data.batch_size`=1000000000 of
train {1} -o {1}/out                                                | /out' cannot be written
train {1} -o {3} --training.lr_scheduler_kwargs x                   | `training.lr_scheduler_kwargs`='x' must be
"""


@pytest.mark.parametrize("line", [line for line in LINES.splitlines() if line])
def test_wrong_words(line: str, folders: dict[str, Path], text_file: Path, tmp_path: Path):
    command, _, said = line.partition("|")
    os.mkfifo(tmp_path / "pipe")
    base = folders["window"].parent / "base"
    words = [
        word.format(folders["bytes"], text_file, tmp_path / "pipe", tmp_path / "out", base)
        for word in shlex.split(command)
    ]
    result = run(*words)
    if said.strip():
        assert_said(result, said.strip())
    assert result.exit_code == 2, (result.output, result.exception)
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "value", ["nan", "inf", ".nan", "!!python/object/apply:os.system ['touch run']", "&a [*a]", "[1"]
)
def test_values_of_a_file(value: str, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(f"training:\n  learning_rate: {value}\n")
    assert_said(run("train", text_file, "-o", tmp_path / "out", "--config", tmp_path / "run.yaml"), "")
    assert {path.name for path in tmp_path.iterdir()} == {"run.yaml"}
