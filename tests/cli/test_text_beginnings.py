"""What each command reads with a tokenizer that begins texts, one that ends them, one that does both, and one that does
neither."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from programs import run
from stand_in_base import TEXT, save_base
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

BEGIN, END = 1, 2
ADDS = {"begins": "<s> $A", "begins and ends": "<s> $A </s>", "ends": "$A </s>", "neither": "$A"}
SEGMENT = 8
STEPS = ("--training.max_steps=3", "--training.save_strategy=no", "--data.batch_size=2", "--data.eval_batch_size=2")


@pytest.fixture(scope="module", params=ADDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def begins(kind: str) -> bool:
    return kind.startswith("begins")


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with a window around it, and texts beside it."""
    base = save_base(tmp_path_factory.mktemp("bases") / "base", adds=ADDS[kind])
    sizes = ("--kind", "window", "--mem-len", "24", "--segment-length", str(SEGMENT))
    done("add-memory", base, "-o", base.parent / "model", *sizes)
    (base.parent / "text.txt").write_text(TEXT)
    (base.parent / "short.txt").write_text(TEXT[:330])
    return base.parent


@pytest.fixture
def rows() -> Iterator[list[list[int]]]:
    """The rows of token ids that models read, in turn."""
    read: list[list[int]] = []

    def look(module: nn.Module, inputs: tuple) -> None:
        if isinstance(module, nn.Embedding) and module.num_embeddings > 256:
            read.extend(inputs[0].reshape(-1, inputs[0].shape[-1]).tolist())

    handle = nn.modules.module.register_module_forward_pre_hook(look)
    yield read
    handle.remove()


def done(*words: object, typed: str | None = None) -> str:
    result = run(*words, typed=typed)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def ids_of(folder: Path, text: str) -> list[int]:
    return AutoTokenizer.from_pretrained(folder / "model")(text, add_special_tokens=False)["input_ids"]


def texts(rows: list[list[int]]) -> list[list[int]]:
    """Without what `train` reads to see what a step needs, from token 0 on."""
    return [row for row in rows if row[0]]


def check(rows: list[list[int]], begun: int | None, begins: bool) -> None:
    """So many rows begin a text, or all of them, and nothing stands elsewhere; no text has ended."""
    assert rows
    first = [row[0] == BEGIN for row in rows]
    assert sum(first) == (begins and (len(rows) if begun is None else begun))
    assert not any(BEGIN in row[1:] for row in rows)
    assert not any(END in row[:-1] for row in rows)


def test_generate(folder: Path, begins: bool, rows: list):
    prompts = ["It was", "<s>It was"]  # a text that has it already gets no second
    options = [word for prompt in prompts for word in ("-p", prompt)]
    done("generate", folder / "model", *options, "--max-new-tokens", 3, "--temperature", 0)
    ids = ids_of(folder, "It was")
    prompts_read = [row for row in rows if len(row) > 1]
    assert prompts_read == [[BEGIN] * begins + ids, ids_of(folder, "<s>It was")]
    rows.clear()
    streamed = done("generate", folder / "model", "-p", "It was", "--max-new-tokens", 3, "--temperature", 0)
    assert streamed.startswith("It was")
    assert next(row for row in rows if len(row) > 1) == [BEGIN] * begins + ids  # settings are tried on one token


def test_chat(folder: Path, begins: bool, rows: list):
    """A line at a time; after /reset a text begins again."""
    model = folder / "without template"
    if not model.exists():
        tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        tokenizer.chat_template = None
        AutoModelForCausalLM.from_pretrained(folder / "model").save_pretrained(model)
        tokenizer.save_pretrained(model)
    lines = "It was\nthe age\n/reset\nIt was\n"
    done("chat", model, "--json", "--max-new-tokens", 2, "--temperature", 0, typed=lines)
    turns = [row for row in rows if len(row) > 1]
    first, second = ids_of(folder, "It was\n"), ids_of(folder, "the age\n")
    assert turns[0] == turns[2] == [BEGIN] * begins + first
    assert turns[1][-len(second) :] == second
    assert BEGIN not in turns[1]


