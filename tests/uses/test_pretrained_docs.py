"""docs/pretrained.md: its code and its commands run, and its table of bases is what the tests read.

`python -m pytest tests/uses/test_pretrained_docs.py --write-readme` writes the table.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest
from optional_packages import needs
from programs import run
from stand_in_base import TEXT, save_base
from tiny_bases import FIELDS, tiny_base

from transformers_xl import add_memory

PAGE = Path(__file__).parents[2] / "docs" / "pretrained.md"
TABLE = re.compile(r"(<!-- table of bases: .*? -->\n).*?(<!-- end of table -->)", flags=re.DOTALL)
MODELING = Path(__file__).parents[1] / "modeling"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page is read: with a small base in the place of the repository, and two texts."""
    monkeypatch.chdir(tmp_path)
    save_base(tmp_path / "HuggingFaceTB" / "SmolLM2-135M", max_position_embeddings=2048)
    (tmp_path / "my.txt").write_text(TEXT * 20)
    (tmp_path / "held-out.txt").write_text(TEXT)
    return tmp_path


def test_the_code_runs(folder: Path):
    namespace: dict = {}
    assert len(blocks("python")) == 2
    for block in blocks("python"):
        exec(compile(block, PAGE.name, "exec"), namespace)
    assert (folder / "plain" / "model.safetensors").is_file()


def test_the_commands_run(folder: Path):
    needs("peft")
    commands = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) == 9
    for program, *words in commands:
        assert program == "transformers-xl"
        result = run(*words)
        assert result.exit_code == 0, (words, result.output, result.exception)
    assert (folder / "adapters" / "adapter_model.safetensors").is_file()


def families(test_file: str) -> list[str]:
    """The bases that a file of tests reads."""
    sys.path.insert(0, str(MODELING))
    try:
        return __import__(test_file).FAMILIES
    finally:
        sys.path.remove(str(MODELING))


def cell(family: str, kind: str, tested: list[str]) -> str:
    """What is known of a base: it is tested, it is refused, or neither."""
    if family in tested:
        return "tested"
    try:
        add_memory(tiny_base(family), kind, **({"segment_length": 8} if kind == "tokens" else {"mem_len": 8}))
    except ValueError as error:
        return "refused: " + str(error).partition(", ")[2].rstrip(".")
    return "not tested"


def table_of_bases() -> str:
    tested = {"window": families("test_memory_window"), "tokens": families("test_memory_tokens")}
    lines = ["| base | `window` | `tokens` |", "|---|---|---|"]
    for family in FIELDS:
        cells = " | ".join(cell(family, kind, tested[kind]) for kind in tested)
        lines.append(f"| `{family}` | {cells} |")
    return "\n".join(lines) + "\n"


def test_the_table_is_that_of_the_tests(request: pytest.FixtureRequest):
    text = PAGE.read_text(encoding="utf-8")
    expected = TABLE.sub(lambda match: match[1] + table_of_bases() + match[2], text)
    if request.config.getoption("--write-readme"):
        PAGE.write_text(expected, encoding="utf-8")
    else:
        assert text == expected, "run `python -m pytest tests/uses/test_pretrained_docs.py --write-readme`"
