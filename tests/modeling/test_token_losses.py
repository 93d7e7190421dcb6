"""Losses without the logits of all tokens, against the whole logits in float64: values, gradients, and what is made."""

import pytest
import torch
from largest import Largest
from optional_packages import needs
from tiny import models, one_of_each_kind, tiny_model, tokens
from tiny_bases import VOCAB_SIZE, tiny_base
from torch.nn import functional as F
from transformers import PreTrainedModel

from transformers_xl import add_memory
from transformers_xl.evaluation.token_losses import losses_of_targets
from transformers_xl.modeling.layers import token_loss
from transformers_xl.modeling.layers.token_loss import cross_entropy_in_slices, token_cross_entropy
from transformers_xl.modeling.pretrained import base_head

peft = needs("peft")

CLOSE = {"atol": 1e-12, "rtol": 1e-9}
LENGTH = 20
# what a head has beside its matrix: a soft cap, a scale, a factor, a bias, nothing; and two decoders that it looks into
BASES: dict[str, dict] = {
    "gemma2": {"final_logit_softcapping": 2.0},
    "granite": {"logits_scaling": 3.0},
    "cohere": {"logit_scale": 0.25},
    "phi": {},
    "llama": {},
    "falcon_h1": {"lm_head_multiplier": 0.5},
    "qwen3_moe": {},
}


@pytest.fixture
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> int:
    """Logits of three tokens at a time; their number."""
    monkeypatch.setattr(token_loss, "LOGITS_AT_A_TIME", 3 * VOCAB_SIZE)
    return 3 * VOCAB_SIZE


