"""Where words begin, by each kind of tokenizer."""

import numpy as np
import pytest
from stand_in_base import base_tokenizer
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from transformers_xl import ByteTokenizer, WordTokenizer
from transformers_xl.data.word_starts import word_starts

TEXT = "It was  the best\n\tof times"
WORDS = ["It ", "was  ", "the ", "best\n\t", "of ", "times"]


def cut(ids: list[int], starts: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(np.array(ids), np.flatnonzero(starts[1:]) + 1)]


def test_of_bytes():
    ids = ByteTokenizer().encode_bytes(TEXT.encode())
    found = cut(ids, word_starts(np.array(ids), ByteTokenizer()))
    assert [bytes(part).decode() for part in found] == WORDS


def test_of_pairs_of_bytes():
    """A token opens with the white space before it; a token of white space belongs to the word before."""
    tokenizer = base_tokenizer()
    ids = tokenizer(TEXT)["input_ids"]
    found = cut(ids, word_starts(np.array(ids), tokenizer))
    assert [tokenizer.decode(part) for part in found] == ["It", " was ", " the ", "best\n\t", "of", " times"]


def test_of_sentence_pieces():
    vocabulary = {"\u2581b": 0, "est": 1, "\u2581of": 2, "\u2581": 3, "times": 4}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab=vocabulary, merges=[])))
    assert word_starts(np.array([0, 1, 2, 3, 4]), tokenizer).tolist() == [True, False, True, False, True]


def test_of_bytes_that_sentence_pieces_have_no_token_for():
    vocabulary = {"<0x0A>": 0, "\u2581a": 1, "b": 2}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab=vocabulary, merges=[])))
    assert word_starts(np.array([1, 2, 0, 2, 1]), tokenizer).tolist() == [True, False, False, True, True]


def test_of_word_pieces():
    vocabulary = {"?": 0, "of": 1, "time": 2, "##s": 3}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="?")))
    assert word_starts(np.array([2, 3, 1, 2, 3]), tokenizer).tolist() == [True, False, True, True, False]


def test_of_words_and_of_ends_of_text(tmp_path):
    (tmp_path / "text.txt").write_text("a b c\n")
    tokenizer = WordTokenizer.train_from_files([tmp_path / "text.txt"], split="spaces", progress=False)
    assert word_starts(np.array(tokenizer("a b c a")["input_ids"]), tokenizer).all()
    end = ByteTokenizer().eos_token_id
    assert word_starts(np.array([97, 97, end, 97, 97]), ByteTokenizer()).tolist() == [True, False, True, True, False]


@pytest.mark.parametrize("ids", [[], [97]])
def test_of_little(ids):
    assert word_starts(np.array(ids, dtype=np.int64), ByteTokenizer()).tolist() == [True] * len(ids)
