"""Perturbed contexts, read one by one by hand, and by a model that knows what it sees."""

import numpy as np
import pytest
import torch
from tiny import tiny_config
from transformers import GPT2Config, GPT2LMHeadModel

from transformers_xl import TransformerXLForCausalLM
from transformers_xl.evaluation import distant_context as module
from transformers_xl.evaluation.distant_context import KINDS, distant_context

IDS = np.random.default_rng(0).integers(0, 37, 120)
PLACES, CONTEXT = np.array([30, 57, 80, 119]), 20


def xl(**fields) -> TransformerXLForCausalLM:
    torch.manual_seed(0)
    return TransformerXLForCausalLM(tiny_config("transformer_xl", **fields)).double().eval()


def nats(model, context: list[int], token: int) -> float:
    with torch.no_grad():
        return -model(torch.tensor([context])).logits[0, -1].log_softmax(-1)[token].item()


def test_losses_are_those_of_the_windows_one_by_one(monkeypatch: pytest.MonkeyPatch):
    """With perturbations that leave nothing to chance."""
    backwards = lambda text, start, stop, generator: text[start:stop][::-1]  # noqa: E731
    first = lambda text, start, stop, generator: text[: stop - start]  # noqa: E731
    monkeypatch.setattr(module, "PERTURBATIONS", {"shuffle": backwards, "replace": first})
    model, text = xl(mem_len=64), IDS.tolist()
    found = distant_context(model, IDS, [3, 19], CONTEXT, PLACES, batch_size=3)
    for index, place in enumerate(PLACES):
        context, token = text[place - CONTEXT : place], text[place]
        assert found.whole[index] == pytest.approx(nats(model, context, token))
        for distance in (3, 19):
            far, near = context[:-distance], context[-distance:]
            windows = {"drop": near, "shuffle": far[::-1] + near, "replace": text[: len(far)] + near}
            for kind in KINDS:
                assert found.perturbed[kind][distance][index] == pytest.approx(nats(model, windows[kind], token))


def test_what_a_model_does_not_see_adds_nothing():
    model = xl(mem_len=4, num_hidden_layers=1)  # sees 4 tokens
    found = distant_context(model, IDS, [2, 4, 8], CONTEXT, PLACES)
    for kind in KINDS:
        assert found.added(kind, 2)[0] != 0
        assert found.added(kind, 4) == pytest.approx((0, 0), abs=1e-12)
        assert found.added(kind, 8) == pytest.approx((0, 0), abs=1e-12)


def test_shuffled_and_replaced_text_is_what_it_says():
    generator = np.random.default_rng(0)
    text = np.arange(50)
    shuffled = module.shuffle(text, 10, 30, generator)
    assert sorted(shuffled) == list(range(10, 30)) != list(shuffled)
    for _ in range(20):
        other = module.replace(text, 10, 25, generator)
        assert list(other) == list(range(other[0], other[0] + 15))
        assert other[0] >= 25  # the 10 tokens before are too few
    assert list(module.replace(text, 0, 50, generator)) == list(range(50))  # there is no other text


def test_the_same_seed_is_the_same_perturbation():
    model = xl(mem_len=64)
    one, again, other = (distant_context(model, IDS, [5], CONTEXT, PLACES, seed=seed) for seed in (0, 0, 1))
    for kind in ("shuffle", "replace"):
        assert (one.perturbed[kind][5] == again.perturbed[kind][5]).all()
        assert (one.perturbed[kind][5] != other.perturbed[kind][5]).any()


def test_what_cannot_be_read_is_refused():
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=37, n_positions=16, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(ValueError, match="`context`=20 is more than the 16 tokens"):
        distant_context(gpt2, IDS, [5], CONTEXT, PLACES)
    for distances in ([], [0], [20]):
        with pytest.raises(ValueError, match=r"`distances`=.*1\.\.19"):
            distant_context(gpt2, IDS, distances, CONTEXT, PLACES)
