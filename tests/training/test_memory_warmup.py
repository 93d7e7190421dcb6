"""A memory that grows in training, against a loop by hand."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import set_seed

from transformers_xl import (
    MemoryTrainer,
    RecurrentMemoryTransformerConfig,
    RecurrentMemoryTransformerForCausalLM,
    TransformerXLConfig,
    TransformerXLForCausalLM,
)
from transformers_xl.data.text_stream import TextStream
from transformers_xl.training.trainer import MemoryTrainingArguments

VOCAB, SEGMENT, LANES, STEPS = 23, 4, 2, 8
IDS = np.random.default_rng(0).integers(0, VOCAB, LANES * SEGMENT * STEPS + 1)


SIZES = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
    "dropout": 0.0,
}  # fmt: skip


def small_model(mem_len: int = 14, **fields) -> TransformerXLForCausalLM:
    set_seed(0)
    return TransformerXLForCausalLM(TransformerXLConfig(mem_len=mem_len, **SIZES, **fields))


def model_with_memory_tokens() -> RecurrentMemoryTransformerForCausalLM:
    """A step of four tokens is four segments."""
    set_seed(0)
    tokens = {"segment_length": 1, "num_memory_tokens": 1, "bptt_segments": 4, "mem_len": 2}
    return RecurrentMemoryTransformerForCausalLM(RecurrentMemoryTransformerConfig(**tokens, **SIZES))


def trainer_of(tmp_path, model, eval_dataset=None, beginning=(), **fields) -> MemoryTrainer:
    defaults = {
        "per_device_train_batch_size": LANES, "max_steps": STEPS, "learning_rate": 0.05, "optim": "sgd",
        "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "report_to": "none", "save_strategy": "no",
        "disable_tqdm": True, "dataloader_pin_memory": False,
    }  # fmt: skip
    args = MemoryTrainingArguments(str(tmp_path), **(defaults | fields))
    stream = TextStream(IDS, SEGMENT, LANES, beginning=beginning)
    return MemoryTrainer(model, args, train_dataset=stream, eval_dataset=eval_dataset)


def lengths_of(trainer: MemoryTrainer, field: str = "mem_len", **options) -> list[int]:
    """Train, and note the length of the memory in every step."""
    seen = []
    hook = trainer.model.register_forward_pre_hook(lambda module, inputs: seen.append(getattr(module.config, field)))
    trainer.train(**options)
    hook.remove()
    return seen


@pytest.mark.parametrize("steps", [6, 0.75])
def test_training_equals_a_loop_by_hand(tmp_path, steps: float):
    trainer = trainer_of(tmp_path, small_model(), initial_mem_len=2, mem_len_warmup_steps=steps)
    assert lengths_of(trainer) == [2, 4, 6, 8, 10, 12, 14, 14]
    model, mems = small_model(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = torch.from_numpy(IDS[:-1]).view(LANES, -1)
    targets = torch.from_numpy(IDS[1:]).view(LANES, -1)
    for step, length in enumerate([2, 4, 6, 8, 10, 12, 14, 14]):
        model.resize_memory(length)
        here = slice(step * SEGMENT, (step + 1) * SEGMENT)
        outputs = model(rows[:, here], mems=mems)
        mems = outputs.mems
        F.cross_entropy(outputs.logits.transpose(1, 2), targets[:, here]).backward()
        optimizer.step()
        optimizer.zero_grad()
    for ours, theirs in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_texts_that_begin_are_read_before_anything_is_remembered(tmp_path):
    """A memory of no column for some steps, with evaluations: the stream stays that of a model with memory."""
    fields = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": LANES}
    fields |= {"initial_mem_len": 0, "mem_len_warmup_steps": 60, "beginning": [1]}
    held_out = TextStream(IDS, SEGMENT, LANES, keep_tail=True, beginning=[1])
    trainer = trainer_of(tmp_path, small_model(same_length=False), held_out, **fields)
    trainer.train()
    assert len([row for row in trainer.state.log_history if "eval_loss" in row]) == STEPS // 2
    trainer.model.resize_memory(0)
    with pytest.raises(ValueError, match="made with `memory`=True, but the model has `mem_len`=0"):
        trainer.evaluate()


def test_the_end_of_a_training_is_the_whole_memory(tmp_path, caplog):
    trainer = trainer_of(tmp_path, small_model(), initial_mem_len=2, mem_len_warmup_steps=24, max_steps=3)
    assert lengths_of(trainer) == [2, 2, 3]
    assert [said.partition(",")[0] for said in caplog.messages if "warmup" in said] == ["`mem_len_warmup_steps`=24"]
    assert trainer.model.config.mem_len == 14
    assert lengths_of(trainer) == [2, 2, 3]  # another training warms up again


def test_a_model_from_a_checkpoint_grows_on(tmp_path):
    """Its config has the length of its step; the training knows what it was bound for."""
    fields = {"initial_mem_len": 2, "mem_len_warmup_steps": 6, "save_strategy": "steps", "save_steps": 4}
    whole = trainer_of(tmp_path, small_model(), **fields)
    whole.train()
    checkpoint = tmp_path / "checkpoint-4"
    model = TransformerXLForCausalLM.from_pretrained(checkpoint)
    assert model.config.mem_len == 8
    for resumed in (model, small_model()):
        trainer = trainer_of(tmp_path / "resumed", resumed, **fields)
        assert lengths_of(trainer, resume_from_checkpoint=str(checkpoint)) == [10, 12, 14, 14]
        assert trainer.model.config.mem_len == 14
        for ours, theirs in zip(trainer.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_gradients_through_more_and_more_segments_go_on_from_a_checkpoint(tmp_path):
    fields = {"initial_bptt_segments": 1, "bptt_warmup_steps": 6, "save_strategy": "steps", "save_steps": 3}
    whole = trainer_of(tmp_path, model_with_memory_tokens(), **fields)
    assert lengths_of(whole, "bptt_segments") == [1, 1, 2, 2, 3, 3, 4, 4]
    checkpoint = tmp_path / "checkpoint-3"
    model = RecurrentMemoryTransformerForCausalLM.from_pretrained(checkpoint)
    assert model.config.bptt_segments == 2
    trainer = trainer_of(tmp_path / "resumed", model, **fields)
    assert lengths_of(trainer, "bptt_segments", resume_from_checkpoint=str(checkpoint)) == [2, 3, 3, 4, 4]
    assert trainer.model.config.bptt_segments == 4
    for ours, theirs in zip(trainer.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"initial_mem_len": 4}, "`initial_mem_len`=4 and `mem_len_warmup_steps`=0"),
        ({"mem_len_warmup_steps": 4}, "`initial_mem_len`=None and `mem_len_warmup_steps`=4"),
        ({"initial_mem_len": 4, "mem_len_warmup_steps": -1}, "`mem_len_warmup_steps`=-1"),
        ({"initial_mem_len": 15, "mem_len_warmup_steps": 4}, "`initial_mem_len`=15 is above `mem_len`=14"),
        ({"initial_mem_len": 0, "mem_len_warmup_steps": 4}, "`mem_len`=0 with `same_length`=True"),
        (
            {"initial_bptt_segments": 1, "bptt_warmup_steps": 4},
            "TransformerXLForCausalLM, which has no `bptt_segments`",
        ),
    ],
)
def test_what_cannot_be_meant(tmp_path, fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        trainer_of(tmp_path, small_model(), **fields)


def test_a_model_of_another_library_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`initial_mem_len`=4, but `model` is a Linear"):
        trainer_of(tmp_path, torch.nn.Linear(2, 2), initial_mem_len=4, mem_len_warmup_steps=4)
