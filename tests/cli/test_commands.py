"""The `transformers-xl` command, run as a user runs it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from programs import run
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from transformers_xl import ByteTokenizer
from transformers_xl.cli.common import show_table
from transformers_xl.cli.main import app
from transformers_xl.files.output_folder import output_folder
from transformers_xl.hub.measurements import read_measurements

ROOT = Path(__file__).parent.parent.parent
SMALL = (
    "--model.hidden_size 32 --model.num_hidden_layers 2 --model.num_attention_heads 2 --model.mem_len 16 "
    "--model.segment_length 8 --data.batch_size 4 --training.max_steps 3 --training.warmup_steps 1"
)
WITHOUT = SMALL.replace("--model.mem_len 16", "").split()
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 8


def commands(group: typer.Typer) -> list[list[str]]:
    """All commands, and those of its groups, as they are typed."""
    named = typer.main.get_command(group).commands.items()
    return [
        words
        for name, command in named
        for words in [[name], *([name, sub] for sub in getattr(command, "commands", {}))]
    ]


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def model_folder(text_file: Path) -> Path:
    folder = text_file.parent / "model"
    result = run("train", text_file, "-o", folder, *SMALL.split())
    assert result.exit_code == 0, result.output
    assert "with memory" in result.output
    return folder


def test_train_writes_a_folder_for_the_hub(model_folder: Path):
    names = {path.name for path in model_folder.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors"} <= names
    assert {"tokenizer.json", "training_metrics.json", "README.md"} <= names
    assert not [name for name in names if name.endswith((".bin", ".pkl", ".pt"))]
    metrics = json.loads((model_folder / "training_metrics.json").read_text())
    assert [each["memory"] for each in metrics["evaluations"]] == [True, False]
    assert metrics["training"]["arguments"]["model"]["mem_len"] == 16
    model, tokenizer = (cls.from_pretrained(model_folder) for cls in (AutoModelForCausalLM, AutoTokenizer))
    assert model.config.mem_len == 16
    assert model.generate(**tokenizer("It was", return_tensors="pt"), max_new_tokens=3).shape == (1, 9)


def test_evaluate(model_folder: Path, text_file: Path):
    result = run("evaluate", model_folder, "--text", text_file, "--json")
    assert result.exit_code == 0, result.output
    scores = json.loads(result.output)
    assert scores["with_memory"]["bytes"] == len(TEXT) - 1
    assert 0 < scores["with_memory"]["bits_per_byte"] != scores["memory_taken_away"]["bits_per_byte"]
    table = run("evaluate", model_folder, "--text", text_file)
    assert table.exit_code == 0, table.output
    assert f"{scores['with_memory']['bits_per_byte']:.4f}" in table.output


def test_evaluate_with_other_lengths(text_file: Path, tmp_path: Path):
    short = text_file.parent / "other_lengths.txt"
    short.write_text(TEXT[:200])
    model_folder = tmp_path / "model"  # whose distances can be clamped
    run("train", text_file, "-o", model_folder, "--model.variant", "transformer_xl", *SMALL.split())

    def bits(*words: object) -> dict:
        result = run("evaluate", model_folder, "--text", short, "--json", *words)
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    usual = bits()
    assert bits("--mem-len", 16, "--clamp-len", -1, "--same-length") == usual
    for words in (
        ("--mem-len", 32),
        ("--clamp-len", 2),
        ("--no-same-length",),
        ("--segment-length", 5, "--mem-len", 9),
    ):
        assert bits(*words)["with_memory"]["nats"] != usual["with_memory"]["nats"], words
    assert list(bits("--mem-len", 0, "--no-same-length")) == ["in_segments"]
    table = run("evaluate", model_folder, "--text", short, "--markdown").output
    assert table.startswith("|  | with memory | memory taken away |\n| --- | ---: | ---: |\n| bits per byte | ")
    assert f"| {usual['with_memory']['perplexity']:,.3f} |" in table


def test_a_wide_table_keeps_its_digits(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    table = ("wide", ["model", *"abcdefghi"], [["transformer_xl", *["1,234,567 +- 89"] * 9]])
    show_table(*table)
    assert capsys.readouterr().out.count("1,234,567 +- 89") == 9  # a file has room for it
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a terminal
    monkeypatch.setenv("COLUMNS", "80")
    show_table(*table)
    assert "\u2026" not in capsys.readouterr().out


def test_evaluate_with_segments_that_overlap(model_folder: Path, text_file: Path):
    """Every token is predicted once, and most of them from more context."""
    short = text_file.parent / "overlapping.txt"
    short.write_text(TEXT[:200])
    words = ("evaluate", model_folder, "--text", short, "--json", "--segment-length", 8)
    without = ("--mem-len", 0, "--no-same-length")
    plain, overlapping = (json.loads(run(*words, *without, *more).output) for more in ((), ("--overlap", 6)))
    assert plain["in_segments"]["tokens"] == overlapping["in_segments"]["tokens"] == 199
    # by hand: the first segment alone, then two new tokens behind six of context
    model = AutoModelForCausalLM.from_pretrained(model_folder, mem_len=0, same_length=False).eval()
    ids = torch.tensor(list(TEXT[:200].encode()))
    nats = 0.0
    with torch.no_grad():
        for start in range(0, 193, 2):
            targets = ids[start + 1 : start + 9]
            logits = model(ids[None, start : start + len(targets)]).logits[0]
            losses = F.cross_entropy(logits, targets, reduction="none")
            nats += losses[6 if start else 0 :].sum().item()
    assert overlapping["in_segments"]["nats"] == pytest.approx(nats, rel=1e-5)
    assert "`overlap`=6 would be read twice" in run(*words, "--overlap", 6).output


def test_evaluate_by_a_moving_window(model_folder: Path, tmp_path: Path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    short = tmp_path / "short.txt"
    short.write_text(TEXT[:60])
    result = run("evaluate", folder, "--text", short, "--moving-window", "--json", "--record")
    assert result.exit_code == 0, result.output
    scores = json.loads(result.output)
    assert list(scores) == ["with_memory", "memory_taken_away", "moving_window"]
    assert scores["moving_window"]["tokens"] == 59
    assert scores["moving_window"]["bits_per_byte"] != scores["memory_taken_away"]["bits_per_byte"]
    recorded = read_measurements(folder).evaluations[-1]
    assert recorded.bits_per_byte == scores["moving_window"]["bits_per_byte"]
    # a window shares all its tokens but one with the window before
    assert (recorded.lengths.mem_len, recorded.lengths.overlap) == (0, recorded.lengths.segment_length - 1)
    assert "--moving-window --record" in (folder / "README.md").read_text()


def test_a_model_without_memory_is_trained_and_measured_once(text_file: Path, tmp_path: Path):
    result = run("train", text_file, "-o", tmp_path / "out", "--model.variant", "vanilla_transformer", *WITHOUT)
    assert result.exit_code == 0, result.output
    assert "in segments" in result.output
    assert "with memory" not in result.output
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.auxiliary is None  # what exists in training only is not shipped
    result = run("evaluate", tmp_path / "out", "--text", text_file, "--json")
    assert list(json.loads(result.output)) == ["in_segments"]


def test_generate_streams_and_repeats_with_its_seed(model_folder: Path):
    arguments = ("generate", model_folder, "--prompt", "It was", "--max-new-tokens", 30, "--seed", 5)
    first, second, other = run(*arguments), run(*arguments), run(*arguments[:-1], 6)
    assert first.exit_code == 0, first.output
    assert first.stdout_bytes.startswith(b"It was")
    assert len(first.stdout_bytes) >= len(b"It was") + 20  # special tokens, should one be drawn, are not written
    assert first.stdout_bytes == second.stdout_bytes != other.stdout_bytes
    assert (
        run("generate", model_folder, "--prompt", "It was", "--temperature", 0, "--max-new-tokens", 5).exit_code == 0
    )


def test_generate_writes_several_texts(model_folder: Path, tmp_path: Path):
    (tmp_path / "context.txt").write_text("It was the best of")
    words = (
        "generate",
        model_folder,
        "-p",
        "It was",
        "--prompt-file",
        tmp_path / "context.txt",
        "--max-new-tokens",
        6,
    )
    words = (*words, "--num-samples", 3, "--top-p", 0.9, "--repetition-penalty", 1.1)
    found = json.loads(run(*words, "--json").stdout)
    assert [each["prompt"] for each in found] == ["It was", "It was the best of"]
    assert all(len(each["texts"]) == 3 and len(set(each["texts"])) > 1 for each in found)
    assert all(text.startswith(each["prompt"]) for each in found for text in each["texts"])
    assert run(*words).stdout.count("---") == 5
    beams = run("generate", model_folder, "-p", "It", "--temperature", 0, "--num-beams", 2, "--max-new-tokens", 3)
    assert beams.exit_code == 0, beams.output


def test_generate_streams_what_it_writes_at_once(model_folder: Path):
    words = ("generate", model_folder, "-p", "It was", "--temperature", 0, "--max-new-tokens", 9)
    streamed, whole = run(*words), run(*words, "--no-stream")
    assert streamed.stdout == whole.stdout


def test_generate_writes_nothing_of_a_prompt_that_is_refused(model_folder: Path, tmp_path: Path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    ByteTokenizer(symbols=sorted(set(b"It was"))).save_pretrained(folder)
    result = run("generate", folder, "-p", "It was!", "--max-new-tokens", 3)
    assert (result.exit_code, result.output.startswith("Error: ")) == (2, True)
    assert "symbols" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "{model}", "-p", "a", "--stream", "--num-samples", "2"), "`stream`=True"),
        (("generate", "{model}", "-p", "a", "--temperature", "0", "--top-p", "0.5"), "`top_p`=0.5"),
        (("generate", "{model}", "-p", "a", "--greedy", "--temperature", "0.5"), "`temperature`=0.5"),
        (("generate", "{model}", "-p", "a", "--greedy", "--top-p", "0.5"), "`top_p`=0.5"),
        (("generate", "{model}", "-p", "a", "--temperature", "0", "--top-k", "5"), "`top_k`=5"),
        (("generate", "{model}", "-p", "a", "--temperature", "0", "--num-samples", "3"), "`num_samples`=3"),
        (("generate", "{model}", "-p", "a", "--num-samples", "3", "--num-beams", "2"), "the `num_beams`=2 that end"),
        (("evaluate", "{model}", "--text", "{text}", "--mem-len", "0"), "`mem_len`=0"),
        (("evaluate", "{model}", "--text", "{text}", "--clamp-len", "0"), "`clamp_len`=0"),
        (("evaluate", "{model}", "--text", "{text}", "--json", "--markdown"), "`markdown`=True"),
        (("train", "{text}", "-o", "{out}", "--recpie", "small-bytes"), "Did you mean --recipe?"),
        (("train", "{text}", "-o", "{out}", "--recipe", "small-byte"), "Did you mean 'small-bytes'?"),
        (("train", "{text}", "-o", "{out}", "--data.eval_path", "missing.txt"), "`data.eval_path`"),
        (("train", "{text}", "-o", "{out}", "--tokenizer.path", "no/where"), "`tokenizer.path`='no/where'"),
        (("train", "{text}", "-o", "{out}", "--model.variant", "transformer_xxl"), "transformer_xl"),
        (
            ("train", "{text}", "-o", "{out}", *["--training.max_steps", "3", "--training.num_train_epochs", "1"]),
            "one of",
        ),
        (("train", "{text}", "-o", "{out}", "--training.learning_rate", "0"), "learning_rate"),
        (("train", "{text}", "-o", "{out}", "--model.segment_length", "4000"), "too short"),
        (("train", "{text}", "-o", "{model}"), "not empty"),
        (("train", "missing.txt", "-o", "{out}"), "missing.txt"),
        (("evaluate", "{text_folder}", "--text", "{text}"), "config.json"),
        (("generate", "{model}", "--prompt", ""), "prompt"),
    ],
)
def test_errors_are_one_line_and_leave_everything_as_it_was(
    model_folder: Path, text_file: Path, tmp_path: Path, arguments: tuple, message: str
):
    empty = tmp_path / "no-model"
    empty.mkdir()
    names = {"text": text_file, "out": tmp_path / "out", "model": model_folder, "text_folder": empty}
    before = sorted((path.name, path.stat().st_mtime_ns) for path in model_folder.iterdir())
    result = run(*(argument.format(**names) for argument in arguments))
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.replace("\u2502", " ").split())
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["no-model"]
    assert sorted((path.name, path.stat().st_mtime_ns) for path in model_folder.iterdir()) == before


def test_overwrite_replaces_the_folder(text_file: Path, tmp_path: Path):
    folder = tmp_path / "model"
    with output_folder(folder) as new:
        (new / "old.txt").write_text("old")
    result = run("train", text_file, "-o", folder, "--overwrite", *SMALL.split())
    assert result.exit_code == 0, result.output
    assert (folder / "config.json").is_file()
    assert not (folder / "old.txt").exists()


def test_two_commands_do_not_write_one_folder(text_file: Path, tmp_path: Path):
    with output_folder(tmp_path / "model"):
        result = run("train", text_file, "-o", tmp_path / "model", *SMALL.split())
    assert result.exit_code == 2, result.output
    assert f"process {os.getpid()} on host" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_bars_of_libraries_are_off_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch):
    names = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")
    for name in names:
        monkeypatch.setenv(name, "0")
    assert run("config", "--recipes").exit_code == 0
    assert [os.environ[name] for name in names] == ["1", "1"]


def test_help_answers_without_importing_torch():
    """Of all commands in one process, whatever the program is called: here it is `-c`."""
    program = (
        "import sys\n"
        "from transformers_xl.cli.main import app\n"
        "for command in sys.argv[1:]:\n"
        "    sys.argv = ['-c', *command.split(), '--help']\n"
        "    try:\n"
        "        app()\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, command\n"
        "    assert 'torch' not in sys.modules and 'transformers' not in sys.modules, command\n"
    )
    words = ["", *map(" ".join, commands(app))]
    result = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "COLUMNS": "200"},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Usage: ") == len(words) > 15
    assert not result.stderr


def test_greedy_is_a_temperature_of_zero(model_folder: Path):
    words = ("generate", model_folder, "-p", "It was", "--max-new-tokens", 9)
    greedy, zero, other = (
        run(*words, *more) for more in (("--greedy",), ("--temperature", 0), ("--greedy", "--seed", 1))
    )
    assert greedy.exit_code == 0, (greedy.output, greedy.exception)
    assert greedy.stdout == zero.stdout == other.stdout


@pytest.mark.parametrize("seed", [-1, 2**32])
@pytest.mark.parametrize(
    "command",
    [
        ("generate", "{model}", "-p", "It"),
        ("chat", "{model}"),
        ("train-probe", "copy", "transformer_xl", "-o", "{new}"),
    ],
)
def test_a_seed_that_is_none_is_refused_by_name(command: tuple, seed: int, model_folder: Path, tmp_path: Path):
    result = run(*(each.format(model=model_folder, new=tmp_path / "new") for each in command), "--seed", seed)
    assert result.exit_code == 2
    assert "--seed" in result.stderr
    assert "than or equal to" in result.stderr
