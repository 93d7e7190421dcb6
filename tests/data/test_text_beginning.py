"""What tokenizers begin texts with."""

import numpy as np
import pytest
from stand_in_base import base_tokenizer
from tokenizers import processors
from transformers import AutoTokenizer

from transformers_xl import ByteTokenizer, WordTokenizer
from transformers_xl.data.files import read_held_out, read_predicted, unpredicted_bytes
from transformers_xl.data.text_beginning import beginning_of, begun, without_beginning

CASES = {"<s> $A": [1], "<s> </s> $A": [1, 2], "<s> $A </s>": [1], "$A </s>": [], "$A": []}


@pytest.mark.parametrize("adds", CASES)
def test_what_stands_before_a_text_and_nothing_behind_it(adds: str, tmp_path):
    tokenizer = base_tokenizer(adds)
    assert beginning_of(tokenizer) == CASES[adds]
    tokenizer.save_pretrained(tmp_path)
    assert beginning_of(AutoTokenizer.from_pretrained(tmp_path)) == CASES[adds]


def test_our_tokenizers_add_nothing():
    assert beginning_of(ByteTokenizer()) == []  # though it has a `bos_token`
    assert beginning_of(WordTokenizer.train_from_iterator(["one two"], progress=False)) == []


class Closed:
    """A vocabulary without letters, whose texts begin with id 7."""

    def __init__(self, known: str):
        self.known = known

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict:
        if set(text) - set(self.known):
            raise ValueError(f"{text!r} has symbols that are not in the vocabulary")
        return {"input_ids": [7] * add_special_tokens + [100 + ord(symbol) for symbol in text]}


def test_a_closed_vocabulary():
    assert beginning_of(Closed("01")) == [7]
    with pytest.raises(
        ValueError, match=r"`tokenizer` is a Closed that adds \[7\] to a text, and what it puts before"
    ):
        beginning_of(Closed("xyz"))


def test_a_text_begins_once():
    assert begun([5, 6], [0]) == begun([0, 5, 6], [0]) == [0, 5, 6]
    assert begun([0, 5], [0, 1]) == [0, 1, 0, 5]  # not all of it
    assert begun([5, 6], []) == [5, 6]
    row = np.array([0, 0, 5], dtype=np.uint16)
    assert without_beginning(row, [0]).tolist() == [0, 5]
    assert without_beginning(row, []) is row
    assert without_beginning(row[:0], [0]).tolist() == []


def bytes_that_begin() -> ByteTokenizer:
    tokenizer = ByteTokenizer()
    single = ["<|bos|>", "$A"]
    post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<|bos|>", tokenizer.bos_token_id)])
    tokenizer.backend_tokenizer.post_processor = post_processor
    return tokenizer


def test_all_of_a_text_counts_where_its_first_token_is_predicted(tmp_path):
    """Also from a cache that another tokenizer has written; the ids are those of the text alone."""
    (tmp_path / "text.txt").write_text("one two\nthree four\n")
    paths, cache = [tmp_path / "text.txt"], {"cache_dir": tmp_path / "cache", "progress": False}
    plain, begins = ByteTokenizer(), bytes_that_begin()
    assert beginning_of(begins) == [plain.bos_token_id]
    for _ in range(2):
        for tokenizer, first in ((plain, 1), (begins, 0)):
            ids, counts = read_predicted(paths, tokenizer, **cache)
            assert bytes(ids.tolist()) == b"one two\nthree four\n"
            assert (counts.bytes, counts.characters, counts.words) == (19 - first, 19 - first, 4)
            ids, held_out, counts = read_held_out(paths, tokenizer, 11 / 19, **cache)
            assert (bytes(ids.tolist()), bytes(held_out.tolist())) == (b"one two\n", b"three four\n")
            assert counts.bytes == 11 - first
    assert unpredicted_bytes([np.array([]), np.array([65, 66]), np.array([67])], plain) == 2
    assert unpredicted_bytes([np.array([65, 66])], begins) == 0
    assert unpredicted_bytes([np.array([65, 66])], base_tokenizer()) == 0  # it cannot tell
