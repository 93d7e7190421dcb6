"""A model of others with a memory around it, on the Hub: what its card says, and that it loads without this package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from programs import run
from stand_in_base import TEXT, save_base
from tiny import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from transformers_xl import ByteTokenizer, MemoryTrainer, add_memory
from transformers_xl.data.text_stream import TextStream
from transformers_xl.hub.card_choices import choices_of_base
from transformers_xl.hub.uploading import push_folder
from transformers_xl.training.arguments import MemoryTrainingArguments

BASE, REPO = "owner/base", "owner/base-with-memory"
MEMORIES = {
    "window": {"mem_len": 24, "segment_length": 8},
    "tokens": {"num_memory_tokens": 3, "segment_length": 8},
}
LOAD = """
import sys
sys.modules["transformers_xl"] = None  # importing it fails from here on
import torch, transformers
for repo in sys.argv[1:]:
    model = transformers.AutoModelForCausalLM.from_pretrained(repo, trust_remote_code=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(repo, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    if repo.startswith("owner/base"):
        assert type(model.backbone).__module__ == "transformers.models.llama.modeling_llama"
    ids = tokenizer("It was the best of times", return_tensors="pt")["input_ids"]
    first = model(ids)
    print(model.generate(ids[:, -1:], mems=first.mems, max_new_tokens=4, do_sample=False).tolist())
model.save_pretrained("again"); tokenizer.save_pretrained("again")
transformers.AutoModelForCausalLM.from_pretrained("again", trust_remote_code=True)
"""


@pytest.fixture
def base(hub, tmp_path: Path) -> Path:
    """A base on the Hub, with a licence that has no identifier, and its folder."""
    folder = save_base(tmp_path / "base", "other\nlicense_name: llama9\nlicense_link: https://example.org/llama9")
    push_folder(folder, BASE)
    return folder


def push_with_memory(hub, kind: str, repo: str, tmp_path: Path) -> Path:
    """Put a memory of this kind around the base, measure it, and push it; its folder."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in MEMORIES[kind].items()]
    added = tmp_path / kind
    assert run("add-memory", BASE, "-o", added, "--kind", kind, *options).exit_code == 0
    (tmp_path / "text.txt").write_text(TEXT)
    result = run("evaluate", added, "--text", tmp_path / "text.txt", "--record")
    assert result.exit_code == 0, result.output
    result = run("push", added, repo)
    assert result.exit_code == 0, result.output
    card = ModelCard(hub.files(repo)["README.md"].decode())
    assert (card.data.license, card.data.license_name, card.data.base_model) == ("other", "llama9", BASE)
    assert f"The base is a `LlamaForCausalLM`: [{BASE}](https://huggingface.co/{BASE})." in card.text
    assert "Weights: [llama9](https://example.org/llama9)." in card.text
    measured = json.loads(hub.files(repo)["training_metrics.json"])
    assert all(f"**{each['bits_per_byte']:.4f}**" in card.text for each in measured["evaluations"])
    assert str(tmp_path) not in "".join(
        data.decode() for name, data in hub.files(repo).items() if name.endswith(("md", "json"))
    )
    return added


def push_variant(repo: str, folder: Path) -> Path:
    """Push a model of this package; its folder."""
    tiny_model("transformer_xl", "causal_lm", vocab_size=259).save_pretrained(folder)
    ByteTokenizer().save_pretrained(folder)
    push_folder(folder, repo)
    return folder


@pytest.mark.slow
def test_pushed_folders_load_where_the_package_is_absent(hub, base: Path, tmp_path: Path):
    """By the environment variables that turn a process to another server, and by remote code of a repository's name."""
    pushed = {f"{REPO}-{kind}": push_with_memory(hub, kind, f"{REPO}-{kind}", tmp_path) for kind in MEMORIES}
    pushed["owner/variant"] = push_variant("owner/variant", tmp_path / "variant")
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    environment |= {"HF_HUB_OFFLINE": "0", "HF_TOKEN": ""}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOAD, *pushed], cwd=tmp_path, env=environment,
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.strip().splitlines()[-len(pushed) :]
    for folder, line in zip(pushed.values(), said, strict=True):
        model = AutoModelForCausalLM.from_pretrained(folder)
        ids = AutoTokenizer.from_pretrained(folder)("It was the best of times", return_tensors="pt")["input_ids"]
        expected = model.generate(ids[:, -1:], mems=model(ids).mems, max_new_tokens=4, do_sample=False)
        assert line == str(expected.tolist())
    again = {path.name: path.read_bytes() for path in (tmp_path / "again").glob("*.py")}
    assert again == {path.name: path.read_bytes() for path in (tmp_path / "variant").glob("*.py")}


def test_a_push_from_python_knows_the_base(hub, base: Path, tmp_path: Path):
    model = add_memory(BASE, **MEMORIES["window"])
    model.push_to_hub(REPO)
    card = ModelCard(hub.files(REPO)["README.md"].decode())
    assert (card.data.license_name, card.data.base_model) == ("llama9", BASE)
    loaded = type(model).from_pretrained(REPO)
    loaded.push_to_hub("owner/again")
    card = ModelCard(hub.files("owner/again")["README.md"].decode())
    assert (card.data.license_name, card.data.base_model) == ("llama9", BASE)

    args = MemoryTrainingArguments(
        str(tmp_path / "run"), max_steps=1, per_device_train_batch_size=1, report_to="none", use_cpu=True
    )
    trainer = MemoryTrainer(model, args, train_dataset=TextStream(torch.arange(99), 8))
    trainer.train()
    trainer.create_model_card(license="mit")
    card = ModelCard.load(tmp_path / "run" / "README.md")
    assert (card.data.license, card.data.license_name, card.data.base_model) == ("mit", None, BASE)


def test_the_plain_base_comes_back(hub, base: Path, tmp_path: Path):
    model = add_memory(BASE, **MEMORIES["window"])
    model.backbone.save_pretrained(tmp_path / "plain")
    plain, before = (LlamaForCausalLM.from_pretrained(folder) for folder in (tmp_path / "plain", base))
    torch.testing.assert_close(plain.state_dict(), before.state_dict(), atol=0, rtol=0)
    assert json.loads((tmp_path / "plain" / "config.json").read_text())["model_type"] == "llama"


def test_a_licence_that_nobody_states_is_unknown(tmp_path: Path):
    folder = save_base(tmp_path / "base")
    (folder / "README.md").unlink()
    assert choices_of_base(str(folder)).license is None
    assert run("add-memory", folder, "-o", tmp_path / "added", "--mem-len", 8).exit_code == 0
    text = (tmp_path / "added" / "README.md").read_text()
    assert "Its licence is unknown" in text
    assert "Weights: not stated." in text


def test_code_in_a_repository_runs_when_the_caller_says_so(hub, tmp_path: Path):
    folder = save_base(tmp_path / "coded")
    fields = json.loads((folder / "config.json").read_text())
    fields |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}
    (folder / "config.json").write_text(json.dumps(fields | {"trust_remote_code": True}))
    (folder / "mine.py").write_text("raise RuntimeError('it was run')\n")
    push_folder(folder, "owner/coded")
    result = run("add-memory", "owner/coded", "-o", tmp_path / "added")
    assert result.exit_code == 2
    assert "--trust-remote-code" in result.stderr
    with pytest.raises(ValueError, match="trust_remote_code"):
        add_memory("owner/coded")
