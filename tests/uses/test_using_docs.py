"""Pages on using a model: their code runs, but for what needs a folder or a server, which the other tests here have."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "number"), [("using.md", 3), ("arguments.md", 1)])
def test_the_code_runs(page: str, number: int):
    namespace: dict = {}
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == number
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)
