"""Documents in lanes: each whole and in order in its lane, from an empty memory."""

from itertools import chain

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import default_data_collator

from transformers_xl.data.document_stream import DocumentStream
from transformers_xl.data.text_stream import TextStream

PAD = 999_999


def numbered(lengths: list[int]) -> list[np.ndarray]:
    """Documents whose tokens say where they stand: 1000 x document + position."""
    return [1000 * index + np.arange(length) for index, length in enumerate(lengths)]


def documents_of(stream: DocumentStream) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens and targets of each document, gathered segment by segment from the lanes, as they were read."""
    read: list[list[int]] = []
    targets: list[list[int]] = []
    for lane in range(stream.lanes):
        for index in range(lane, len(stream), stream.lanes):
            item = stream[index]
            real = item["attention_mask"].bool()
            if item["reset"]:
                read.append([])
                targets.append([])
            assert (item["input_ids"][~real] == PAD).all()
            assert (item["shift_labels"][~real] == -100).all()
            assert (item["labels"][~real] == -100).all()
            assert torch.equal(item["labels"][real], item["input_ids"][real])
            if real.any():
                read[-1] += item["input_ids"][real].tolist()
                targets[-1] += item["shift_labels"][real].tolist()
            else:
                assert not item["reset"]
    return read, targets


@settings(max_examples=80)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.integers(1, 4), st.integers(1, 6))
def test_evaluation_reads_every_token_of_every_document_once(lengths: list[int], lanes: int, segment_length: int):
    documents = numbered(lengths)
    real = [document.tolist() for document in documents if len(document)]
    if len(real) < lanes:
        with pytest.raises(ValueError, match="`lanes`"):
            DocumentStream(documents, segment_length, lanes)
        return
    stream = DocumentStream(documents, segment_length, lanes, keep_tail=True, pad_token_id=PAD)
    read, targets = documents_of(stream)
    assert sorted(read) == real
    for tokens, following in zip(read, targets, strict=True):
        assert following == [*tokens[1:], -100]  # nothing is predicted across documents
    assert stream.left_out == 0


@pytest.mark.filterwarnings("ignore:.*left out")
@settings(max_examples=60)
@given(st.lists(st.integers(1, 20), min_size=4, max_size=9), st.integers(1, 4), st.integers(1, 6))
def test_training_ends_with_the_shortest_lane(lengths: list[int], lanes: int, segment_length: int):
    stream = DocumentStream(numbered(lengths), segment_length, lanes, pad_token_id=PAD)
    read, _ = documents_of(stream)
    for tokens in read:  # each from its start, in order, the last of a lane perhaps not to its end
        assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
        assert tokens[0] % 1000 == 0
    assert all(stream[index]["attention_mask"].any() for index in range(len(stream)))
    assert sum(map(len, read)) + stream.left_out == sum(lengths)
    whole = DocumentStream(numbered(lengths), segment_length, lanes, keep_tail=True)
    sizes = [-(-length // segment_length) for length in lengths]
    assert whole.segments - stream.segments <= max(sizes)


def test_lanes_are_about_equally_long_and_in_the_order_given():
    lengths = np.random.default_rng(0).integers(1, 200, 300).tolist()
    stream = DocumentStream(numbered(lengths), 8, lanes=7)
    ends = [int(lane[-1]) for lane in stream.lane_ends]
    assert max(ends) - min(ends) <= 1
    assert all(lane == sorted(lane) for lane in stream.lane_documents)
    assert sorted(chain(*stream.lane_documents)) == list(range(300))


def test_a_warning_says_that_much_is_left_out():
    with pytest.warns(UserWarning, match="80 of 120 tokens"):
        DocumentStream(numbered([100, 20]), 10, lanes=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"documents": [[1, 2]], "segment_length": 0}, "segment_length"),
        ({"documents": [[1, 2]], "segment_length": 2, "lanes": 0}, "lanes"),
        ({"documents": [[1, 2], []], "segment_length": 2, "lanes": 2}, "1 documents that are not empty"),
        ({"documents": [[1, 2], [[3]]], "segment_length": 2}, r"documents\[1\]"),
        ({"documents": [[1.5]], "segment_length": 2}, "integers"),
    ],
)
def test_bad_input_is_refused(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        DocumentStream(**arguments)


def test_items_end():
    stream = DocumentStream(numbered([3]), 2)
    with pytest.raises(IndexError):
        stream[len(stream)]


@pytest.mark.parametrize("model_type", tiny.variants(causal=True, memory=["exact", "own"], causal_lm=True))
def test_a_lane_of_documents_is_each_document_alone(model_type: str):
    """Padding, resets and rows that have run out change nothing: the sum of nats is that of the documents read by one."""
    model = tiny.tiny_model(model_type, head="causal_lm")
    documents = [tiny.tokens(1, length, seed=length)[0] for length in (9, 4, 17, 6, 1)]
    stream = DocumentStream(documents, segment_length=6, lanes=2, keep_tail=True)
    nats, memory = 0.0, {}
    with torch.no_grad():
        for batch in DataLoader(stream, batch_size=2, collate_fn=default_data_collator):
            targets = batch.pop("shift_labels")
            del batch["labels"]
            output = model(**batch, **memory)
            memory = tiny.memory_of(output)
            nats += F.cross_entropy(output.logits.transpose(1, 2), targets, reduction="sum")
        expected = 0.0
        for document in documents:
            pieces = [6] * (len(document) // 6) + ([len(document) % 6] if len(document) % 6 else [])
            logits, _ = tiny.read(model, document[None], pieces)
            expected += F.cross_entropy(logits[0, :-1], document[1:], reduction="sum")
    torch.testing.assert_close(nats, expected, **tiny.EXACT)


@pytest.mark.filterwarnings("ignore:.*left out")
def test_identity_names_what_changed():
    documents = numbered([5, 9, 6])
    stream = DocumentStream(documents, 4, 2)
    identity = stream.identity
    assert set(identity) == {"text", "lanes", "segment_length", "documents", "keep_tail"}
    assert identity == DocumentStream([row.astype(np.int32) for row in documents], 4, 2).identity
    others = {
        "text": DocumentStream([documents[0] + 1, *documents[1:]], 4, 2),
        "lanes": DocumentStream(documents, 4, 1),
        "segment_length": DocumentStream(documents, 3, 2),
        "documents": DocumentStream(
            [np.concatenate(documents)[:7], np.concatenate(documents)[7:14], documents[2]], 4, 2
        ),
        "keep_tail": DocumentStream(documents, 4, 2, keep_tail=True),
    }
    for field, other in others.items():
        assert [name for name in identity if identity[name] != other.identity[name]] == [field]


def test_identity_of_a_text_names_what_changed():
    text = np.arange(40)
    identity = TextStream(text, 4, 2).identity
    assert identity == TextStream(torch.arange(40), 4, 2).identity
    others = {
        "text": TextStream(text[::-1], 4, 2),
        "lanes": TextStream(text, 4, 3),
        "segment_length": TextStream(text, 5, 2),
        "keep_tail": TextStream(text, 4, 2, keep_tail=True),
    }
    for field, other in others.items():
        assert [name for name in identity if identity[name] != other.identity[name]] == [field]
    assert identity["documents"] != DocumentStream([text], 4, 1).identity["documents"]
