"""LoRA on a base around which a memory was put: what the memory adds is trained and saved with the adapter."""

import pytest
import torch
from optional_packages import needs
from tiny_bases import tiny_base
from trained import LANES, SEGMENT, arguments, text
from transformers import AutoModelForCausalLM

peft = needs("peft")

from transformers_xl import MemoryTrainer, SegmentMemoryForCausalLM, add_memory  # noqa: E402
from transformers_xl.data.text_stream import TextStream  # noqa: E402

FIELDS = {
    "window": {"mem_len": 8, "num_sinks": 2},
    "tokens": {"num_memory_tokens": 2, "segment_length": SEGMENT // 2, "bptt_segments": 2},
}
# of the memory, and not of the base
ADDED = {"window": None, "tokens": ["memory_tokens"]}


def with_memory(kind: str) -> SegmentMemoryForCausalLM:
    base = tiny_base("llama").float()
    torch.manual_seed(0)
    return add_memory(base, kind=kind, **FIELDS[kind])


@pytest.mark.parametrize("kind", FIELDS)
def test_an_adapter_is_trained_saved_and_loaded_with_what_the_memory_adds(tmp_path, kind):
    """Loaded from its two folders, the outputs are equal. The base itself has not changed."""
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
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    mems = [None, None]
    with torch.no_grad():
        for segment in (ids[:, :10], ids[:, 10:]):
            outputs = [model(segment, mems=each) for model, each in zip((adapted, loaded), mems, strict=True)]
            torch.testing.assert_close(outputs[1].logits, outputs[0].logits, atol=1e-6, rtol=0)
            mems = [output.mems for output in outputs]
        logits = adapted(ids[:, :10]).logits
    with adapted.disable_adapter():
        assert not torch.allclose(adapted(ids[:, :10]).logits, logits, atol=1e-3)


TARGETS = {
    "gpt_neox": {"query_key_value"},
    "gpt2": {"c_attn"},
    "phi": {"q_proj", "v_proj", "fc1", "fc2"},
    "olmo2": {"q_proj", "v_proj"},  # which PEFT does not know
}


def test_default_target_modules_are_those_of_the_base():
    """Of the base around which a memory was put last: all wrappers are of one type to PEFT."""
    for family, names in TARGETS.items():
        model = add_memory(tiny_base(family), "tokens", num_memory_tokens=2, segment_length=8)
        expected = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in names}
        assert {*peft.get_peft_model(model, peft.LoraConfig(r=2)).targeted_module_names} == expected
    model = add_memory(tiny_base("deepseek_v3"), mem_len=8)
    with pytest.raises(ValueError, match="Please specify `target_modules`"):
        peft.get_peft_model(model, peft.LoraConfig(r=2))
