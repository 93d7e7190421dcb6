"""What a step needs: the bytes that the graph of a loss keeps, found by walking it; and the rows that fit."""

import pytest
import tiny
import torch
import yaml
from programs import run
from tiny import tensors_of, tiny_model
from tiny_bases import VOCAB_SIZE, tiny_base

from transformers_xl import add_memory
from transformers_xl.runs import training_run
from transformers_xl.training.arguments import MemoryTrainingArguments
from transformers_xl.training.step_memory import StepMemory, measure_step

LENGTH = 24
TEXT = "It was the best of times , it was the worst of times , it was the age of wisdom .\n" * 40
SMALL = (
    "--model.hidden_size 16 --model.num_hidden_layers 1 --model.num_attention_heads 2 --model.intermediate_size 16 "
    "--model.mem_len 8 --model.segment_length 8 --training.max_steps 2 --training.warmup_steps 1"
)


def models() -> dict[str, torch.nn.Module]:
    return {
        "transformer_xl": tiny_model("transformer_xl", "causal_lm", vocab_size=VOCAB_SIZE, dropout=0.3),
        "window": add_memory(tiny_base("gemma2"), mem_len=LENGTH),
        "tokens": add_memory(tiny_base("llama"), kind="tokens", num_memory_tokens=3, segment_length=LENGTH // 2),
    }


def kept_by(loss: torch.Tensor, model: torch.nn.Module) -> int:
    """Bytes that the graph of a loss keeps, but for weights and logits."""
    known = {each.untyped_storage().data_ptr() for each in model.parameters()}
    found, nodes, seen = {}, [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [each for each, _ in node.next_functions]
        values = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        values += getattr(node, "saved_tensors", ())
        for value in values:
            for tensor in value if isinstance(value, (tuple, list)) else [value]:
                if isinstance(tensor, torch.Tensor) and not (tensor.dim() and tensor.shape[-1] == VOCAB_SIZE):
                    found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(size for place, size in found.items() if place not in known)


@pytest.mark.parametrize("name", ["transformer_xl", "window", "tokens"])
def test_a_row_needs_what_its_graph_keeps(name: str):
    model, args = models()[name], MemoryTrainingArguments(use_cpu=True)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    [*model.train().children()][-1].eval()
    torch.manual_seed(7)
    state = torch.get_rng_state()
    modes = [module.training for module in model.modules()]
    step = measure_step(model, args, LENGTH)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert step == measure_step(model, args, LENGTH)

    ids = torch.arange(LENGTH)[None] % VOCAB_SIZE
    mems = None
    for _ in range(-(-model.config.mem_len // LENGTH)):
        with torch.no_grad():
            mems = model.eval()(ids, mems=mems).mems
    loss = model.train()(ids, shift_labels=ids, logits_to_keep=1, mems=mems).loss
    held = sum(each.nbytes for each in tensors_of(mems))
    assert step.per_row - 2 * held == pytest.approx(kept_by(loss, model), rel=0.02)
    assert step.weights == sum(each.numel() * each.element_size() for each in model.parameters())
    assert step.trained == 3 * step.weights  # gradients, and the two averages of Adam


@pytest.mark.parametrize("model_type", tiny.models(causal_lm=True))
def test_every_model_can_be_measured_and_is_left_as_it_was(model_type: str):
    """Also one that counts in buffers, halts, or draws its exits."""
    model = tiny_model(model_type, "causal_lm")
    before = {name: value.clone() for name, value in [*model.named_buffers(), *model.named_parameters()]}
    length = model.config.segment_length
    step = measure_step(model, MemoryTrainingArguments(use_cpu=True), length)
    assert step.per_row > 0
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in [*model.named_buffers(), *model.named_parameters()])


def test_only_what_is_trained_has_gradients():
    model = models()["tokens"]
    model.backbone.requires_grad_(False)
    own = sum(each.numel() * each.element_size() for each in model.reader.parameters())
    assert measure_step(model, MemoryTrainingArguments(use_cpu=True), LENGTH).trained == 3 * own
    assert measure_step(model, MemoryTrainingArguments(use_cpu=True, optim="sgd"), LENGTH).trained == own


def test_rows_are_halved_until_they_fit():
    step = StepMemory(weights=1000, trained=300, per_row=100, row_logits=10, most_logits=20)
    assert step.needed(1) == 300 + 100 + 40
    assert step.needed(8) == 300 + 800 + 80  # no more logits than those of a slice
    assert [step.fitting(8, free) for free in (1180, 1179, 780, 440, 1)] == [8, 4, 4, 1, 1]


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def trained(text_file, monkeypatch, needed: int, *words: str) -> tuple[int, str]:
    """The rows of a run where the memory for `needed` rows is free, and what it says."""
    steps = []

    def measured(*given):
        steps.append(measure_step(*given))
        return steps[0]

    monkeypatch.setattr(training_run, "measure_step", measured)
    monkeypatch.setattr(training_run, "free_memory", lambda device: steps[0].needed(needed))
    output = text_file.parent / "out"
    result = run("train", text_file, "-o", output, *SMALL.split(), *words)
    assert result.exit_code == 0, (result.output, result.exception)
    return yaml.safe_load((output / "run.yaml").read_text())["data"]["batch_size"], result.output


def test_the_default_fits_and_is_said_before_the_first_step(text_file, monkeypatch):
    rows, said = trained(text_file, monkeypatch, 5)
    assert rows == 4
    sentence = "a step reads 4 x 8 tokens, since 16 do not fit (`data.batch_size` sets it); it needs about "
    assert sentence in said
    assert said.index(sentence) < said.index("wrote")


def test_what_fits_is_left_alone(text_file, monkeypatch):
    rows, said = trained(text_file, monkeypatch, 16)
    assert rows == 16
    assert "a step reads 16 x 8 tokens; it needs about 0.0 GiB" in said
    assert "try" not in said


def test_a_number_of_ones_own_is_honoured_and_warned_about(text_file, monkeypatch):
    rows, said = trained(text_file, monkeypatch, 3, "--data.batch_size", "8")
    assert rows == 8
    assert "a step reads 8 x 8 tokens; it needs" in said
    assert "it may fail or be slow, try --data.batch_size 2" in said


def test_not_even_one_row(text_file, monkeypatch):
    rows, said = trained(text_file, monkeypatch, 0)
    assert rows == 1
    assert "not even one row fits" in said
