"""How models of a comparison read: the same bytes, a memory or state carried, documents each from its beginning."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from transformers_xl.runs.comparison_models import ComparedModel
from transformers_xl.runs.comparison_plan import plan_of
from transformers_xl.runs.comparison_reading import BlockReading, MemoryReading, StateReading

SEGMENT, MEMORY, LANES = 4, 8, 5
MODELS = {
    "transformer_xl": {},
    "lstm": {},
    "twin": {"type": "transformer_xl", "mem_len": 0},
    "twin_segment": {"type": "transformer_xl", "mem_len": 0, "block": SEGMENT},
    "gpt2": {},
    "mistral": {},
    "mamba2": {},
    "mamba2_carried": {"type": "mamba2", "carry": True},
}
PLAN = plan_of(
    {
        "texts": {"train": "-", "validation": "-", "test": "-"},
        "models": MODELS,
        "reference": "gpt2",
        "hidden_size": 16,
        "layers": 2,
        "heads": 2,
        "mem_len": MEMORY,
        "segment_length": SEGMENT,
        "batch_size": LANES,
        "parameters": 30_000,
    }
)
IDS = np.random.default_rng(0).integers(0, 256, 203)
DOCUMENTS = [IDS[:30], IDS[40:43], IDS[50:52], IDS[60:90], IDS[100:113]]


@pytest.fixture(scope="module")
def models() -> dict:
    return {name: ComparedModel(name, PLAN) for name in MODELS}


def test_who_reads_how(models):
    ways = {name: (type(model.reading), model.reading.block) for name, model in models.items()}
    assert ways == {
        "transformer_xl": (MemoryReading, SEGMENT),
        "lstm": (MemoryReading, SEGMENT),
        "twin": (BlockReading, SEGMENT + MEMORY),
        "twin_segment": (BlockReading, SEGMENT),
        "gpt2": (BlockReading, SEGMENT + MEMORY),
        "mistral": (BlockReading, SEGMENT + MEMORY),
        "mamba2": (BlockReading, SEGMENT + MEMORY),
        "mamba2_carried": (StateReading, SEGMENT),
    }


@pytest.mark.parametrize("block", [SEGMENT, 3 * SEGMENT])
def test_all_read_the_same_bytes_and_predict_all_of_them(block: int):
    """After as many steps as a block has segments, every byte of that block of every lane was a target once."""
    reading, parts, length = BlockReading(block, SEGMENT), block // SEGMENT, (len(IDS) - 1) // LANES
    batches = list(itertools.islice(reading.batches(IDS, LANES), 3 * parts))
    for number in range(3):
        here = batches[number * parts : (number + 1) * parts]
        columns = np.arange(LANES)[:, None] * length + number * block + np.arange(block)
        assert np.array_equal(np.concatenate([inputs for inputs, _, _ in here]), IDS[columns])
        assert np.array_equal(np.concatenate([targets for _, targets, _ in here]), IDS[columns + 1])
        assert all(begins == (number == 0) for _, _, begins in here)


def test_a_text_that_ends_begins_again():
    reading, blocks = MemoryReading(SEGMENT, SEGMENT), (len(IDS) - 1) // LANES // SEGMENT
    batches = list(itertools.islice(reading.batches(IDS, LANES), 2 * blocks))
    assert [begins for _, _, begins in batches] == ([True] + [False] * (blocks - 1)) * 2
    assert batches[0][0].equal(batches[blocks][0])


@pytest.mark.parametrize(("tokens", "block", "lanes"), [(10, 12, 3), (400, 12, 2)])
def test_what_is_too_short_for_blocks_is_refused(tokens: int, block: int, lanes: int):
    with pytest.raises(ValueError, match="texts.train"):
        next(BlockReading(block, SEGMENT).batches(IDS[:1].repeat(tokens), lanes))


def nats_by_hand(model, ids: np.ndarray, first: int) -> float:
    """Of the tokens of one row from `first` on, each predicted by all before it in the row."""
    tokens = torch.from_numpy(ids)[None]
    with torch.no_grad():
        logits = model(tokens[:, :-1], use_cache=False).logits[0]
    return float(F.cross_entropy(logits[first - 1 :], tokens[0, first:], reduction="sum"))


@pytest.mark.parametrize("name", MODELS)
def test_documents_by_hand(models, name: str):
    """Each document alone, without padding or cache: whole where something is carried, in windows where not."""
    model = models[name].build(0, 0.1).eval()
    found = models[name].reading.document_nats(model, DOCUMENTS)
    block = models[name].reading.block
    new = min(SEGMENT, block // 2)
    for document, nats in zip(DOCUMENTS, found, strict=True):
        expected = 0.0
        if models[name].reading.__class__ is BlockReading:
            expected += nats_by_hand(model, document[: block + 1], 1)
            for at in range(block, len(document) - 1, new):  # inputs from `at` on are new
                expected += nats_by_hand(model, document[at + new - block : at + new + 1], block - new + 1)
        else:
            expected += nats_by_hand(model, document, 1)
        assert nats == pytest.approx(expected, rel=1e-4), len(document)


@pytest.mark.parametrize("name", ["transformer_xl", "lstm", "mamba2_carried"])
def test_training_carries_what_was_read(models, name: str):
    """The second segment's loss is that of a text that contains both, and no gradient reaches the first."""
    model, reading = models[name].build(0, 0.1), models[name].reading
    ids, targets = (torch.from_numpy(IDS[at : at + 2 * SEGMENT])[None] for at in (0, 1))
    _, state = reading.loss(model, ids[:, :SEGMENT], targets[:, :SEGMENT], None)
    loss, _ = reading.loss(model, ids[:, SEGMENT:], targets[:, SEGMENT:], state)
    logits = model(ids, use_cache=False).logits[0, SEGMENT:]
    assert loss.item() == pytest.approx(F.cross_entropy(logits, targets[0, SEGMENT:]).item(), rel=1e-5)
    loss.backward()
    gradient = model.get_input_embeddings().weight.grad
    before = [each for each in ids[0, :SEGMENT].tolist() if each not in ids[0, SEGMENT:].tolist()]
    # where the head is tied, every row has a gradient as an output: less than that of one that was read
    own = gradient[ids[0, SEGMENT:]].norm(dim=-1).min()
    assert gradient[before].norm(dim=-1).max() < own / 2


@pytest.mark.parametrize("name", ["twin", "gpt2", "mistral", "mamba2"])
def test_blocks_predict_all_of_their_tokens(models, name: str):
    model, reading = models[name].build(0, 0.1), models[name].reading
    ids, targets, _ = next(reading.batches(IDS, LANES))
    loss, state = reading.loss(model, ids, targets, None)
    logits = model(ids, use_cache=False).logits
    assert loss.item() == pytest.approx(F.cross_entropy(logits.flatten(0, 1), targets.flatten()).item(), rel=1e-5)
    assert state is None
