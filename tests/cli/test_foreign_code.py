"""A folder may bring code: no command runs it, and none asks, whatever stands on standard input."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import run

CODE = """
from pathlib import Path
Path({marker!r}).touch()
from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

class Config(LlamaConfig):
    model_type = "mine"

class Model(LlamaForCausalLM):
    config_class = Config

class Tokenizer(ByT5Tokenizer):
    pass

def generate(model, *args, **kwargs):
    return None
"""
MAP = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model", "AutoModel": "mine.Model"}
TOKENIZER = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Tokenizer", "mine.Tokenizer"]}}
# every command that reads a model, a tokenizer or a config; {0} is its folder, {1} a text, {2} a folder to write to
COMMANDS = {
    "evaluate": "evaluate {0} --text {1}",
    "generate": "generate {0} -p It --max-new-tokens 1",
    "chat": "chat {0} --max-new-tokens 1",
    "recl": "recl {0} --text {1}",
    "context-curve": "context-curve {0} --text {1}",
    "distant-context": "distant-context {0} --text {1}",
    "speed": "speed {0} --text {1}",
    "probe": "probe {0} --task registers",
    "report": "report {0} --text {1} -o {2}/report.html",
    "serve": "serve {0}",
    "card": "card {0}",
    "push": "push {0} you/model",
    "convert": "convert {0} {2}/out",
    "add-memory": "add-memory {0} -o {2}/out",
    "train": "train {1} -o {2}/out --model.base {0} --memory.kind window",
    "train, tokenizer": "train {1} -o {2}/out --tokenizer.path {0} --training.max_steps 1",
    "config": "config --model.base {0} --memory.kind window",
}
READ_NO_CONFIG = {"train, tokenizer", "push"}
READ_NO_TOKENIZER = {"card", "push", "config", "convert", "probe"}


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `serve` should have refused must not be served."""
    monkeypatch.setattr(
        "transformers_xl.serve.server_process.run_server", lambda *_: pytest.fail("the server was started")
    )


@pytest.fixture
def coded(folders: dict[str, Path], tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """A copy of a folder of a kind with code, and the file that the code would make."""

    def copy(kind: str) -> tuple[Path, Path]:
        source = folders["window"].parent / kind if kind == "base" else folders[kind]
        folder, marker = shutil.copytree(source, tmp_path / "model"), tmp_path / "it_was_run"
        code = CODE.format(marker=str(marker))
        (folder / "mine.py").write_text(code)
        (folder / "custom_generate").mkdir()
        (folder / "custom_generate" / "generate.py").write_text(code)
        return folder, marker

    return copy


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def words(command: str, folder: Path, text: Path, tmp_path: Path) -> list[str]:
    return COMMANDS[command].format(folder, text, tmp_path).split(" ")


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - READ_NO_CONFIG))
def test_a_config_with_code(command: str, coded: Callable, text_file: Path, tmp_path: Path):
    folder, marker = coded("bytes")
    change(folder / "config.json", model_type="mine", auto_map=MAP, trust_remote_code=True)
    result = run(*words(command, folder, text_file, tmp_path), typed="y\n" * 9)
    assert not marker.exists()
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert "[y/N]" not in result.output
    assert result.stderr.count("Error: ") == 1


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - READ_NO_TOKENIZER))
def test_a_tokenizer_with_code(
    command: str, coded: Callable, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Ours is taken where the type of the model has one, or else the command ends."""
    monkeypatch.setattr("transformers_xl.serve.server_process.run_server", lambda service, _: service.close())
    folder, marker = coded("bytes" if command != "add-memory" else "base")
    change(folder / "tokenizer_config.json", **TOKENIZER)
    result = run(*words(command, folder, text_file, tmp_path), typed="y\n" * 2)
    assert not marker.exists()
    assert result.exit_code in (0, 2), result.output
    assert "[y/N]" not in result.output


def test_a_tokenizer_alone_with_code(coded: Callable, text_file: Path, tmp_path: Path):
    folder, marker = coded("bytes")
    change(folder / "tokenizer_config.json", **TOKENIZER)
    (folder / "config.json").unlink()
    for allowed in (False, True):
        options = ["--trust-remote-code"] * allowed
        result = run(*words("train, tokenizer", folder, text_file, tmp_path), *options, typed="y\n" * 9)
        assert marker.exists() == allowed
        assert "[y/N]" not in result.output
        if not allowed:
            assert result.exit_code == 2
            assert "comes with custom code" in result.stderr
            assert "--trust-remote-code" in result.stderr


@pytest.mark.parametrize("kind", ["bytes", "window"])
def test_code_of_a_known_type_is_not_run(kind: str, coded: Callable, text_file: Path, tmp_path: Path):
    """Where there is code for the type, that of the folder is not asked for: the command does what it does."""
    folder, marker = coded(kind)
    change(folder / "config.json", auto_map=MAP)
    change(folder / "tokenizer_config.json", auto_map=TOKENIZER["auto_map"])
    if kind == "window":
        config = json.loads((folder / "config.json").read_text())
        change(folder / "config.json", text_config=config["text_config"] | {"auto_map": MAP})
    for command in ("generate", "evaluate", "card"):
        result = run(*words(command, folder, text_file, tmp_path), typed="y\n" * 9)
        assert result.exit_code == 0, result.output
        assert not marker.exists()


def test_kernels_of_a_repository_are_not_run(coded: Callable, text_file: Path, tmp_path: Path):
    folder, _ = coded("window")
    change(folder / "config.json", attn_implementation="somebody/kernels")
    result = run(*words("generate", folder, text_file, tmp_path))
    assert result.exit_code == 2
    assert "`attn_implementation`='somebody/kernels' is code of a repository" in result.stderr
