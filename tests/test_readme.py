"""The README: its code runs, and its table of variants is that of `modeling/auto.py`."""

import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import CommitOperationAdd, ModelCard, RepoUrl

from transformers_xl import ByteTokenizer, StreamingTransformerConfig, StreamingTransformerForCausalLM
from transformers_xl.modeling.auto import VARIANTS, Variant

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TABLE = re.compile(r"(<!-- table of variants: .*? -->\n).*?(<!-- end of table -->)", flags=re.DOTALL)


def table_of_variants() -> str:
    lines = ["| model | `model_type` | paper | idea | encoder |", "|---|---|---|---|---|"]
    for model_type, row in VARIANTS.items():
        prefix = row.model_class.__name__.removesuffix("Model")
        paper = f"[{row.authors} {row.year}]({row.url})" if row.paper else f"none: [card](model_cards/{model_type}.md)"
        has_encoder = isinstance(row.encoder, Variant)
        encoder = f"`{prefix}Encoder`" if has_encoder else "" if row.causal else "it is one"
        lines.append(f"| `{prefix}` | `{model_type}` | {paper} | {row.idea} | {encoder} |")
    return "\n".join(lines) + "\n"


def test_the_table_is_that_of_the_code(request: pytest.FixtureRequest):
    text = README.read_text(encoding="utf-8")
    expected = TABLE.sub(lambda match: match[1] + table_of_variants() + match[2], text)
    if request.config.getoption("--write-readme"):
        README.write_text(expected, encoding="utf-8")
    else:
        assert text == expected, "run `python -m pytest tests/test_readme.py --write-readme`"


def test_the_readme_is_read_to_its_end():
    """At most 900 words outside of code and tables; a link counts by its text."""
    text = README.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    assert len(text.split()) <= 900


class StandInForTheHub:
    """A new repository. Takes the last step of a push, the commit, and remembers the names of the files in it."""

    def __init__(self):
        self.files: list[str] = []

    def create_repo(self, repo_id: str, **kwargs) -> RepoUrl:
        return RepoUrl(f"https://huggingface.co/{repo_id}")

    def list_repo_files(self, repo_id: str, **kwargs) -> list[str]:
        return []

    def create_commit(self, operations: list[CommitOperationAdd], **kwargs) -> None:
        self.files += [operation.path_in_repo for operation in operations]


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All blocks in one process, one after the other, with a model where the quickstart leaves its own."""
    tokenizer = ByteTokenizer()
    config = StreamingTransformerConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mem_len=32
    )
    torch.manual_seed(0)
    StreamingTransformerForCausalLM(config).save_pretrained(tmp_path / "build/quickstart/model")
    tokenizer.save_pretrained(tmp_path / "build/quickstart/model")
    text = README.read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4  # memory, generate, fine-tune, push
    hub = StandInForTheHub()
    monkeypatch.setattr("transformers.utils.hub.hf_api", lambda: hub)
    monkeypatch.setattr("transformers_xl.hub.uploading.HfApi", lambda **kwargs: hub)
    monkeypatch.setattr("transformers.utils.hub.create_and_tag_model_card", lambda *args, **kwargs: ModelCard(""))
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert namespace["second"].mems.layers[0].columns[0].shape == (1, 4, 31, 8)
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= set(hub.files)
    assert not [name for name in hub.files if name.endswith((".bin", ".pkl", ".pt"))]


@pytest.mark.parametrize("model_type", VARIANTS)
def test_every_variant_has_a_card_whose_code_runs(model_type: str):
    text = (ROOT / "model_cards" / f"{model_type}.md").read_text(encoding="utf-8")
    assert VARIANTS[model_type].url in text
    for heading in (
        "**Paper.**",
        "**Idea.**",
        "**Differs from the original.**",
        "**How it was checked.**",
        "**Use.**",
    ):
        assert heading in text
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        exec(compile(block, f"{model_type}.md", "exec"), {})
