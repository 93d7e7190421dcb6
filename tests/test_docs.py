"""The pages of docs/ that no other test reads: their code runs, figures are current, and a page that is named is there."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
import torch
from optional_packages import needs

from transformers_xl import ByteTokenizer, StreamingTransformerConfig, StreamingTransformerForCausalLM
from transformers_xl.training.arguments import MemoryTrainingArguments

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def blocks(page: str) -> list[str]:
    """The Python of a page, but for blocks that begin with `python notest`."""
    return re.findall(
        r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


CONCEPTS = [name for path in sorted((DOCS / "concepts").glob("*.md")) if blocks(name := f"concepts/{path.name}")]
PAGES = [
    "evaluation_atlas.md",
    "generate.md",
    "performance.md",
    "probe.md",
    "serve.md",
    "training.md",
    "training_papers.md",
    "translation.md",
    "words.md",
    *CONCEPTS,
]
# by tests that have what these pages need
ELSEWHERE = {
    "agents.md": "tests/examples/test_agents.py",
    "arguments.md": "tests/uses/test_using_docs.py",
    "migrating.md": "tests/conversion/test_convert.py",
    "peft_trl.md": "tests/uses/test_peft_trl_docs.py",
    "pretrained.md": "tests/uses/test_pretrained_docs.py",
    "training_streams.md": "tests/data/test_training_docs.py",
    "using.md": "tests/uses/test_using_docs.py",
}


def given(folder: Path) -> dict:
    """What pages take for granted: names, a text, and the quickstart's model in its place, in small."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(text, encoding="utf-8")
    tokenizer = ByteTokenizer()
    torch.manual_seed(0)
    config = StreamingTransformerConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mem_len=32
    )
    model = StreamingTransformerForCausalLM(config).eval()
    model.save_pretrained(folder / "build/quickstart/model")
    tokenizer.save_pretrained(folder / "build/quickstart/model")
    ids = torch.tensor(tokenizer.encode_bytes(text.encode())[:2100])
    return {"MemoryTrainingArguments": MemoryTrainingArguments, "tokenizer": tokenizer, "ids": ids, "model": model}


@pytest.mark.parametrize("page", PAGES)
def test_the_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A training takes two steps."""
    monkeypatch.chdir(tmp_path)
    namespace = {} if page in CONCEPTS else given(tmp_path)
    for block in blocks(page):
        if "from llguidance" in block:
            needs("llguidance")
        small = block.replace("max_steps=1000, bf16=True", "max_steps=2, report_to='none'")
        exec(compile(small, page, "exec"), namespace)


def test_code_is_on_no_page_that_no_test_reads():
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert {page for page in pages if blocks(page)} == {*PAGES, *ELSEWHERE}
    assert all(Path(page).name in (ROOT / test).read_text(encoding="utf-8") for page, test in ELSEWHERE.items())


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


def test_a_path_that_is_named_is_there():
    """Of a program, or below one of the folders of the root; not those of other projects, nor with a name to fill in."""
    roots = "benchmarks|configuration|examples|modeling|tests|tokenization|transformers_xl"
    path = re.compile(rf"`((?:{roots})/[\w./*-]+|[\w./-]+/[\w-]+\.py)`")
    others = {"data_generators/lm1b.py"}  # of tensor2tensor
    start = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]  # the changelog names what there was
    pages = [*start, *DOCS.rglob("*.md"), *(ROOT / "model_cards").glob("*.md")]
    named = {(page.name, found) for page in pages for found in path.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 100
    lost = {
        (page, name) for page, name in named if not [*ROOT.glob(name)] and name not in others and "_x.py" not in name
    }
    assert not lost
