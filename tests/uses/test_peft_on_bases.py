"""LoRA on a base around which a memory was put: what the memory adds is trained and saved with the adapter."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from optional_packages import needs
from tiny_bases import tiny_base
from trained import LANES, SEGMENT, arguments, text

peft = needs("peft")

from transformers_xl import MemoryTrainer, SegmentMemoryForCausalLM, add_memory  # noqa: E402
from transformers_xl.streams.text_stream import TextStream  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
FIELDS = {
    "window": {"mem_len": 8, "num_sinks": 2},
    "tokens": {"num_memory_tokens": 2, "segment_length": SEGMENT // 2, "bptt_segments": 2},
}
# of the memory, and not of the base
ADDED = {"window": None, "tokens": ["memory_tokens"]}
AGAIN = """
import sys, torch, peft
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
import transformers_xl
model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(sys.argv[1]), sys.argv[2]).eval()
ids, found = torch.load(sys.argv[3] + "/ids.pt"), []
with torch.no_grad():
    first = model(ids[:, :10])
    second = model(ids[:, 10:], mems=first.mems, mems_mask=first.mems_mask)
torch.save(torch.cat([first.logits, second.logits], dim=1), sys.argv[3] + "/logits.pt")
"""


def with_memory(kind: str) -> SegmentMemoryForCausalLM:
    base = tiny_base("llama").float()
    torch.manual_seed(0)
    return add_memory(base, kind=kind, **FIELDS[kind])


@pytest.mark.parametrize("kind", FIELDS)
def test_an_adapter_is_trained_saved_and_loaded_with_what_the_memory_adds(tmp_path, kind):
    """In a process of its own: the outputs are equal. The base itself has not changed."""
    model = with_memory(kind)
    model.save_pretrained(tmp_path / "base")
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=ADDED[kind])
    torch.manual_seed(0)
    adapted = peft.get_peft_model(model, config)
    args = arguments(tmp_path / "run", num_train_epochs=2, learning_rate=1.0, use_cpu=True)
    stream = TextStream(text(LANES * SEGMENT * 4 + 1), SEGMENT, LANES)
    MemoryTrainer(adapted.train(), args, train_dataset=stream).train()
    adapted.eval().save_pretrained(tmp_path / "adapter")

    trained = {name: weight for name, weight in adapted.named_parameters() if weight.requires_grad}
    assert all("lora_" in name or "memory_tokens" in name for name in trained)
    if kind == "tokens":
        for name in ("start", "scale"):
            (found,) = (
                weight
                for path, weight in trained.items()
                if path.endswith(f"memory_tokens.{'modules_to_save.default.'}{name}")
            )
            assert not torch.equal(found, before[f"reader.memory_tokens.{name}"])
    for name, weight in adapted.get_base_model().backbone.named_parameters():
        if "lora_" not in name:
            assert torch.equal(weight, before["backbone." + name.replace(".base_layer", "")])

    ids = torch.from_numpy(text(25, seed=2))[None]
    torch.save(ids, tmp_path / "ids.pt")
    command = [sys.executable, "-c", AGAIN, *(str(tmp_path / part) for part in ("base", "adapter", ""))]
    subprocess.run(command, check=True, cwd=ROOT, timeout=280)
    with torch.no_grad():
        first = adapted(ids[:, :10])
        second = adapted(ids[:, 10:], mems=first.mems, mems_mask=first.mems_mask)
    expected = torch.cat([first.logits, second.logits], dim=1)
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), expected, atol=1e-6, rtol=0)
    with adapted.disable_adapter():
        assert not torch.allclose(adapted(ids[:, :10]).logits, first.logits, atol=1e-3)
