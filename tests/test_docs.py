"""The pages of docs/ that no other test reads: their code runs, figures are current, and a page that is named is there."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
import torch

from transformers_xl import ByteTokenizer, TransformerXLConfig, TransformerXLForCausalLM

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = ["generate.md", "words.md", *sorted(f"concepts/{path.name}" for path in (DOCS / "concepts").glob("*.md"))]


def save_model(folder: Path) -> None:
    """Where the pages expect the quickstart's model."""
    tokenizer = ByteTokenizer()
    torch.manual_seed(0)
    config = TransformerXLConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mem_len=32
    )
    TransformerXLForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = (DOCS / page).read_text(encoding="utf-8")
    if "build/quickstart/model" in text:
        save_model(tmp_path / "build/quickstart/model")
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        exec(compile(block, page, "exec"), namespace)


def test_the_figures_are_what_the_script_draws():
    path = DOCS / "figures" / "concepts.py"
    spec = importlib.util.spec_from_file_location("concepts", path)
    concepts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(concepts)
    for draw in concepts.FIGURES:
        written = (concepts.FOLDER / f"{draw.__name__}.svg").read_text(encoding="utf-8")
        assert written == concepts.svg(draw), f"run `python {path.relative_to(ROOT)}`"


def test_a_page_that_is_named_is_there():
    """In messages, docstrings and cards: links between pages are checked by `make docs`."""
    command = ["git", "grep", "-ohE", r"docs/[a-z_/]+\.md", "--", "*.py", "*.md", "*.toml", "*.yaml", "Makefile"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    named = set(found.stdout.split())
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
