"""Training and generation on one CUDA device, by `make gpu-check`: against a CPU, or against the plain way there.

Several devices: test_processes.py (FSDP2), tests/uses/test_device_map.py. Backends: tests/modeling/test_backends.py.
"""

from pathlib import Path

import pytest
import torch
from tiny import tensors_of, tiny_model, tokens
from trained import LANES, QUIET, SEGMENT, small_model, text
from transformers import TrainerCallback
from transformers.generation import CompileConfig

from transformers_xl import MemoryTrainer
from transformers_xl.data.text_stream import TextStream
from transformers_xl.training.arguments import MemoryTrainingArguments

pytestmark = pytest.mark.gpu
STEPS = 6


class WhereMemoryIs(TrainerCallback):
    """Notes the devices of the training's memory after every step."""

    def __init__(self):
        self.trainer: MemoryTrainer | None = None
        self.devices: list[str] = []

    def on_step_end(self, args, state, control, **kwargs):
        self.devices += [each.device.type for each in tensors_of(self.trainer.memory["train"])]


def train(folder: Path, resume: bool = False, **fields) -> MemoryTrainer:
    stream = TextStream(text(LANES * SEGMENT * STEPS + 1), SEGMENT, LANES)
    settings = {
        "per_device_train_batch_size": LANES, "max_steps": STEPS, "learning_rate": 0.01, "lr_scheduler_type": "constant",
        "logging_steps": 1, "dataloader_pin_memory": True,
    }  # fmt: skip
    args = MemoryTrainingArguments(str(folder), **(QUIET | settings | fields))
    callback = WhereMemoryIs()
    callback.trainer = trainer = MemoryTrainer(small_model(), args, train_dataset=stream, callbacks=[callback])
    trainer.where_memory_is = callback
    trainer.train(resume_from_checkpoint=resume or None)
    return trainer


def losses(trainer: MemoryTrainer) -> torch.Tensor:
    return torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])


@pytest.fixture(scope="module")
def on_the_cpu(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    return losses(train(tmp_path_factory.mktemp("cpu"), use_cpu=True, dataloader_pin_memory=False))


@pytest.mark.parametrize(
    ("fields", "rounding"),
    [
        ({}, 1e-3),
        ({"torch_compile": True}, 1e-3),
        ({"gradient_checkpointing": True}, 1e-3),
        ({"bf16": True}, 0.05),
        ({"bf16": True, "torch_compile": True}, 0.05),
        ({"fp16": True}, 0.05),
    ],
    ids=lambda value: "-".join(value) or "plain" if isinstance(value, dict) else "",
)
def test_a_training_has_the_losses_of_a_cpu(on_the_cpu, tmp_path: Path, fields: dict, rounding: float):
    """From pinned batches, with the memory on the device all the time."""
    trainer = train(tmp_path, **fields)
    torch.testing.assert_close(losses(trainer), on_the_cpu, atol=rounding, rtol=0)
    assert set(trainer.where_memory_is.devices) == {"cuda"}
    assert len(trainer.where_memory_is.devices) == STEPS * 4  # of two layers, and two counts


@pytest.mark.parametrize("numbers", ["fp16", "bf16"])
def test_a_resumed_training_continues_with_its_memory_and_the_scale_of_its_loss(tmp_path: Path, numbers: str):
    whole = train(tmp_path / "whole", **{numbers: True})
    train(tmp_path / "cut", save_strategy="steps", save_steps=3, max_steps=3, **{numbers: True})
    resumed = train(tmp_path / "cut", resume=True, save_strategy="steps", save_steps=3, **{numbers: True})
    torch.testing.assert_close(losses(resumed), losses(whole), atol=1e-4, rtol=0)
    if numbers == "fp16":
        assert resumed.accelerator.scaler.state_dict() == whole.accelerator.scaler.state_dict()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_generation_in_graphs_writes_what_the_plain_one_does(dtype: torch.dtype):
    """The static window has one address: texts of other lengths, with and without memory, use the graphs of the first."""
    model = tiny_model("transformer_xl", "causal_lm").to("cuda", dtype)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = CompileConfig(mode="reduce-overhead", fullgraph=True, dynamic=False)
    mems = model(tokens(1, 20).cuda()).mems
    for length, memory in ((1, None), (5, None), (3, mems)):
        ids = tokens(1, length, seed=length).cuda()
        options = {"mems": memory, "max_new_tokens": 12, "do_sample": False}
        static = model.generate(ids, cache_implementation="static", compile_config=compiled, **options)
        assert torch.equal(static, model.generate(ids, **options))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_memory_of_a_long_text_does_not_grow():
    """What is allocated after a thousand segments is what was allocated after ten."""
    model = tiny_model("transformer_xl", "causal_lm").to("cuda", torch.float32)
    allocated, mems = [], None
    with torch.no_grad():
        for segment in range(1000):
            mems = model(tokens(2, 16, seed=segment % 7).cuda(), mems=mems).mems
            if segment in (10, 999):
                allocated.append(torch.cuda.memory_allocated())
    assert allocated[1] <= allocated[0]