def text_and_targets() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(3, VOCAB_SIZE, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    targets = ids.roll(-1, 1)
    targets[0, :5] = targets[1, -1] = -100
    return ids, targets


def naive(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logs = logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None]).squeeze(-1)
    return torch.where(targets == -100, 0.0, -logs)


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, [*named.values()], materialize_grads=True)
    return dict(zip(named, found, strict=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("at_a_time", [1, 3 * 11, 10**6])
def test_slices_are_the_whole(smoothing: float, at_a_time: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(token_loss, "LOGITS_AT_A_TIME", at_a_time)
    torch.manual_seed(0)
    head = torch.nn.Linear(4, 11).double()
    states = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 11, (2, 7))
    targets[0, 1] = targets[1, 6] = -100
    inputs = [states, *head.parameters()]
    losses = cross_entropy_in_slices(head, states, targets, 11, smoothing)
    expected = F.cross_entropy(
        head(states).flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=smoothing
    ).view(2, 7)
    torch.testing.assert_close(losses, expected, **CLOSE)
    weights = torch.randn(2, 7, dtype=torch.float64)
    found, right = (torch.autograd.grad((each * weights).sum(), inputs) for each in (losses, expected))
    torch.testing.assert_close(found, right, **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(cross_entropy_in_slices(head, states, targets, 11, smoothing), expected, **CLOSE)
        torch.testing.assert_close(token_cross_entropy(head(states), targets, smoothing), expected, **CLOSE)


def test_a_call_without_a_target_costs_nothing_and_has_gradients(few_at_a_time: int):
    head, states = torch.nn.Linear(4, VOCAB_SIZE), torch.randn(1, 9, 4)
    losses = cross_entropy_in_slices(head, states, torch.full((1, 9), -100), VOCAB_SIZE)
    assert torch.equal(losses, torch.zeros(1, 9))
    losses.sum().backward()
    assert not head.weight.grad.any()


def test_logits_of_bfloat16_are_not_copied_as_a_whole(few_at_a_time: int):
    logits, targets = torch.randn(2, LENGTH, VOCAB_SIZE, dtype=torch.bfloat16), text_and_targets()[1]
    with torch.no_grad(), Largest(dtype=torch.float32) as largest:
        losses = token_cross_entropy(logits, targets)
    assert largest.numel <= few_at_a_time
    torch.testing.assert_close(losses, naive(logits.float(), targets))


@pytest.mark.parametrize("family", BASES)
def test_heads_of_bases(family: str, few_at_a_time: int):
    """The head is the base's own: its logits are those of the base to the last bit, and the losses and gradients those of
    whole logits; no tensor has a row for each token and a column for each word."""
    base = tiny_base(family, **BASES[family])
    ids, targets = text_and_targets()
    whole = base(ids, use_cache=False).logits
    assert torch.equal(base_head.head_of_base(base)(base.get_decoder()(ids, use_cache=False)[0]), whole)
    with torch.no_grad():
        losses, _ = losses_of_targets(base, ids, targets, use_cache=False)
    torch.testing.assert_close(losses, naive(whole, targets), **CLOSE)


@pytest.mark.parametrize("kind", ["window", "tokens"])
@pytest.mark.parametrize("family", ["gemma2", "granite"])
def test_bases_with_memory_learn_in_slices(family: str, kind: str, few_at_a_time: int):
    fields = {"mem_len": 9} if kind == "window" else {"segment_length": 8, "num_memory_tokens": 3}
    model = add_memory(tiny_base(family, **BASES[family]), kind=kind, **fields).train()
    ids, targets = text_and_targets()
    whole = model(ids).logits
    expected = naive(whole, targets).sum() / (targets != -100).sum()
    with Largest(width=VOCAB_SIZE) as largest:
        output = model(ids, shift_labels=targets, logits_to_keep=1, output_token_losses=True)
        found = gradients(model, output.loss)
    assert 0 < largest.numel < 2 * LENGTH * VOCAB_SIZE
    torch.testing.assert_close(output.loss, expected, **CLOSE)
    torch.testing.assert_close(output.token_losses, naive(whole, targets), **CLOSE)
    torch.testing.assert_close(output.logits, whole[:, -1:], **CLOSE)
    right = gradients(model, expected)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, right[name], **CLOSE, msg=name)
    mems = model(ids).mems.named_tensors()
    assert all(torch.equal(each, mems[name]) for name, each in output.mems.named_tensors().items())


@pytest.mark.parametrize("model_type", one_of_each_kind(models(causal_lm=True)))
def test_our_heads_learn_and_score_in_slices(model_type: str, few_at_a_time: int):
    model = tiny_model(model_type, "causal_lm", vocab_size=VOCAB_SIZE)
    ids, targets = text_and_targets()
    whole = model(ids, shift_labels=targets)
    with torch.no_grad(), Largest(width=VOCAB_SIZE) as largest:
        losses, output = losses_of_targets(model, ids, targets)
    assert 0 < largest.numel < 2 * LENGTH * VOCAB_SIZE
    torch.testing.assert_close(losses, naive(whole.logits, targets).to(losses), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(output.loss, whole.loss, atol=1e-6, rtol=1e-6)
    model.train()
    found = []
    for kept in (0, 1):
        torch.manual_seed(0)
        found.append(gradients(model, model(ids, shift_labels=targets, logits_to_keep=kept).loss))
    for name, gradient in found[1].items():
        torch.testing.assert_close(gradient, found[0][name], atol=1e-6, rtol=1e-5, msg=name)


def test_adapters_of_the_head_learn_too(few_at_a_time: int):
    settings = peft.LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False)
    model = peft.get_peft_model(add_memory(tiny_base("llama"), mem_len=9), settings)
    ids, targets = text_and_targets()
    found = [model(ids, shift_labels=targets, logits_to_keep=kept).loss for kept in (0, 1)]
    torch.testing.assert_close(*found, **CLOSE)
    adapters = [parameter for name, parameter in model.named_parameters() if "lora" in name]
    learned = [torch.autograd.grad(loss, adapters) for loss in found]
    torch.testing.assert_close(*learned, **CLOSE)
    assert all(gradient.any() for gradient in learned[0])


def test_hooks_of_the_base_see_whole_calls_only():
    model, calls = add_memory(tiny_base("llama"), mem_len=9), []
    ids, targets = text_and_targets()
    model(ids)  # measures the shapes of keys
    model.backbone.register_forward_hook(lambda *given: calls.append("base"))
    model.get_decoder().register_forward_hook(lambda *given: calls.append("decoder"))
    model(ids, shift_labels=targets, logits_to_keep=1)
    assert calls == ["decoder"]


def base_whose_decoder_is_no_part_of_it() -> PreTrainedModel:
    base, other = tiny_base("llama"), tiny_base("llama").model
    base.get_decoder = lambda: other
    return base


def test_a_base_that_takes_itself_for_its_decoder():
    """As Llama 4 does."""
    base = tiny_base("llama")
    base.get_decoder = lambda: base
    ids, targets = text_and_targets()
    losses, _ = losses_of_targets(base, ids, targets, use_cache=False)
    torch.testing.assert_close(losses, naive(base(ids).logits, targets), **CLOSE)


def test_a_base_whose_decoder_cannot_be_told_apart_makes_whole_logits():
    base = base_whose_decoder_is_no_part_of_it()
    ids, targets = text_and_targets()
    assert base_head.head_of_base(base) is None
    losses, output = losses_of_targets(base, ids, targets, use_cache=False)
    torch.testing.assert_close(losses, naive(output.logits, targets), **CLOSE)


@pytest.mark.parametrize("around_a_base", [False, True])
def test_a_loss_function_of_ones_own_reads_the_logits_of_all_tokens(around_a_base: bool):
    model = add_memory(tiny_base("llama"), mem_len=9) if around_a_base else tiny_model("transformer_xl", "causal_lm")
    read = []

    def loss_function(logits, shift_labels, **kwargs):
        read.append(tuple(logits.shape[:2]))
        return logits.sum() * 0 + 7

    model.loss_function = loss_function
    ids = tokens(2, 12)
    assert model(ids, labels=ids, logits_to_keep=1).loss == 7
    assert read == [(2, 12)]


@pytest.mark.parametrize("model_type", ["transformer_xl", "vanilla_transformer", "depth_adaptive_transformer"])
def test_labels_are_smoothed_in_training_only(model_type: str):
    """The vanilla and the depth-adaptive Transformer compute their training loss themselves, and left it as it was."""
    model = tiny_model(model_type, "causal_lm")
    ids = tokens(2, 12)
    plain = [model.train(mode)(ids, labels=ids).loss for mode in (False, True)]
    model.label_smoothing = 0.5
    smoothed = [model.train(mode)(ids, labels=ids).loss for mode in (False, True)]
    assert torch.equal(smoothed[0], plain[0])
    assert (smoothed[1] - plain[1]).abs() > 1e-2


@pytest.mark.parametrize("oracle", ["likelihood", "correctness"])
def test_smoothing_leaves_what_halting_learns(oracle: str):
    """The oracle judged layers by smoothed losses."""
    model = tiny_model("depth_adaptive_transformer", "causal_lm", halting="multinomial", halting_oracle=oracle).train()
    ids, grads = tokens(2, 64), []
    for model.label_smoothing in (0.0, 0.5):
        loss = model(ids, labels=ids).loss
        grads.append(torch.autograd.grad(loss, [*model.halting.parameters()]))
    torch.testing.assert_close(*grads, **CLOSE)


@pytest.mark.parametrize("model_type", one_of_each_kind(models(causal_lm=True)))
@pytest.mark.parametrize("side", ["left", "right", "interior"])
def test_padding_predicts_nothing(model_type, side):
    """A row's first token, which no token of it predicts, is not learned from the padding before it."""
    model, ids = tiny_model(model_type, "causal_lm"), tokens(2, 9)
    padding = {"left": slice(0, 3), "right": slice(6, 9), "interior": slice(3, 6)}[side]
    mask = torch.ones_like(ids)
    mask[0, padding] = 0
    loss = model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
    whole, short = model(ids[1:], labels=ids[1:]).loss, ids[:1, mask[0].bool()]
    targets = torch.nn.functional.pad(short[:, 1:], (0, 1), value=-100)
    if side == "interior":
        targets[0, 2] = -100  # what follows it stands after the padding
    alone = model(short, shift_labels=targets).loss * (targets != -100).sum()
    torch.testing.assert_close(loss * (8 + (targets != -100).sum()), whole * 8 + alone, atol=1e-5, rtol=1e-5)
