"""The stream: every lane goes on where it stopped, every token is there once, and targets cross segments."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from transformers_xl import ByteTokenizer
from transformers_xl.data.files import read_ids, split_held_out
from transformers_xl.data.text_stream import TextStream


def lanes_of(stream: TextStream, column: str) -> torch.Tensor:
    """Column of all items, put together lane by lane: (lanes, segments * segment_length)."""
    batches = [batch[column] for batch in DataLoader(stream, batch_size=stream.lanes)]
    return torch.cat(batches, dim=1)


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 60))
def test_training_lanes_are_the_text_in_order(lanes: int, segment_length: int, surplus: int):
    text = np.arange(lanes * segment_length + 1 + surplus)
    stream = TextStream(text, segment_length, lanes)
    rows = lanes_of(stream, "input_ids")
    assert rows.flatten().tolist() == list(range(rows.numel()))  # contiguous, no gap, no repeat
    assert rows.numel() > len(text) - 1 - lanes * segment_length  # and less than a segment per lane is left out
    assert torch.equal(lanes_of(stream, "shift_labels"), rows + 1)  # also across segments and lanes
    assert torch.equal(lanes_of(stream, "labels"), rows)
    resets = torch.stack([item["reset"] for item in map(stream.__getitem__, range(len(stream)))])
    assert resets.tolist() == [index < lanes for index in range(len(stream))]


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 60))
def test_evaluation_predicts_every_token_but_the_first_once(lanes: int, segment_length: int, surplus: int):
    text = np.arange(lanes + 1 + surplus)
    stream = TextStream(text, segment_length, lanes, keep_tail=True, pad_token_id=0)
    mask = lanes_of(stream, "attention_mask").bool()
    rows, targets = lanes_of(stream, "input_ids"), lanes_of(stream, "shift_labels")
    assert rows[mask].tolist() == text.tolist()
    assert sorted(targets[targets != -100].tolist()) == text[1:].tolist()
    predicted = targets != -100
    assert torch.equal(targets[predicted], rows[predicted] + 1)
    assert (targets[~mask] == -100).all()


def test_segments_that_overlap_by_hand():
    stream = TextStream(np.arange(9), segment_length=4, overlap=2)
    items = [stream[index] for index in range(len(stream))]
    assert [item["input_ids"].tolist() for item in items] == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]]
    assert [item["shift_labels"].tolist() for item in items] == [[1, 2, 3, 4], [-100, -100, 5, 6], [-100, -100, 7, 8]]
    assert [item["labels"].tolist() for item in items] == [[0, 1, 2, 3], [-100, -100, -100, 5], [-100, -100, -100, 7]]
    assert [item["reset"].item() for item in items] == [True, False, False]
    assert len(TextStream(np.arange(8), segment_length=4, overlap=2)) == 2  # no token to predict is left for a third


@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(0, 8), st.integers(0, 60), st.booleans())
def test_every_token_is_predicted_once_where_segments_overlap(lanes, segment_length, overlap, surplus, keep_tail):
    overlap = min(overlap, segment_length - 1)
    text = np.arange(lanes * segment_length + 1 + surplus)
    stream = TextStream(text, segment_length, lanes, keep_tail=keep_tail, overlap=overlap)
    rows, targets = lanes_of(stream, "input_ids"), lanes_of(stream, "shift_labels")
    predicted = targets[targets != -100]
    assert len(set(predicted.tolist())) == len(predicted)
    assert torch.equal(rows[targets != -100] + 1, predicted)
    assert (len(predicted) == len(text) - 1) if keep_tail else (len(predicted) >= lanes * segment_length)


def test_segments_of_varied_length():
    length, lanes = 100, 3
    text = np.arange(300_000)
    stream = TextStream(text, length, lanes, vary_lengths=True)
    sizes = [len(stream[step * lanes]["input_ids"]) for step in range(stream.segments)]
    assert [len(stream[step * lanes + 1]["input_ids"]) for step in range(stream.segments)] == sizes
    assert max(sizes) == length
    assert np.mean(np.array(sizes) <= 75) == pytest.approx(0.05, abs=0.03)  # those half as long
    assert np.mean(np.array(sizes) == length) == pytest.approx(0.5 * 0.95, abs=0.08)  # half of N(100, 5) is cut off
    rows = lanes_of(stream, "input_ids")
    assert rows.flatten().tolist() == list(range(rows.numel()))
    assert torch.equal(lanes_of(stream, "shift_labels"), rows + 1)
    assert rows.numel() > len(text) - 1 - lanes * length
    again = TextStream(text, length, lanes, vary_lengths=True)
    assert np.array_equal(again.offsets, stream.offsets)
    assert not np.array_equal(TextStream(text, length, lanes, vary_lengths=True, seed=1).offsets, stream.offsets)


def test_lanes_that_begin_elsewhere_in_every_epoch():
    text, lanes = np.arange(1_001), 4
    stream = TextStream(text, 25, lanes, roll=True)
    begins = []
    for epoch in (0, 1, 2, 1):
        stream.set_epoch(epoch)
        rows = lanes_of(stream, "input_ids")
        assert torch.equal(lanes_of(stream, "shift_labels"), rows + 1)  # at the end of a lane, the first of the next
        assert rows.sort().values.flatten().tolist() == list(range(1_000))  # each stays in its own part of the text
        assert (rows.diff() == 1).sum(1).tolist() == [248] * lanes  # of 249: it comes round once
        begins.append(tuple(rows[:, 0].tolist()))
    assert begins[1] == begins[3]
    assert len(set(begins)) == 3


def test_how_a_text_is_cut_is_part_of_its_identity():
    text = np.arange(200)
    plain = TextStream(text, 10).identity
    assert "overlap" not in plain  # that of streams from before there was a choice
    for fields in ({"overlap": 2}, {"vary_lengths": True}, {"roll": True}):
        identity = TextStream(text, 10, **fields).identity
        assert {name: identity[name] for name in (*plain, *fields)} == plain | fields
    assert TextStream(text, 10, roll=True).identity != TextStream(text, 10, roll=True, seed=1).identity


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": np.arange(9), "segment_length": 3, "overlap": 3}, "`overlap`=3 must be at least 0 and leave"),
        ({"ids": np.arange(9), "segment_length": 3, "overlap": -1}, "`overlap`=-1"),
        ({"ids": np.arange(9), "segment_length": 3, "overlap": 1, "roll": True}, "`roll`=True does not go with"),
        ({"ids": np.arange(9), "segment_length": 3, "vary_lengths": True, "keep_tail": True}, "is for training"),
        ({"ids": np.arange(6), "segment_length": 3, "lanes": 2}, "at least 7"),
        ({"ids": np.arange(9), "segment_length": 0}, "segment_length"),
        ({"ids": np.arange(9), "segment_length": 2, "lanes": 0}, "lanes"),
        ({"ids": np.ones((2, 4), dtype=int), "segment_length": 2}, "one row"),
        ({"ids": np.ones(9), "segment_length": 2}, "integers"),
    ],
)
def test_bad_input_is_refused(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        TextStream(**arguments)


def test_items_end():
    stream = TextStream(np.arange(9), 4, 2)
    with pytest.raises(IndexError):
        stream[len(stream)]


def test_files_are_read_as_bytes(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_bytes(b"one\ntwo\n")
    second.write_bytes(b"\xff\x00three")
    ids, size = read_ids([first, second], ByteTokenizer(), chunk_bytes=3, progress=False)
    assert bytes(ids.astype(np.uint8)) == b"one\ntwo\n\xff\x00three"
    assert size == len(ids)


def test_missing_and_empty_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not a file"):
        read_ids([tmp_path / "nothing.txt"], ByteTokenizer(), progress=False)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="empty"):
        read_ids([tmp_path / "empty.txt"], ByteTokenizer(), progress=False)
    with pytest.raises(ValueError, match="at least one"):
        read_ids([], ByteTokenizer(), progress=False)


def test_held_out_is_the_end():
    kept, held_out = split_held_out(np.arange(10), 0.2)
    assert kept.tolist() == list(range(8))
    assert held_out.tolist() == [8, 9]
    for fraction in (0, 1, -0.1, 0.01):
        with pytest.raises(ValueError, match="fraction"):
            split_held_out(np.arange(10), fraction)
