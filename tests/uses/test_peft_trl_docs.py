"""The page on PEFT and TRL: its code runs."""

import re
from pathlib import Path

import pytest
from optional_packages import needs

TEXT = (Path(__file__).parents[2] / "docs/peft_trl.md").read_text(encoding="utf-8")


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("datasets", "peft", "trl"):
        needs(name)
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "peft_trl.md", "exec"), namespace)
    assert (tmp_path / "adapter/adapter_model.safetensors").stat().st_size < 50_000
    assert (tmp_path / "merged/model.safetensors").exists()
