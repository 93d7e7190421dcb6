"""What each token of each document costs, against each document alone, read by a loop written by hand."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import set_seed

from transformers_xl import GTrXLConfig, GTrXLForCausalLM, TransformerXLConfig, TransformerXLForCausalLM
from transformers_xl.data.document_stream import DocumentStream
from transformers_xl.evaluation.bits_per_byte import stream_losses
from transformers_xl.evaluation.document_losses import document_losses

VOCAB, SEGMENT = 23, 6
LENGTHS = [17, 1, 6, 40, 7, 2, 12]
FIELDS = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "segment_length": SEGMENT,
    "initializer_range": 0.3,
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> TransformerXLForCausalLM:
    set_seed(0)
    return TransformerXLForCausalLM(TransformerXLConfig(**FIELDS, mem_len=9))


def documents() -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.integers(1, VOCAB, length) for length in LENGTHS]


@torch.no_grad()
def by_hand(model, ids: np.ndarray, beginning: list[int], memory: bool) -> np.ndarray:
    """Nats of the tokens of a document, which is read alone; without memory each segment begins with `beginning`."""
    tokens, mems, nats = torch.from_numpy(ids)[None], None, [float("nan")] * (not beginning)
    step, start = SEGMENT - len(beginning), 0
    while start < len(ids):
        begins = beginning if start == 0 or not memory else []
        size = SEGMENT - len(begins) if memory else step
        read = torch.cat([torch.tensor([begins], dtype=torch.long), tokens[:, start : start + size]], dim=1)
        outputs = model.eval()(read, mems=mems if memory else None)
        mems = outputs.mems
        targets = tokens[0, start + (0 if begins and start == 0 else 1) : start + size + 1]
        logits = outputs.logits[0, max(0, len(begins) - 1) if start == 0 else len(begins) :]
        nats += F.cross_entropy(logits[: len(targets)], targets, reduction="none").tolist()
        start += size
    return np.array(nats)


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("beginning", [[], [0]])
@pytest.mark.parametrize("lanes", [1, 3, 7])
def test_each_document_costs_what_it_costs_alone(model, memory, beginning, lanes):
    found = document_losses(model, documents(), lanes=lanes, memory=memory, beginning=beginning)
    assert [len(nats) for nats in found] == LENGTHS
    for ids, nats in zip(documents(), found, strict=True):
        np.testing.assert_allclose(nats, by_hand(model, ids, beginning, memory), rtol=1e-5)


def test_a_model_without_memory_reads_segments():
    set_seed(0)
    model = GTrXLForCausalLM(GTrXLConfig(**FIELDS, mem_len=0, same_length=False))
    for ids, nats in zip(documents(), document_losses(model, documents(), lanes=2, beginning=[0]), strict=True):
        np.testing.assert_allclose(nats, by_hand(model, ids, [0], False), rtol=1e-5)


def test_a_beginning_that_is_there_is_read_once(model):
    ids = documents()[0]
    (nats,) = document_losses(model, [[0, *ids]], beginning=[0])
    np.testing.assert_allclose(nats, document_losses(model, [ids], beginning=[0])[0])


def test_refusals(model):
    with pytest.raises(ValueError, match=r"`documents\[1\]` is empty"):
        document_losses(model, [[1, 2], []])
    with pytest.raises(ValueError, match=r"`documents\[0\]` is empty"):
        document_losses(model, [[0], [1, 2]], beginning=[0])
    with pytest.raises(ValueError, match="fewer lanes"):
        document_losses(model, [[1, 2]], lanes=2)


def test_weights_that_are_no_numbers_are_refused(model):
    broken = TransformerXLForCausalLM(model.config)
    torch.nn.init.constant_(broken.model.embed_tokens.weight, float("nan"))
    with pytest.raises(ValueError, match="unusable"):
        document_losses(broken, documents())


def test_a_segment_far_longer_than_the_documents_reads_no_padding(model):
    read = []
    hook = model.register_forward_pre_hook(lambda _, args, kwargs: read.append(args[0].shape), with_kwargs=True)
    long = document_losses(model, documents(), 100_000, lanes=2)
    hook.remove()
    assert max(width for _, width in read) <= max(map(len, documents()))
    for one, other in zip(long, document_losses(model, documents(), max(map(len, documents())), lanes=2), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_whoever_stops_in_between_is_left_as_before(model):
    model.train()
    losses = stream_losses(model, DocumentStream(documents(), SEGMENT, 2, keep_tail=True))
    next(losses)
    assert not torch.is_inference_mode_enabled()
    losses.close()
    assert model.training
