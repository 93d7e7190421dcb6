"""A text that is read on as it is needed: lanes, ends, and a position to come back to."""

import json
from itertools import chain, takewhile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optional_packages import needs
from torch.utils.data import DataLoader

from transformers_xl import ByteTokenizer
from transformers_xl.data.documents import tokenize_dataset
from transformers_xl.data.streaming_text import StreamingText

datasets = needs("datasets")
LENGTHS = [5, 0, 3, 11, 8, 1, 4, 7, 2, 9, 6]
TEXTS = ["one two three", "", "four", "a text that is longer than the others, and than its segments", "five", "six"]


def numbered(lengths: list[int] = LENGTHS) -> list[list[int]]:
    return [list(range(1000 * index, 1000 * index + length)) for index, length in enumerate(lengths)]


def by_hand(documents: list[list[int]], segment_length: int, lanes: int) -> list[list[list[int]]]:
    """The segments of each step, lane by lane, for documents that begin at segment starts and are read to the end."""
    waiting, rows, steps = [row for row in documents if row], [[] for _ in range(lanes)], []
    while True:
        for lane in range(lanes):
            if not rows[lane] and waiting:
                rows[lane] = waiting.pop(0)
        if not any(rows):
            return steps
        steps.append([row[:segment_length] for row in rows])
        rows = [row[segment_length:] for row in rows]


def real(item: dict) -> list[int]:
    return item["input_ids"][item["attention_mask"].bool()].tolist()


def steps_of(stream: StreamingText) -> list[dict]:
    """All items of a stream for training: none where it is refused, which it is without a first step."""
    try:
        return list(stream)
    except ValueError:
        return []


def test_a_text_that_is_too_short_for_a_step_is_refused_with_the_lanes():
    with pytest.raises(ValueError, match="`source` has 2 documents, too little text for `lanes`=3.*needs a document"):
        next(iter(StreamingText(numbered([4, 4]), 3, lanes=3)))
    with pytest.raises(ValueError, match="`lanes`=2, each of which needs 4 tokens"):
        next(iter(StreamingText(numbered([4, 3]), 3, lanes=2, documents=False)))
    assert not list(StreamingText([], 3, lanes=2, keep_tail=True))


@settings(max_examples=60)
@given(st.lists(st.integers(0, 12), max_size=9), st.integers(1, 4), st.integers(1, 5))
def test_documents_are_read_as_by_hand(lengths: list[int], lanes: int, segment_length: int):
    documents = numbered(lengths)
    expected = by_hand(documents, segment_length, lanes)
    items = list(StreamingText(documents, segment_length, lanes, keep_tail=True))
    assert [real(item) for item in items] == list(chain(*expected))
    for item in items:
        tokens, targets = real(item), item["shift_labels"].tolist()
        assert item["reset"].item() == bool(tokens and tokens[0] % 1000 == 0)
        following = tokens[-1] + 1 if tokens else -100
        if tokens and following % 1000 == lengths[tokens[-1] // 1000]:
            following = -100  # its document ends here
        assert targets == [*tokens[1:], following, *[-100] * segment_length][:segment_length]
    # in training the stream ends with the first lane that has nothing: no row is all padding
    full = list(takewhile(all, expected))
    assert [real(item) for item in steps_of(StreamingText(documents, segment_length, lanes))] == list(chain(*full))


@settings(max_examples=60)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=9), st.integers(1, 3), st.integers(1, 5))
def test_endless_lanes_put_documents_end_to_end(lengths: list[int], lanes: int, segment_length: int):
    documents = numbered(lengths)
    stream = StreamingText(documents, segment_length, lanes, documents=False, keep_tail=True)
    items = list(stream)
    text = []
    for lane in range(lanes):
        mine = items[lane::lanes]
        tokens, targets = list(chain(*map(real, mine))), []
        for item in mine:
            targets += item["shift_labels"][item["attention_mask"].bool()].tolist()
        assert targets == tokens[1:] + [-100] * bool(tokens)  # across segments and documents
        assert [item["reset"].item() for item in mine] == [index == 0 and bool(tokens) for index in range(len(mine))]
        text += tokens
    assert sorted(text) == sorted(chain(*documents))
    full = steps_of(StreamingText(documents, segment_length, lanes, documents=False))
    assert len(full) % lanes == 0
    assert all(item["attention_mask"].all() and (item["shift_labels"] != -100).all() for item in full)
    assert [real(item) for item in full] == [real(item) for item in items[: len(full)]]


