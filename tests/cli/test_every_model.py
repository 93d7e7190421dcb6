"""Every command with every kind of model: it works, or refuses with one sentence that says why."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import transformers
import typer
from programs import run

from transformers_xl.cli.main import app
from transformers_xl.serve.text_request import TextRequest

KINDS = ("bytes", "words", "adaptive softmax", "encoder", "old folder", "window", "tokens")
NO_MODEL = (
    "train",
    "train-probe",
    "compare",
    "config",
    "prepare",
    "tokenizer",
)  # they make models, or texts to learn from
ARGUMENTS = {
    "evaluate": ("--text", "{text}", "--moving-window"),
    "generate": ("--prompt", "It was the", "--max-new-tokens", 4, "--temperature", 0),
    "add-memory": ("-o", "{out}"),
    "convert": ("{out}",),
    "recl": (
        *("--text", "{text}", "--c0", 4, "--delta", 4, "--max-context", 12),
        *("--blocks", 2, "--positions", 5, "--resamples", 5),
    ),
    "context-curve": ("--text", "{text}", "--length", 0, "--length", 16),
    "distant-context": ("--text", "{text}", "--context", 6, "--positions", 2, "--distance", 2),
    "probe": ("--task", "counter", "--tokens", 20, "--lanes", 2),
    "speed": ("--text", "{text}", "--length", 8, "--repeats", 1),
    "card": (),
    "push": ("you/model",),
    "report": ("--text", "{text}", "--out", "{out}", "--tokens", 30),
    "chat": ("--max-new-tokens", 4),
    "serve": (),
}
ENCODER = "is not a language model"
REFUSED = {
    **{
        (command, "encoder"): ENCODER
        for command in ARGUMENTS.keys() - {"add-memory", "convert", "card", "push", "report"}
    },
    **{("add-memory", kind): "has a memory already" for kind in KINDS},
    **{("convert", kind): "only 'transfo-xl' is converted" for kind in KINDS if kind != "old folder"},
    ("speed", "tokens"): "`num_memory_tokens`=2 vectors",
    ("context-curve", "tokens"): "`num_memory_tokens`=2 vectors",
    ("card", "old folder"): "transformers-xl convert",
    ("push", "old folder"): "no model.safetensors",
}


def started(service, _) -> None:
    """In the place of the server: it writes with what the server would write with."""
    scheduler = service.engine.make_scheduler()
    scheduler.add(TextRequest([1], max_new_tokens=2, stop_token_ids=()))
    written: list[int] = []
    while scheduler.num_running + scheduler.num_waiting:
        written += [each for progress in scheduler.step() for each in progress.token_ids]
    assert len(written) == 2
    service.close()


class Hub:
    """In the place of the client: tests/hub/test_push.py has a server."""

    def __init__(self, **_):
        pass

    def create_repo(self, repo_id: str, **_) -> SimpleNamespace:
        return SimpleNamespace(repo_id=repo_id)

    def list_repo_files(self, *_, **__) -> list[str]:
        return []

    def create_commit(self, *_, **__) -> SimpleNamespace:
        return SimpleNamespace(pr_url=None, commit_url="https://hub/you/model")


def test_all_commands_are_here():
    assert {*ARGUMENTS, *NO_MODEL} == set(typer.main.get_command(app).commands)


# words and their clusters differ in tokenizer and head alone: each command meets one of them
OF_WORDS = ("words", "adaptive softmax")
EACH = [
    (command, kind)
    for turn, command in enumerate(ARGUMENTS)
    for kind in KINDS
    if kind not in OF_WORDS or kind == OF_WORDS[turn % 2]
]


@pytest.mark.parametrize(("command", "kind"), EACH)
def test_it_works_or_says_why_not(
    command: str, kind: str, folders: dict, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("transformers_xl.serve.server_process.run_server", started)
    monkeypatch.setattr("transformers_xl.hub.uploading.HfApi", Hub)
    # pictures take most of a report's time: tests/cli/test_report.py has them
    monkeypatch.setattr("transformers_xl.evaluation.html_report.png_bytes", lambda picture: b"a picture")
    folder = shutil.copytree(folders[kind], tmp_path / "model")
    places = {"text": text_file, "out": tmp_path / "out"}
    result = run(command, folder, *(str(argument).format(**places) for argument in ARGUMENTS[command]))
    if (command, kind) not in REFUSED:
        assert result.exit_code == 0, (result.output, result.exception)
        return
    assert result.exit_code == 2, (result.output, result.exception)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert REFUSED[command, kind] in line
    assert len(line) < 500


@pytest.mark.parametrize("kind", ["words", "adaptive softmax"])
def test_words_are_joined_to_the_prompt(kind: str, folders: dict):
    result = run("generate", folders[kind], "--prompt", "It was the", "--max-new-tokens", 3, "--temperature", 0)
    assert result.exit_code == 0, result.output
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[kind])
    model = transformers.AutoModelForCausalLM.from_pretrained(folders[kind])
    ids = tokenizer("It was the", add_special_tokens=False, return_tensors="pt")
    written = model.generate(**ids, max_new_tokens=3, do_sample=False)[0]
    assert result.stdout == tokenizer.decode(written, skip_special_tokens=True) + "\n"
