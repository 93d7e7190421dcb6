"""examples/train_with_accelerate.py fine-tunes a model that is loaded, and pushes what it has trained."""

import importlib.util
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from transformers import AutoModelForCausalLM

from transformers_xl import TransformerXLConfig, TransformerXLForCausalLM, WordTokenizer

SCRIPT = Path(__file__).parents[2] / "examples/train_with_accelerate.py"
TEXT = "it was the best of times , it was the worst of times\n" * 30


@pytest.fixture(autouse=True)
def _fresh_accelerate(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for when in ("before", "after"):
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        if when == "before":
            yield


def test_a_loaded_model_is_fine_tuned_and_pushed(hub, tmp_path: Path, capsys):
    spec = importlib.util.spec_from_file_location("train_with_accelerate", SCRIPT)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    (tmp_path / "text.txt").write_text(TEXT)
    words = WordTokenizer.train_from_files([tmp_path / "text.txt"], progress=False)
    config = TransformerXLConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, mem_len=5
    )  # fmt: skip
    for part in (TransformerXLForCausalLM(config), words):
        part.save_pretrained(tmp_path / "base", include_code=False)
    options = {"lanes": 2, "segment_length": 4, "steps": 2, "base": str(tmp_path / "base")}
    example.train(tmp_path / "text.txt", tmp_path / "out", push_to="owner/tuned", **options)
    assert "pushed to" in capsys.readouterr().out
    assert {"model.safetensors", "config.json", "modeling_transformer_xl.py"} <= hub.files("owner/tuned").keys()
    tuned, before = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("out/model", "base"))
    assert tuned.config.mem_len == 5
    weights = zip(tuned.parameters(), before.parameters(), strict=True)
    assert any(not torch.equal(ours, theirs) for ours, theirs in weights)
