"""The commands switch on what pays on this processor; models by themselves do not."""

import platform
from pathlib import Path

import pytest
import torch
from programs import run

from transformers_xl import TransformerXLForCausalLM
from transformers_xl.cli import main
from transformers_xl.runs import onednn_linear
from transformers_xl.runs.loading import load_anywhere

HAS_ONEDNN = platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()
SMALL = (
    "--model.hidden_size 16 --model.num_hidden_layers 1 --model.num_attention_heads 2 --model.mem_len 8 "
    "--model.segment_length 8 --data.batch_size 2 --training.max_steps 2"
)


@pytest.fixture(params=[True, False], ids=["Zen 5", "another"])
def products(request, monkeypatch) -> tuple[bool, list]:
    """Whether this processor claims to gain by oneDNN, and the products that oneDNN has made, of whatever size."""
    made, product = [], onednn_linear._onednn_linear
    monkeypatch.setattr(onednn_linear, "gains_by_onednn", lambda: request.param)
    monkeypatch.setattr(onednn_linear, "LARGE_WEIGHT", 1)
    monkeypatch.setattr(onednn_linear, "_onednn_linear", lambda *given: made.append(given) or product(*given))
    return request.param, made


@pytest.mark.skipif(not HAS_ONEDNN, reason="products stay torch's own on this processor")
def test_products_by_onednn(products, monkeypatch, folders: dict[str, Path], text_file: Path, tmp_path: Path):
    amd, made = products
    model = folders["bytes"]
    for words in (
        ["train", text_file, "-o", tmp_path / "trained", *SMALL.split()],
        ["evaluate", model, "--text", text_file],
        ["generate", model, "--prompt", "It", "--max-new-tokens", 3],
    ):
        made.clear()
        result = run(*words)
        assert result.exit_code == 0, result.output
        assert bool(made) == amd, words[0]
    made.clear()
    load_anywhere(str(model), "auto", "auto")[0](torch.zeros(1, 3, dtype=torch.long))
    assert bool(made) == amd, "serve"
    made.clear()
    TransformerXLForCausalLM.from_pretrained(model)(torch.zeros(1, 3, dtype=torch.long))
    assert not made


def test_freed_memory_is_kept(monkeypatch, folders: dict[str, Path]):
    kept = []
    monkeypatch.setattr(main, "keep_freed_memory", lambda: kept.append(True))
    assert run("generate", folders["bytes"], "--prompt", "It", "--max-new-tokens", 3).exit_code == 0
    assert kept == [True]