def source(kind: str):
    """What documents may come from: rows that know no position, and a stream of `datasets`."""
    if kind == "datasets":
        table = datasets.Dataset.from_dict({"text": TEXTS * 3, "other": list(range(18))})
        return tokenize_dataset(table.to_iterable_dataset(num_shards=3), ByteTokenizer())
    return [[*text.encode()] for text in TEXTS * 3]


@pytest.mark.parametrize("kind", ["list", "datasets"])
@pytest.mark.parametrize("documents", [True, False])
def test_a_position_is_come_back_to(kind: str, documents: bool):
    """In a new object, through JSON."""
    whole = list(StreamingText(source(kind), 6, 2, documents=documents, keep_tail=True))
    for stop in range(0, len(whole), 2 if kind == "list" else 6):
        stream = StreamingText(source(kind), 6, 2, documents=documents, keep_tail=True)
        for index, _ in enumerate(stream if stop else (), 1):
            if index == stop:
                break
        state = json.loads(json.dumps(stream.state_dict())) if stop else None
        again = StreamingText(source(kind), 6, 2, documents=documents, keep_tail=True)
        if state:
            assert state["step"] == stop // 2
            again.load_state_dict(state)
            assert again.state_dict() == state  # also before anything was read
        rest = list(again)
        assert len(rest) == len(whole) - stop
        for ours, theirs in zip(rest, whole[stop:], strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        # the iteration after it begins afresh
        assert len(list(again)) == len(whole)


def test_the_beginning_is_a_position():
    stream = StreamingText(numbered(), 3, 2)
    again = StreamingText(numbered(), 3, 2)
    again.load_state_dict(stream.state_dict())
    assert [real(item) for item in again] == [real(item) for item in stream]


def test_a_position_that_a_loader_has_read_past():
    stream = StreamingText(numbered(), 3, 2, keep_tail=True)
    items = iter(stream)
    for _ in range(5 * 2):
        next(items)
    again = StreamingText(numbered(), 3, 2, keep_tail=True)
    again.load_state_dict(stream.state_dict(step=4))
    whole = list(StreamingText(numbered(), 3, 2, keep_tail=True))
    assert [real(item) for item in again] == [real(item) for item in whole[8:]]
    for step in (6, -1):
        with pytest.raises(ValueError, match="`step`"):
            stream.state_dict(step=step)


def test_a_resumed_stream_can_be_left_again_at_once():
    """A position right behind a resumption, before a step was read, is the one that it began with."""
    first = StreamingText(source("datasets"), 6, 2)
    items = iter(first)
    for _ in range(4):
        next(items)
    state = first.state_dict()
    second = StreamingText(source("datasets"), 6, 2)
    second.load_state_dict(state)
    loop = iter(second)
    next(loop)
    assert second.state_dict(step=2) == state


def test_shuffling_is_that_of_the_epoch():
    def read(stream: StreamingText, epoch: int) -> list[list[int]]:
        stream.set_epoch(epoch)
        return [real(item) for item in stream]

    table = datasets.Dataset.from_dict({"input_ids": [[index] * 3 for index in range(12)]})
    stream = StreamingText(table.to_iterable_dataset().shuffle(seed=1, buffer_size=12), 3, 1, keep_tail=True)
    first, second = read(stream, 0), read(stream, 1)
    assert sorted(first) == sorted(second) != first != second
    assert read(stream, 0) == first


def test_what_cannot_be_read_twice_or_would_be_read_twice_is_refused():
    with pytest.raises(ValueError, match="`source`"):
        StreamingText(iter(numbered()), 4)
    for arguments, name in (((4, 0), "lanes"), ((0, 1), "segment_length")):
        with pytest.raises(ValueError, match=f"`{name}`"):
            StreamingText(numbered(), *arguments)
    with pytest.raises(ValueError, match="num_workers"):
        next(iter(DataLoader(StreamingText(numbered(), 4), num_workers=1)))
    with pytest.raises(ValueError, match="`source`"):
        next(iter(StreamingText([["a"]], 4)))


def test_a_position_of_another_stream_is_refused():
    stream = StreamingText(numbered(), 4, 2)
    next(iter(stream))
    state = stream.state_dict()
    for other, field in (
        (StreamingText(numbered(), 4, 1), "lanes"),
        (StreamingText(numbered(), 5, 2), "segment_length"),
        (StreamingText(numbered(), 4, 2, documents=False), "documents"),
        (StreamingText(numbered(), 4, 2, keep_tail=True), "keep_tail"),
    ):
        with pytest.raises(ValueError, match=f"`{field}`"):
            other.load_state_dict(state)
