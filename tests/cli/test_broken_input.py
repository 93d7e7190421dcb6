"""What a file or an argument causes: one sentence with its name, exit status 2, and no traceback."""

import gzip
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from click.testing import Result
from programs import run
from safetensors.torch import load_file, save_file

from transformers_xl.cli.errors import GRACE, caused_by_input

ROOT = Path(__file__).parents[2]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
DEEP = "[" * 100_000
# every command that takes a folder of a model, with the arguments that it needs
COMMANDS: dict[str, Callable[[Path, Path], tuple]] = {
    "evaluate": lambda folder, text: ("evaluate", folder, "--text", text),
    "generate": lambda folder, text: ("generate", folder, "--prompt", "It was", "--max-new-tokens", 2),
    "chat": lambda folder, text: ("chat", folder, "--max-new-tokens", 2),
    "recl": lambda folder, text: (
        *("recl", folder, "--text", text, "--c0", 2, "--delta", 2, "--max-context", 6),
        *("--blocks", 2, "--positions", 3, "--resamples", 5),
    ),
    "context-curve": lambda folder, text: ("context-curve", folder, "--text", text, "--length", 4),
    "speed": lambda folder, text: ("speed", folder, "--text", text, "--length", 8, "--repeats", 1),
    "report": lambda folder, text: ("report", folder, "--text", text, "--out", folder.parent / "report.html"),
    "serve": lambda folder, text: ("serve", folder),
}