def test_chat_with_a_template_that_brings_it(folder: Path, rows: list):
    model = folder / "with template"
    if not model.exists():
        tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        tokenizer.chat_template = "<s>" + tokenizer.chat_template
        AutoModelForCausalLM.from_pretrained(folder / "model").save_pretrained(model)
        tokenizer.save_pretrained(model)
    done("chat", model, "--json", "--max-new-tokens", 2, "--temperature", 0, typed="It was\nthe age\n")
    (begin,) = ids_of(folder, "<s>")
    assert [row.count(begin) for row in rows if len(row) > 1] == [1, 0]


def test_evaluate(folder: Path, begins: bool, rows: list):
    text, ids = folder / "short.txt", ids_of(folder, TEXT[:330])
    found = json.loads(done("evaluate", folder / "model", "--text", text, "--batch-size", 2, "--json"))
    for name in ("with_memory", "memory_taken_away"):
        assert found[name]["tokens"] == len(ids) - (not begins)
        assert found[name]["bytes"] == 330
    rows_of_memory = 2 * -(-(-(-len(ids) // 2) + begins) // SEGMENT)
    check(rows[:rows_of_memory], 2, begins)
    check(rows[rows_of_memory:], None, begins)


def test_moving_window(folder: Path, begins: bool, rows: list):
    words = ("evaluate", folder / "model", "--text", folder / "short.txt", "--moving-window", "--json")
    found = json.loads(done(*words))
    ids = ids_of(folder, TEXT[:330])
    assert found["moving_window"]["tokens"] == len(ids) - (not begins)
    windows = rows[-(len(ids) - SEGMENT) :]
    check(windows, None, begins)
    assert all(len(row) == SEGMENT for row in windows)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("recl", ("--c0", 2, "--delta", 2, "--max-context", 8, "--blocks", 2, "--positions", 4, "--resamples", 2)),
        ("distant-context", ("--context", 8, "--positions", 4, "--distance", 2)),
        ("context-curve", ("--length", 0)),
    ],
)
def test_windows_of_measurements(folder: Path, begins: bool, rows: list, command: str, words: tuple):
    done(command, folder / "base", "--text", folder / "short.txt", "--json", *words)
    check(rows, None, begins)


@pytest.mark.parametrize("documents", [False, True])
def test_train_and_what_it_reports(folder: Path, begins: bool, rows: list, tmp_path: Path, documents: bool):
    separated = ("--data.documents=true", "--data.separator=\n") if documents else ()
    text = folder / "text.txt"
    if documents:
        text = tmp_path / "lines.txt"
        text.write_text("".join(f"It was the age number {number} of wisdom, of times.\n" for number in range(30)))
    words = ("train", text, "-o", tmp_path / "run", "--model.base", folder / "model", *STEPS, *separated)
    done(*words)
    rows = texts(rows)
    training = rows[: 3 * 2]
    check(training[:2], 2, begins)
    assert not any(BEGIN in row[1:] for row in rows)
    assert any(row[0] != BEGIN for row in training)  # what continues a text does not begin
    log = json.loads((tmp_path / "run" / "training_metrics.json").read_text())
    with_memory, alone = log["evaluations"]
    assert with_memory["tokens"] == alone["tokens"]
    assert with_memory["bytes"] == alone["bytes"]


def test_a_model_without_memory_begins_with_every_row(folder: Path, begins: bool, rows: list, tmp_path: Path):
    sizes = ("hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2", f"segment_length={SEGMENT}")
    new = ("--model.variant=vanilla_transformer", "--tokenizer.path", folder / "base", "--model.cutoffs=[]")
    done("train", folder / "text.txt", "-o", tmp_path / "run", *new, *(f"--model.{size}" for size in sizes), *STEPS)
    check(texts(rows), None, begins)


def test_a_run_is_resumed_exactly(folder: Path, tmp_path: Path):
    words = ("--model.base", folder / "model", "--data.batch_size=2", "--data.eval_batch_size=2")
    runs = []
    for steps in ((6,), (3, 6)):
        output = tmp_path / f"{len(steps)}"
        for number, last in enumerate(steps):
            again = ("--resume",) if number else (*words, "--training.lr_scheduler_type=constant")
            source = () if number else (folder / "text.txt",)
            stop = (f"--training.max_steps={last}", "--training.save_steps=3")
            done("train", *source, "-o", output, *again, *stop)
        runs.append(AutoModelForCausalLM.from_pretrained(output).state_dict())
    assert all(torch.equal(value, runs[1][name]) for name, value in runs[0].items())
