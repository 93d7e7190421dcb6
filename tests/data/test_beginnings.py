"""What a text begins with, in streams: at every start of a memory, once, never a target, and nothing else is changed."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transformers_xl.data.document_stream import DocumentStream
from transformers_xl.data.identity import check_identity
from transformers_xl.data.streaming_text import StreamingText
from transformers_xl.data.text_stream import TextStream

BEGINNINGS = ([900], [900, 901])
beginnings, memories, few = st.sampled_from(BEGINNINGS), st.booleans(), st.integers(1, 3)


def items_of(stream) -> list[dict]:
    return list(stream) if isinstance(stream, StreamingText) else [stream[index] for index in range(len(stream))]


def read(item: dict, beginning: list[int], begins: bool, overlap: int = 0) -> list[tuple[int, int]]:
    """Each token of a segment, with its target: of a beginning, which is checked, the last."""
    real = item["attention_mask"].bool() if "attention_mask" in item else torch.ones_like(item["input_ids"]).bool()
    ids, targets, labels = (item[name][real].tolist() for name in ("input_ids", "shift_labels", "labels"))
    assert (item["shift_labels"][~real] == -100).all()
    assert (item["labels"][~real] == -100).all()
    size = len(beginning) if begins and ids else 0
    assert ids[:size] == beginning[:size]
    assert not set(beginning) & {*ids[size:], *targets, *labels}
    if np.array_equal(ids[size + 1 :], np.array(ids[size:-1]) + 1):  # no lane comes round here
        assert labels[1:] == targets[:-1]  # those who shift `labels` themselves learn the same
    assert set(targets[: max(0, size - 1)]) <= {-100}
    assert set(targets[size : size + overlap]) <= {-100}
    return list(zip(ids[max(0, size - 1) :], targets[max(0, size - 1) :], strict=True))


@settings(max_examples=80)
@given(beginnings, memories, few, st.integers(1, 7), st.integers(0, 3), st.integers(0, 60), st.booleans())
def test_lanes(beginning, memory, lanes, room, overlap, surplus, keep_tail):
    segment_length = len(beginning) + overlap + room
    ids = np.arange(lanes * segment_length + 1 + surplus)
    options = {"keep_tail": keep_tail, "overlap": overlap, "beginning": beginning, "memory": memory}
    stream = TextStream(ids, segment_length, lanes, **options)
    predicted, tokens = [], []
    for index, item in enumerate(items_of(stream)):
        first = index < lanes
        assert len(item["input_ids"]) == segment_length
        pairs = read(item, beginning, first or not memory, 0 if first else overlap)
        tokens += [token for token, target in pairs if token < 900]
        predicted += [target for _, target in pairs if target != -100]
        for token, target in pairs:
            before = (
                token + 1 if token < 900 else 0
            )  # the beginning predicts the first token of the text, and nothing else
            assert target in (-100, before)
            assert target != -100 or token >= 900 or token == ids[-1] or overlap
    assert len(set(predicted)) == len(predicted)
    assert len(set(tokens)) == len(tokens) or overlap
    assert 0 in predicted
    if keep_tail:
        assert sorted(predicted) == ids.tolist()  # also the first
        assert set(tokens) == set(ids.tolist())
    else:
        assert len(predicted) >= lanes * room


@pytest.mark.parametrize("cut", [{"vary_lengths": True}, {"roll": True}, {"roll": True, "vary_lengths": True}])
@pytest.mark.parametrize("memory", [True, False])
def test_lanes_that_are_cut_or_begin_elsewhere(cut: dict, memory: bool):
    stream = TextStream(np.arange(800), 20, 3, beginning=[900], memory=memory, **cut)
    for epoch in (0, 1):
        stream.set_epoch(epoch)
        tokens = []
        for index, item in enumerate(items_of(stream)):
            assert len(item["input_ids"]) <= 20
            pairs = read(item, [900], index < 3 or not memory)
            tokens += [token for token, _ in pairs if token < 900]
            assert all(target == token + 1 for token, target in pairs if token < 900)
            assert all(target in (-100, 0) for token, target in pairs if token >= 900)
        assert len(set(tokens)) == len(tokens) > 800 - 1 - 3 * 20


@pytest.mark.filterwarnings("ignore:.*tokens are left out")
@settings(max_examples=80)
@given(
    st.lists(st.integers(0, 12), max_size=9),
    beginnings,
    memories,
    few,
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)
def test_documents(lengths, beginning, memory, lanes, room, keep_tail, begun):
    """As rows that are held, and as a source that is read on."""
    texts = [list(range(20 * place, 20 * place + length)) for place, length in enumerate(lengths)]
    given = [beginning * begun + row for row in texts]  # with it or without: it is read once
    options = {"keep_tail": keep_tail, "beginning": beginning, "memory": memory}
    streams = [StreamingText(given, len(beginning) + room, lanes, **options)]
    if sum(map(bool, texts)) >= lanes:
        streams.append(DocumentStream(given, len(beginning) + room, lanes, **options))
    if not keep_tail and sum(map(bool, texts)) < lanes:
        with pytest.raises(ValueError, match="too little text"):
            items_of(streams[0])
        return
    for stream in streams:
        check_documents(items_of(stream), [row for row in texts if row], beginning, memory, lanes, keep_tail)


def check_documents(items, texts, beginning, memory, lanes, keep_tail):
    left: list[list[int]] = [[] for _ in range(lanes)]
    done = []
    for index, item in enumerate(items):
        reset = bool(item["reset"])
        for token, target in read(item, beginning, reset or not memory):
            if token >= 900:
                assert (target == -100) is not reset or target in {row[0] for row in texts}
                continue
            row = next(row for row in texts if token in row)
            assert target == (token + 1 if token != row[-1] else -100)
            done.append(token)
            left[index % lanes].append(token)
        assert not reset or item["shift_labels"][len(beginning) - 1] % 20 == 0  # the first token is a target
    assert len(set(done)) == len(done)
    for lane in left:  # documents from their first token on
        assert all(token % 20 == 0 or token == before + 1 for before, token in zip([-2, *lane], lane, strict=False))
    if keep_tail:
        assert sorted(done) == [token for row in texts for token in row]


def test_segments_by_hand():
    def rows(stream, name):
        return [item[name].tolist() for item in items_of(stream)]

    text = TextStream(np.arange(10, 17), 4, 1, keep_tail=True, beginning=[9], pad_token_id=0)
    assert rows(text, "input_ids") == [[9, 10, 11, 12], [13, 14, 15, 16]]
    assert rows(text, "shift_labels") == [[10, 11, 12, 13], [14, 15, 16, -100]]
    assert rows(text, "labels") == [[-100, 10, 11, 12], [13, 14, 15, 16]]
    alone = text.without_memory()
    assert rows(alone, "input_ids") == [[9, 10, 11, 12], [9, 13, 14, 15], [9, 16, 0, 0]]
    assert rows(alone, "shift_labels") == [[10, 11, 12, 13], [-100, 14, 15, 16], [-100] * 4]
    assert rows(alone, "labels") == [[-100, 10, 11, 12], [-100, -100, 14, 15], [-100] * 4]
    lanes = TextStream(np.arange(10, 17), 4, 2, beginning=[9])
    assert rows(lanes, "input_ids") == [[9, 10, 11, 12], [9, 13, 14, 15]]
    assert rows(lanes, "shift_labels") == [[10, 11, 12, 13], [-100, 14, 15, 16]]
    documents = DocumentStream([[10, 11, 12, 13, 14]], 4, keep_tail=True, beginning=[9])
    assert rows(documents, "input_ids") == [[9, 10, 11, 12], [13, 14, 0, 0]]
    assert rows(documents, "shift_labels") == [[10, 11, 12, 13], [14, -100, -100, -100]]
    assert rows(documents.without_memory(), "input_ids") == [[9, 10, 11, 12], [9, 13, 14, 0]]
    one = TextStream([10], 2, keep_tail=True, beginning=[9])  # a single token can be predicted
    assert rows(one, "shift_labels") == [[10, -100]]


def test_documents_end_to_end_are_one_text():
    """Only a lane begins: in mid-text stands what the documents hold themselves."""
    documents = [[9, 10, 11, 12], [9, 13, 14], [15, 16, 17, 18, 19]]
    stream = StreamingText(documents, 4, documents=False, beginning=[9], keep_tail=True)
    read = [item["input_ids"][item["attention_mask"].bool()].tolist() for item in items_of(stream)]
    assert read == [[9, 10, 11, 12], [9, 13, 14, 15], [16, 17, 18, 19]]


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("documents", [True, False])
def test_a_stream_is_resumed_bit_for_bit(documents: bool, memory: bool):
    texts = [list(range(20 * place, 20 * place + 3 + 7 * place % 11)) for place in range(12)]

    def stream():
        return StreamingText(texts, 5, 2, documents, keep_tail=True, beginning=[900], memory=memory)

    whole, begun = items_of(stream()), stream()
    reading = iter(begun)
    for _ in range(2 * 3):
        next(reading)
    resumed = stream()
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict(3))))
    for item, expected in zip(resumed, whole[6:], strict=True):
        assert all(torch.equal(item[name], expected[name]) for name in expected)


def test_the_identity_tells_beginnings_apart():
    ids, rows = np.arange(40), [list(range(9)), list(range(7))]

    def identities(**options):
        streams = (
            TextStream(ids, 6, **options),
            DocumentStream(rows, 6, **options),
            StreamingText(rows, 6, **options),
        )
        return [stream.identity for stream in streams]

    assert all("beginning" not in identity for identity in identities(memory=False))  # as before there were any
    for memory, where in ((True, "reset"), (False, "segment")):
        found = identities(beginning=[9, 8], memory=memory)
        assert [identity["beginning"] for identity in found] == [f"9, 8 at every {where}"] * 3
        with pytest.raises(
            ValueError, match=f"`beginning`='9, 8 at every {where}' is not that of the checkpoint, None"
        ):
            check_identity(TextStream(ids, 6).identity, found[0])


@pytest.mark.parametrize("stream_class", [TextStream, DocumentStream, StreamingText])
def test_what_leaves_no_room_is_refused(stream_class):
    source = np.arange(40) if stream_class is TextStream else [[1, 2, 3]]
    with pytest.raises(ValueError, match="`segment_length`=2 leaves no token beside the 2 of `beginning`"):
        stream_class(source, 2, beginning=[9, 8])
    with pytest.raises(ValueError, match=r"`beginning` has shape \(1,\) and dtype float64"):
        stream_class(source, 4, beginning=[0.5])
    with pytest.raises(ValueError, match="the 4 of `beginning` and `overlap`"):
        TextStream(np.arange(40), 4, overlap=3, beginning=[9])
