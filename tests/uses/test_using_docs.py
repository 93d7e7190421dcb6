"""The page on using a model: its code runs, but for what needs a folder or a server, which the other tests here have."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs/using.md").read_text(encoding="utf-8")


def test_the_code_runs():
    namespace: dict = {}
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "using.md", "exec"), namespace)
    assert namespace["logits"].shape == (1, 259)
