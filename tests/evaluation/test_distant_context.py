"""Perturbed contexts, read one by one by hand, and by a model that knows what it sees."""

import re
import sys
from itertools import permutations

import numpy as np
import pytest
import torch
from tiny import tiny_config
from transformers import GPT2Config, GPT2LMHeadModel

from transformers_xl import ByteTokenizer, TransformerXLForCausalLM
from transformers_xl.data.word_starts import word_starts
from transformers_xl.evaluation import distant_context as module
from transformers_xl.evaluation.distant_context import KINDS, distant_context
from transformers_xl.runs import context_runs
from transformers_xl.runs.distant_options import DistantOptions

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
    backwards = lambda text, words, start, stop, generator: text[start:stop][::-1]  # noqa: E731
    first = lambda text, words, start, stop, generator: text[: stop - start]  # noqa: E731
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
    text, words = np.arange(50), np.ones(50, dtype=bool)
    shuffled = module.shuffle(text, words, 10, 30, generator)
    assert sorted(shuffled) == list(range(10, 30)) != list(shuffled)
    for _ in range(20):
        other = module.replace(text, words, 10, 25, generator)
        assert list(other) == list(range(other[0], other[0] + 15))
        assert other[0] >= 25  # the 10 tokens before are too few
    assert list(module.replace(text, words, 0, 50, generator)) == list(range(50))  # there is no other text


@pytest.mark.parametrize(("stop", "stays"), [(13, ""), (15, "lo"), (11, "ja")])
def test_words_are_shuffled_whole(stop, stays):
    """But that which reaches into the near part: it stays where it is."""
    text = "a bb ccc jay loud end"
    ids = np.array(ByteTokenizer().encode_bytes(text.encode()))
    words = word_starts(ids, ByteTokenizer())
    found = {
        bytes(module.shuffle(ids, words, 1, stop, np.random.default_rng(seed)).astype(np.uint8)).decode()
        for seed in range(40)
    }
    far = text[1 : stop - len(stays)]
    whole = {"".join(order) for order in permutations(re.findall(r"\S+ ?|^ ", far))}
    assert found <= {each + stays for each in whole}
    assert len(found) > 1


def test_the_words_of_a_text_are_those_of_its_tokenizer(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(context_runs, "distant_context", lambda *args: asked.append(args) or sys.exit())
    model = xl(vocab_size=259).float()
    model.save_pretrained(tmp_path)
    ByteTokenizer().save_pretrained(tmp_path)
    (tmp_path / "text.txt").write_text("one  two\nthree " * 20)
    with pytest.raises(SystemExit):
        context_runs.measure_distant_context(
            {"model": tmp_path}, [tmp_path / "text.txt"], [4], DistantOptions(context=8, positions=4), False
        )
    assert np.flatnonzero(asked[0][-1])[:6].tolist() == [0, 5, 9, 15, 20, 24]


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
    with pytest.raises(ValueError, match=r"`words` \(119,\) must be as long as `ids` \(120,\)"):
        distant_context(xl(), IDS, [5], CONTEXT, PLACES, words=np.ones(119))
    for distances in ([], [0], [20]):
        with pytest.raises(ValueError, match=r"`distances`=.*1\.\.19"):
            distant_context(gpt2, IDS, distances, CONTEXT, PLACES)