def assert_one_sentence(result: Result, name: str) -> None:
    """One line on stderr, short enough to be read, that names the culprit."""
    assert result.exit_code == 2, (result.output, result.exception)
    assert "Traceback" not in result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert name in line
    assert len(line) < 700
    assert result.stderr.endswith(f"{line}\n")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def rewrite(path: Path, change: Callable[[dict], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def change_fields(path: Path, **fields) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def retype(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    tensors[Q_PROJ] = tensors[Q_PROJ].to(dtype)


def index(path: Path, shard: object, moves: bool = True) -> None:
    """Name `shard` as the place of all weights, and `moves` them there, where that can be done."""
    weights = path.parent / "model.safetensors"
    names = list(load_file(weights))
    if moves and not str(shard).startswith("/"):
        (path.parent / str(shard)).parent.mkdir(exist_ok=True)
        weights.rename(path.parent / str(shard))
    path.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, shard)}))


Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
# what breaks a file: its name, and how; the sentence names this file, or config.json, which asks for other weights
BROKEN: dict[str, tuple[str, Callable[[Path], object]]] = {
    "half of the weights": ("model.safetensors", cut),
    "a pointer of git-lfs": ("model.safetensors", lambda path: path.write_text(POINTER)),
    "empty weights": ("model.safetensors", lambda path: path.write_bytes(b"")),
    "no weights": ("model.safetensors", Path.unlink),
    "weights that are a folder": ("model.safetensors", to_folder),
    "a weight of another shape": (
        "model.safetensors",
        lambda path: rewrite(path, lambda tensors: tensors.update({Q_PROJ: torch.zeros(3, 16)})),
    ),
    "a weight that is missing": (
        "model.safetensors",
        lambda path: rewrite(path, lambda tensors: tensors.pop(Q_PROJ)),
    ),
    "a weight of NaN": (
        "model.safetensors",
        lambda path: rewrite(path, lambda tensors: tensors[Q_PROJ][0].fill_(torch.nan)),
    ),
    **{
        f"weights of {dtype}": (
            "model.safetensors",
            lambda path, dtype=dtype: rewrite(path, lambda each: retype(each, dtype)),
        )
        for dtype in (torch.int8, torch.int64, torch.bool, torch.complex64)
    },
    "a shard outside of the folder": (
        "model.safetensors.index.json",
        lambda path: index(path, "../model.safetensors"),
    ),
    "a shard of an absolute path": ("model.safetensors.index.json", lambda path: index(path, "/model.safetensors")),
    "a shard in a folder": ("model.safetensors.index.json", lambda path: index(path, "deep/model.safetensors")),
    "a shard that is missing": (
        "model.safetensors.index.json",
        lambda path: index(path, "model-2.safetensors", False),
    ),
    "a shard that is a number": ("model.safetensors.index.json", lambda path: index(path, 5, False)),
    "a map of shards that is a list": (
        "model.safetensors.index.json",
        lambda path: path.write_text('{"weight_map": []}'),
    ),
    "no config": ("config.json", Path.unlink),
    "a config that is a folder": ("config.json", to_folder),
    "half of the config": ("config.json", cut),
    "a config that is a list": ("config.json", lambda path: path.write_text("[]")),
    "a config that is no UTF-8": ("config.json", lambda path: path.write_bytes(b'{"model_type": "\xff"}')),
    "a config without end": ("config.json", lambda path: path.write_text(DEEP)),
    "a number that is text": ("config.json", lambda path: change_fields(path, hidden_size="16")),
    "a number that is a list": ("config.json", lambda path: change_fields(path, num_attention_heads=[2])),
    "text that is a number": ("config.json", lambda path: change_fields(path, hidden_act=1)),
    "a negative size": ("config.json", lambda path: change_fields(path, hidden_size=-16)),
    "an unknown activation": ("config.json", lambda path: change_fields(path, hidden_act="rleu")),
    "an unknown dtype": ("config.json", lambda path: change_fields(path, dtype="float33")),
    "an unknown model": ("config.json", lambda path: change_fields(path, model_type="transformer_xxl")),
    "another width": ("config.json", lambda path: change_fields(path, hidden_size=32)),
    "another depth": ("config.json", lambda path: change_fields(path, num_hidden_layers=3)),
    "an absurd width": ("config.json", lambda path: change_fields(path, hidden_size=10**9)),
    "an absurd vocabulary": ("config.json", lambda path: change_fields(path, vocab_size=10**15)),
    "a size beyond 64 bits": ("config.json", lambda path: change_fields(path, intermediate_size=10**30)),
    "absurdly many layers": ("config.json", lambda path: change_fields(path, num_hidden_layers=10**9)),
    "a generation config that is a list": ("generation_config.json", lambda path: path.write_text("[]")),
    "settings of a wrong type": ("generation_config.json", lambda path: change_fields(path, max_new_tokens="many")),
    "a tokenizer config that is a list": ("tokenizer_config.json", lambda path: path.write_text("[]")),
    "half of the tokenizer": ("tokenizer.json", cut),
    "a tokenizer that is empty": ("tokenizer.json", lambda path: path.write_text("{}")),
    "a tokenizer that is a list": ("tokenizer.json", lambda path: path.write_text("[]")),
    "a special token that is a number": ("tokenizer_config.json", lambda path: change_fields(path, eos_token=5)),
}
ASKED_FOR = ("a weight that is missing",)
# of each file, and of each way to read weights: all commands load them by the same function
ONE_OF_EACH = (
    "half of the weights", "a weight that is missing", "a weight of NaN", "a config that is a list", "an absurd width",
    "settings of a wrong type", "a tokenizer that is empty",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `serve` should have refused must not be served."""
    monkeypatch.setattr(
        "transformers_xl.serve.server_process.run_server", lambda *_: pytest.fail("the server was started")
    )


@pytest.fixture
def broken(folders: dict[str, Path], tmp_path: Path) -> Callable[[str], tuple[Path, str]]:
    def copy(case: str) -> tuple[Path, str]:
        folder = shutil.copytree(folders["bytes"], tmp_path / "model")
        name, damage = BROKEN[case]
        damage(folder / name)
        return folder, "config.json" if case in ASKED_FOR else name

    return copy


@pytest.mark.parametrize(
    ("case", "command"),
    [(case, "generate") for case in BROKEN]
    + [(case, command) for case in ONE_OF_EACH for command in COMMANDS if command != "generate"],
)
def test_broken_files(case: str, command: str, broken: Callable, text_file: Path):
    folder, name = broken(case)
    result = run(*COMMANDS[command](folder, text_file))
    assert_one_sentence(result, name)
    assert str(folder) in result.stderr


@pytest.mark.parametrize("name", ["config.json", "training_metrics.json", "README.md"])
@pytest.mark.parametrize("data", [b"[]", b'{"a', b"\xff", DEEP.encode(), b"---\nlicense: [1\n---\n"])
def test_a_card_of_broken_files(name: str, data: bytes, folders: dict, tmp_path: Path):
    folder = shutil.copytree(folders["bytes"], tmp_path / "model")
    (folder / name).write_bytes(data)
    result = run("card", folder, "--write")
    if name == "README.md" and data in (b"[]", b'{"a', DEEP.encode()):  # text that somebody wrote
        assert_one_sentence(result, "changed by hand")
    else:
        assert_one_sentence(result, str(folder / name))
    assert (folder / name).read_bytes() == data


@pytest.mark.parametrize(
    "case",
    ["half of the weights", "a config that is a list", "no config", "no weights", "a shard outside of the folder"],
)
def test_broken_files_are_not_pushed(case: str, broken: Callable):
    folder, name = broken(case)
    assert_one_sentence(run("push", folder, "you/model"), name)


@pytest.mark.parametrize("data", [b"[]", b'{"a', b"\xff", DEEP.encode(), b'{"model": 5}'])
def test_runs_of_a_comparison_that_are_none(data: bytes, tmp_path: Path):
    (tmp_path / "plan.json").write_text(json.dumps({"models": {"gtrxl": {}}, "seeds": 1, "reference": "gtrxl"}))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "gtrxl-0.json").write_bytes(data)
    assert_one_sentence(run("compare", "--from", tmp_path), "gtrxl-0.json")
    (tmp_path / "plan.json").write_bytes(data)
    assert_one_sentence(run("compare", "--from", tmp_path), "plan.json")


@pytest.mark.parametrize("command", ["evaluate", "recl", "context-curve", "speed", "report"])
@pytest.mark.parametrize(("data", "kind"), [(b"", "bytes"), (b"", "words"), (b"a \xff b" * 99, "words")])
def test_texts_that_are_none(data: bytes, kind: str, command: str, folders: dict, tmp_path: Path):
    text = tmp_path / "a-text.txt"
    text.write_bytes(data)
    folder = shutil.copytree(folders[kind], tmp_path / "model")
    assert_one_sentence(run(*COMMANDS[command](folder, text)), "a-text.txt")


@pytest.mark.parametrize("words", [["train"], ["tokenizer", "train"]])
def test_a_training_on_nothing(words: list[str], tmp_path: Path):
    (tmp_path / "empty.txt").write_bytes(b"")
    assert_one_sentence(run(*words, tmp_path / "empty.txt", "-o", tmp_path / "out"), "empty.txt")
    assert not (tmp_path / "out").exists()


def test_words_are_counted_in_what_is_unpacked(tmp_path: Path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"now then"))
    assert_one_sentence(
        run("tokenizer", "train", tmp_path / "a.txt.gz", "-o", tmp_path / "out"), "a.txt.gz' is compressed: unpack it"
    )


def test_absurd_arguments(text_file: Path, tmp_path: Path, folders: dict):
    for option, value in (
        ("--model.num_hidden_layers", 10**9),
        ("--model.hidden_size", 10**12),
        ("--model.intermediate_size", 10**13),
    ):
        result = run("train", text_file, "-o", tmp_path / "out", option, value, "--data.batch_size", 1)
        assert result.exit_code == 2, (option, result.output, result.exception)
        assert not (tmp_path / "out").exists()
    # no text fills such a segment
    assert run("evaluate", folders["bytes"], "--text", text_file, "--segment-length", 10**13).exit_code == 0


@pytest.mark.parametrize("size", [10**15, 2**62])
def test_memory_that_there_is_not_is_no_bug_of_ours(size: int):
    with pytest.raises(RuntimeError) as raised:
        torch.zeros(size)
    assert caused_by_input(raised.value)


def test_a_model_larger_than_the_memory(text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is refused before it is made: the system would end a process that fills its memory, without a word."""
    free = SimpleNamespace(available=2**20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    fields = {
        "model.hidden_size": 64, "model.num_hidden_layers": 1, "model.num_attention_heads": 2, "model.mem_len": 8,
        "model.segment_length": 8, "training.max_steps": 1, "data.batch_size": 2,
    }  # fmt: skip
    words = [word for name, value in fields.items() for word in (f"--{name}", value)]

    def train(name: str, *more) -> Result:
        return run("train", text_file, "-o", tmp_path / name, *words, *more)

    sentence = "A model of 431,363 parameters needs 0.0 GiB of memory, and 0.0 GiB are free: choose a smaller"
    assert_one_sentence(train("out"), sentence)
    assert not (tmp_path / "out").exists()
    free.available = 431_363 * 16
    done = train("out")
    assert done.exit_code == 0, done.output
    fine_tuned = ("--model.base", tmp_path / "out")
    for environment, enough, more in (
        ("1", 431_363 * 16 - 1, ()),
        ("2", 431_363 * 16, ()),
        ("1", 431_363 * 8 - 1, ("--training.optim", "sgd")),
        ("1", 431_363 * 16 - 1, fine_tuned),
    ):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", environment)
        free.available = enough
        assert_one_sentence(train("other", *more), sentence)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    free.available = 2**40
    assert_one_sentence(train("other", "--model.hidden_size", 2 * 10**6), "1,024.0 GiB are free")


@pytest.mark.parametrize("arguments", [("generate", "{}", "-p", "a\udcff"), ("chat", "{}", "--stop", "\udcff")])
def test_arguments_that_are_no_utf8(arguments: tuple[str, ...], folders: dict):
    result = run(*(argument.format(folders["bytes"]) for argument in arguments))
    assert result.exit_code == 2
    assert "udcff' is not UTF-8" in result.stderr


@pytest.mark.parametrize("encoding", ["strict", "surrogateescape"])
def test_lines_that_are_no_utf8(encoding: str, folders: dict, monkeypatch: pytest.MonkeyPatch):
    def line(_: str) -> str:
        return b"a\xff".decode("utf-8", encoding)

    monkeypatch.setattr("builtins.input", line)
    assert_one_sentence(run("chat", folders["bytes"]), "standard input is not UTF-8")


@pytest.mark.parametrize("command", ["evaluate", "recl", "context-curve", "report"])
def test_numbers_that_are_none(command: str, folders: dict, text_file: Path, tmp_path: Path):
    """Weights that are finite, and overflow where they are used."""
    folder = shutil.copytree(folders["bytes"], tmp_path / "model")
    rewrite(folder / "model.safetensors", lambda tensors: tensors["model.norm.weight"].fill_(3e38))
    result = run(*COMMANDS[command](folder, text_file))
    assert_one_sentence(result, "NaN")
    assert "nan" not in result.stdout


def test_debug_shows_the_trace(folders: dict):
    result = run("--debug", "generate", folders["bytes"], "--prompt", "")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: `prompt`=''")


@pytest.mark.parametrize("words", [("evaluate", "nowhere"), ("train", "--model.mem_len", "many")])
def test_only_the_main_process_of_a_launcher_speaks(words: tuple, text_file: Path, monkeypatch: pytest.MonkeyPatch):
    """The others wait for the end that the launcher makes of them, and speak when it does not come."""

    class EndedByLauncher(BaseException):
        """As SIGTERM: nothing catches it."""

    def ended(seconds: float) -> None:
        raise EndedByLauncher

    arguments = (*words, "--text", text_file) if words[0] == "evaluate" else (*words, text_file, "-o", "out")
    said = run(*arguments)
    assert said.exit_code == 2
    expected = said.stderr.replace("starting ...\n", "")
    monkeypatch.setenv("RANK", "1")
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    assert run(*arguments).stderr == expected != ""
    assert waits == [GRACE]
    monkeypatch.setattr(time, "sleep", ended)
    with pytest.raises(EndedByLauncher):
        run(*arguments)


def test_a_bug_of_ours_is_no_error_of_the_input(folders: dict, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("transformers_xl.cli.generate.streamer_of", lambda *_, **__: [][0])
    result = run("generate", folders["bytes"], "--prompt", "a")
    assert isinstance(result.exception, IndexError)
