"""`transformers-xl train-probe` and `probe`, run as a user runs them."""

import json
from pathlib import Path

import pytest
from programs import run

TRAINING = ("--steps", 2, "--mem-len", 16, "--segment-length", 8, "--max-distance", 32)
PROBE = ("--max-distance", 32, "--lanes", 2, "--tokens", 200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("probe")
    for model_type in ("transformer_xl", "mistral"):
        result = run("train-probe", "needle", model_type, "-o", root / model_type, *TRAINING)
        assert result.exit_code == 0, result.output
        assert "parameters" in result.stdout
    return root


def test_models_are_asked_as_they_were_trained_and_with_a_longer_memory(folder: Path, tmp_path: Path):
    models = (folder / "transformer_xl", folder / "mistral")
    result = run("probe", *models, *PROBE, "--length", 24, "--json", "--picture", tmp_path / "probe.png")
    assert result.exit_code == 1 or result.exit_code == 2, "24 + 8 tokens are more than Mistral's 16 + 8 positions"
    assert "`length`=24" in result.stderr
    result = run("probe", *models, *PROBE, "--length", 0)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "`length`=0 is no length of a memory, which " in result.stderr
    result = run("probe", *models, *PROBE, "--length", 12, "--json", "--picture", tmp_path / "probe.png")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["task"], found["chance"]) == ("needle", 1 / 8)
    rows = found["models"]
    assert list(rows) == ["transformer_xl", "transformer_xl, length 12", "mistral", "mistral, length 12"]
    assert [row["reach"]["direct"] for row in rows.values()] == [15, 11, 15, 15]
    assert [row["options"]["segment_length"] for row in rows.values()] == [8] * 4
    assert rows["transformer_xl"]["bins"][-1][1] == 32
    assert (tmp_path / "probe.png").read_bytes().startswith(b"\x89PNG")
    table = run("probe", *models, *PROBE, "--markdown")
    assert table.exit_code == 0, table.output
    assert "| half |" in table.stdout


def test_what_cannot_be_asked_is_said(folder: Path, tmp_path: Path):
    other = run("probe", folder / "transformer_xl", "--task", "registers", *PROBE)
    assert other.exit_code == 2
    assert "a vocabulary of 89 tokens, registers one of 96" in other.stderr
    again = run("train-probe", "needle", "gpt2", "-o", folder / "mistral", *TRAINING)
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr
    unknown = run("train-probe", "recall", "gpt2", "-o", tmp_path / "new", *TRAINING)
    assert unknown.exit_code == 2
    assert "`task`='recall'" in unknown.stderr
    assert not (tmp_path / "new").exists()
