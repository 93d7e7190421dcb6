"""The stream: every lane goes on where it stopped, every token is there once, and targets cross segments."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from transformers_xl import ByteTokenizer
from transformers_xl.streams.files import read_ids, split_held_out
from transformers_xl.streams.text_stream import TextStream


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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
