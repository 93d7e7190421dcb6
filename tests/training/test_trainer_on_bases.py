"""MemoryTrainer on models around which a memory was put: the loop by hand, and its checkpoints."""

import pytest
import torch
from optional_packages import needs
from tiny import tensors_of
from tiny_bases import tiny_base
from trained import LANES, SEGMENT, arguments, by_hand, flat, losses, small_model, text

from transformers_xl import MemoryTrainer, SegmentMemoryForCausalLM, add_memory
from transformers_xl.data.text_stream import TextStream
from transformers_xl.runs.run_options import read_config

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
    memories = (tensors_of(each.memory["train"]) for each in (resumed, whole))
    assert all(torch.equal(*pair) for pair in zip(*memories, strict=True))
    assert resumed.evaluate()["eval_loss"] == whole.evaluate()["eval_loss"]


def one_step(model, folder, **fields) -> MemoryTrainer:
    """A trainer of one step, by the recipe's optimizer and rate."""
    recipe = read_config(recipe="add-memory-tokens").training
    fields = {"max_steps": 1, "learning_rate": recipe.learning_rate, "optim": recipe.optim, "use_cpu": True} | fields
    stream = TextStream(text(LANES * 4 * SEGMENT + 1), 4 * SEGMENT, LANES)
    return MemoryTrainer(model, arguments(folder, **fields), train_dataset=stream)


@pytest.mark.parametrize("form", ["float32", "bf16", "adapters"])
def test_a_step_of_the_recipe_moves_every_element_of_the_memory(tmp_path, form):
    """Of a base in bfloat16: loaded in float32, computing in bfloat16, or with adapters around it as it is."""
    model = add_memory(tiny_base("llama").bfloat16(), "tokens", num_memory_tokens=4, segment_length=SEGMENT)
    memory = model.reader.memory_tokens
    if form == "adapters":
        peft = needs("peft")
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["memory_tokens"])
        model = peft.get_peft_model(model, config)
        memory = memory_of(model)
    else:
        model.float()
    before = [weight.detach().clone() for weight in memory.parameters()]
    one_step(model.train(), tmp_path, bf16=form == "bf16").train()
    for old, new in zip(before, memory.parameters(), strict=True):
        steps = (new - old).abs()
        assert new.dtype == torch.float32
        assert steps.min() > 0.5e-4  # of a rate of 1e-4: Adam's first step, but for elements with the least gradients
        assert steps.max() < 1.1e-4
    if form == "adapters":
        assert model.dtype == torch.bfloat16


def memory_of(adapted) -> torch.nn.Module:
    """The copy of the memory that adapters train."""
    (module,) = [each for path, each in adapted.named_modules() if path.endswith("modules_to_save.default")]
    return module


def test_weights_in_half_precision_are_not_trained(tmp_path):
    """A step would change some of them, and round the others to what they were."""
    models = [
        small_model().bfloat16(),
        small_model().half(),
        add_memory(tiny_base("llama").bfloat16(), mem_len=8),
        add_memory(tiny_base("llama").bfloat16(), "tokens", num_memory_tokens=2, segment_length=SEGMENT),
    ]
    for model in models:
        with pytest.raises(ValueError, match=r"would be trained in torch\.b?float16 .*`model\.float\(\)`.*adapters"):
            one_step(model, tmp_path / "out")
        with pytest.raises(ValueError, match="would be trained"):
            one_step(model, tmp_path / "out", bf16=True)
    assert not (tmp_path / "out").exists()
    args = arguments(tmp_path / "out", use_cpu=True, bf16_full_eval=True)
    stream = TextStream(text(60), SEGMENT, LANES)
    with pytest.raises(ValueError, match="would be trained"):
        MemoryTrainer(None, args, train_dataset=stream, model_init=lambda: small_model().bfloat16())
    measured = MemoryTrainer(models[0], args, eval_dataset=stream).evaluate()
    assert measured["eval_loss"] > 0
    trainer = MemoryTrainer(small_model(), args, train_dataset=stream, eval_dataset=stream)
    trainer.evaluate()  # casts the model
    with pytest.raises(ValueError, match="would be trained"):
        trainer.train()
