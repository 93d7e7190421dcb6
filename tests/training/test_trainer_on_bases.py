"""MemoryTrainer on models around which a memory was put: the loop by hand, and its checkpoints."""

import pytest
import torch
from tiny_bases import tiny_base
from trained import LANES, SEGMENT, arguments, by_hand, flat, losses, text

from transformers_xl import MemoryTrainer, SegmentMemoryForCausalLM, add_memory
from transformers_xl.streams.text_stream import TextStream

MEMORY = {
    "window": {"mem_len": 8, "num_sinks": 2},
    # a call of the stream ends in the middle of a segment
    "tokens": {"num_memory_tokens": 2, "segment_length": SEGMENT - 2, "bptt_segments": 4},
}


def build(kind: str) -> SegmentMemoryForCausalLM:
    base = tiny_base("llama").float()
    torch.manual_seed(0)
    return add_memory(base, kind=kind, **MEMORY[kind]).train()


@pytest.mark.parametrize(("kind", "bf16"), [("window", False), ("tokens", False), ("tokens", True)])
def test_training_is_the_loop_by_hand_and_resumes(tmp_path, kind, bf16):
    ids = text(LANES * SEGMENT * 4 + 1)

    def trainer(folder: str, **fields) -> MemoryTrainer:
        args = arguments(tmp_path / folder, num_train_epochs=2, learning_rate=0.01, use_cpu=True, bf16=bf16, **fields)
        stream, held_out = TextStream(ids, SEGMENT, LANES), TextStream(text(60, seed=1), SEGMENT, LANES)
        return MemoryTrainer(build(kind), args, train_dataset=stream, eval_dataset=held_out)

    whole = trainer("whole", save_strategy="steps", save_steps=3, eval_strategy="epoch")
    whole.train()
    steps = torch.tensor(by_hand(model := build(kind), ids, epochs=2, lr=0.01))
    if bf16:  # what is written from segment to segment makes rounding grow
        torch.testing.assert_close(losses(whole)[0], steps[0], atol=0.1, rtol=0)
    else:
        torch.testing.assert_close(losses(whole), steps, atol=1e-4, rtol=0)
        torch.testing.assert_close(flat(whole.model), flat(model), atol=1e-5, rtol=0)

    resumed = trainer("resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole/checkpoint-3"))
    assert torch.equal(flat(resumed.model), flat(whole.model))
    assert all(
        torch.equal(*pair) for pair in zip(resumed.memory["train"].mems, whole.memory["train"].mems, strict=True)
    )
    assert resumed.evaluate()["eval_loss"] == whole.evaluate()["eval_loss"]
