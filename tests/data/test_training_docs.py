"""The page on training: its code runs."""

import re
from pathlib import Path

import pytest
from optional_packages import needs

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore:.*left out")
def test_the_code_on_streams_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    needs("datasets")
    text = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("training*.md")))
    section = re.search(r"^## Streams\n.*?(?=^## )", text, flags=re.DOTALL | re.MULTILINE)[0]
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE):
        exec(compile(block, "training_streams.md", "exec"), namespace)
    assert namespace["position"]["step"] == 10
    assert len(list(namespace["train"])) > 0
