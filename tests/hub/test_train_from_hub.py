"""`transformers-xl train` from a model on the Hub to what is pushed there again: the whole model, and adapters."""

import json
from pathlib import Path

import pytest
import torch
from optional_packages import needs
from programs import run
from transformers import AutoModelForCausalLM, AutoTokenizer

from transformers_xl import ByteTokenizer, TransformerXLConfig, TransformerXLForCausalLM

BASE = "owner/base"
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 12
WORDS = ("--data.batch_size", 2, "--training.max_steps", 4, "--training.warmup_steps", 0)


@pytest.fixture
def text_file(hub, tmp_path: Path) -> Path:
    """A text, and a model on the server."""
    config = TransformerXLConfig(
        vocab_size=259, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, mem_len=8,
        segment_length=8,
    )  # fmt: skip
    TransformerXLForCausalLM(config).push_to_hub(BASE)
    ByteTokenizer().push_to_hub(BASE)
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def done(*words: object) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.output


def test_fine_tuned_with_what_the_trainer_has_and_pushed(hub, text_file: Path, tmp_path: Path):
    """Mixed precision, checkpointed activations and accumulation, reported to TensorBoard; torch.compile:
    tests/training/test_trainer_arguments.py."""
    needs("tensorboardX")
    options = (
        "--training.bf16 true --training.use_cpu true "
        "--training.activation_checkpointing true --training.gradient_accumulation_steps 2 --training.logging_steps 1 "
        "--training.report_to tensorboard"
    )
    folder = tmp_path / "tuned"
    said = done("train", text_file, "-o", folder, "--model.base", BASE, *WORDS, *options.split())
    assert "%|" not in said  # no progress bars where nobody watches
    training = json.loads((folder / "training_metrics.json").read_text())["training"]
    assert (training["dtype"], training["gradient_accumulation_steps"], training["steps"]) == ("bf16", 2, 4)
    assert training["tokens"] == 4 * 2 * 2 * 8
    (events,) = (folder / "runs").rglob("events.out.tfevents.*")
    assert b"train/loss" in events.read_bytes()

    assert "left out" in done("push", folder, "owner/tuned")
    assert f"base_model: {BASE}" in hub.files("owner/tuned")["README.md"].decode()
    assert not [name for name in hub.files("owner/tuned") if "runs/" in name]
    tuned, base = (AutoModelForCausalLM.from_pretrained(name) for name in ("owner/tuned", BASE))
    assert not torch.equal(tuned.lm_head.weight, base.lm_head.weight)


def test_adapters_are_pushed_with_a_card_and_loaded_by_peft(hub, text_file: Path, tmp_path: Path):
    peft = needs("peft")
    folder = tmp_path / "adapters"
    words = ("--model.base", BASE, "--lora.r", 2, *WORDS, "--training.learning_rate", 0.1)
    done("train", text_file, "-o", folder, *words)
    card = (folder / "README.md").read_text()
    assert f"base_model: {BASE}" in card
    for said in ("base_model_relation: adapter", "library_name: peft", "AutoPeftModelForCausalLM", "bits_per_byte"):
        assert said in card, said
    assert str(tmp_path) not in card
    done("push", folder, "owner/adapters")
    files = hub.files("owner/adapters")
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md", "tokenizer_config.json"} <= files.keys()
    assert not {"model.safetensors", "run.yaml"} & files.keys()

    model = peft.AutoPeftModelForCausalLM.from_pretrained("owner/adapters").eval()
    tokenizer = AutoTokenizer.from_pretrained("owner/adapters")
    plain = AutoModelForCausalLM.from_pretrained(BASE).eval()
    inputs = tokenizer(TEXT[:60], return_tensors="pt")
    assert not torch.allclose(model(**inputs).logits, plain(**inputs).logits, atol=1e-3)
    scores = json.loads(run("evaluate", folder, "--text", text_file, "--json").stdout)
    assert scores["with_memory"]["bits_per_byte"] > 0
    shown = json.loads(run("card", folder, "--json").output)
    assert (shown["metadata"]["base_model"], shown["written"]) == (BASE, [])
    assert "# adapters" in shown["text"]
    # the figures are of these adapters, and are recorded beside the others
    done("evaluate", folder, "--text", text_file, "--record")
    assert "text.txt" in (folder / "README.md").read_text()


def test_adapters_for_a_folder_stay_here(hub, text_file: Path, tmp_path: Path):
    needs("peft")
    AutoModelForCausalLM.from_pretrained(BASE).save_pretrained(tmp_path / "base")
    ByteTokenizer().save_pretrained(tmp_path / "base")
    done("train", text_file, "-o", tmp_path / "adapters", "--model.base", tmp_path / "base", "--lora.r", 2, *WORDS)
    assert str(tmp_path) not in (tmp_path / "adapters/README.md").read_text()
    refused = run("push", tmp_path / "adapters", "owner/adapters")
    assert refused.exit_code == 2
    assert "`base_model_name_or_path`" in refused.output
    assert "owner/adapters" not in hub.repos
