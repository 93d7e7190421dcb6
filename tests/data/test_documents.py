"""Documents from files and from `datasets`: what they hold, how they are split, and that they are tokenised once."""

import os
import re
import sys
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optional_packages import needs
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from transformers_xl import ByteTokenizer
from transformers_xl.data import files as files_module
from transformers_xl.data.documents import (
    dataset_documents,
    hold_out_documents,
    split_documents,
    tokenize_dataset,
)
from transformers_xl.data.files import read_documents, read_ids

datasets = needs("datasets")


def words(vocabulary: str = "one two three [UNK]", **kwargs) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary.split())}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", **kwargs)


class CountingTokenizer(ByteTokenizer):
    """Counts the texts that it is asked to tokenise."""

    calls = 0

    def encode_bytes(self, data: bytes) -> list[int]:
        CountingTokenizer.calls += 1
        return super().encode_bytes(data)


def text_of(documents: list[np.ndarray]) -> list[bytes]:
    return [bytes(row.astype(np.uint8)) for row in documents]


def test_a_text_is_split_at_its_separator():
    assert split_documents("a\n\nb\nc\n\n\n\n", "\n\n") == ["a", "b\nc"]
    assert split_documents(b"x<|endoftext|> <|endoftext|>y", b"<|endoftext|>") == [b"x", b"y"]
    with pytest.raises(ValueError, match="separator"):
        split_documents("a", "")


@settings(max_examples=150)
@given(st.text(alphabet="ab#", max_size=40), st.sampled_from(["#", "##", "#a#"]), st.integers(1, 5))
def test_files_are_split_as_texts_are(tmp_path_factory, text: str, separator: str, chunk_bytes: int):
    """Wherever a chunk ends, also within a separator."""
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text(text)
    with path.open("rb") as stream:
        parts = list(chain(*files_module._parts(stream, separator, chunk_bytes)))
    assert [part.decode() for part in parts] == text.split(separator)


def test_documents_of_files(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo\xff\n\n \n\n")
    (tmp_path / "b.txt").write_bytes(b"three")
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    documents, size = read_documents(paths, ByteTokenizer(), separator="\n\n", progress=False)
    assert text_of(documents) == [b"one", b"two\xff", b"three"]
    assert size == 12
    documents, size = read_documents(paths, ByteTokenizer(), append_eos=True, progress=False)
    assert [row[-1] for row in documents] == [ByteTokenizer().eos_token_id] * 2
    assert size == sum(path.stat().st_size for path in paths)
    documents, _ = read_documents(paths[1:], words(), progress=False)
    assert [row.tolist() for row in documents] == [[2]]


def test_documents_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "blank.txt").write_text(" \n\n \n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff")
    for arguments, message in (
        (([], ByteTokenizer()), "at least one"),
        (([tmp_path / "none.txt"], ByteTokenizer()), "not a file"),
        (([tmp_path / "blank.txt"], ByteTokenizer()), "white space"),
        (([tmp_path / "bytes.txt"], words()), "not UTF-8"),
    ):
        with pytest.raises(ValueError, match=message):
            read_documents(*arguments, progress=False)
    with pytest.raises(ValueError, match="separator"):
        read_documents([tmp_path / "blank.txt"], ByteTokenizer(), separator="")
    with pytest.raises(ValueError, match="append_eos"):
        read_documents([tmp_path / "bytes.txt"], words(), append_eos=True)


def test_a_bar_counts_the_bytes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)  # elsewhere nothing is drawn
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        path.write_bytes(b"one\n\ntwo\n\n")
    for read in (read_ids, read_documents):
        read(paths, ByteTokenizer())
        assert re.search(r"tokenising: 100%.*20\.0/20\.0", capsys.readouterr().err)


def test_files_are_tokenised_once(tmp_path):
    path, cache = tmp_path / "a.txt", tmp_path / "cache"
    path.write_bytes(b"one\n\ntwo\n\nthree")

    def read(tokenizer=None, **options) -> tuple[list[bytes], int]:
        """What was read, and how often something was tokenised for it."""
        before = CountingTokenizer.calls
        documents, size = read_documents(
            [path], tokenizer or CountingTokenizer(), progress=False, cache_dir=cache, **options
        )
        ids, length = read_ids([path], tokenizer or CountingTokenizer(), progress=False, cache_dir=cache)
        assert bytes(ids.astype(np.uint8)) == path.read_bytes()
        assert (size, length) == (sum(len(row[row < 256]) for row in documents), path.stat().st_size)
        return text_of(documents), CountingTokenizer.calls - before

    first, second = read(separator="\n\n"), read(separator="\n\n")
    assert first[0] == second[0] == [b"one", b"two", b"three"]
    assert first[1] == 4
    assert second[1] == 0
    assert read(separator="\n")[1] == 3  # the options are other
    assert read(separator="\n", append_eos=True)[1] == 3
    assert read(CountingTokenizer(eos_token="<|end|>"), separator="\n\n")[1] == 4  # the tokenizer is
    path.write_bytes(b"one\n\ntwo\n\nthree!")
    assert read(separator="\n\n") == ([b"one", b"two", b"three!"], 4)  # the text is
    assert not [name for name in os.listdir(cache) if name.startswith(".")]


def test_a_torn_file_is_written_anew(tmp_path):
    """As a machine may leave it that lost its power: cut anywhere, it is not taken for a good one."""
    path, cache = tmp_path / "a.txt", tmp_path / "cache"
    path.write_bytes(b"some text")
    read_ids([path], ByteTokenizer(), progress=False, cache_dir=cache)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    for size in (0, 5, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        ids, _ = read_ids([path], ByteTokenizer(), progress=False, cache_dir=cache)
        assert bytes(ids.astype(np.uint8)) == b"some text"
        assert file.read_bytes() == whole


TEXTS = ["one two", "", "three", "two two two"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("append_eos", [False, True])
def test_datasets_are_tokenised_row_by_row(streaming: bool, append_eos: bool):
    table = datasets.Dataset.from_dict({"text": TEXTS, "page": [1, 2, 3, 4]})
    tokenizer = words("one two three [UNK] [END]", eos_token="[END]")
    rows = list(
        tokenize_dataset(table.to_iterable_dataset() if streaming else table, tokenizer, append_eos=append_eos)
    )
    end = [4] if append_eos else []
    assert [list(row) for row in rows] == [["input_ids", "num_bytes", "num_characters", "num_words"]] * 4
    assert [list(row["input_ids"]) for row in rows] == [[*ids, *end] for ids in ([0, 1], [], [2], [1, 1, 1])]
    assert [row["num_bytes"] for row in rows] == [7, 0, 5, 11]


def test_a_dataset_on_disk_is_tokenised_once(tmp_path, capsys):
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "table")
    capsys.readouterr()
    shown = []
    for tokenizer in (words(), words(), words("two one three [UNK]")):
        result = tokenize_dataset(datasets.load_from_disk(tmp_path / "table"), tokenizer)
        shown.append("tokenising: 100%" in capsys.readouterr().err.replace("Map", "tokenising"))
        assert [row.tolist() for row in dataset_documents(result)] == tokenizer(TEXTS)["input_ids"]
    assert shown == [True, False, True]


def test_rows_of_one_length_are_documents_too():
    table = datasets.Dataset.from_dict({"input_ids": [[1, 2], [3, 4]]})
    assert [row.tolist() for row in dataset_documents(table)] == [[1, 2], [3, 4]]


def test_a_dataset_without_the_column_is_refused():
    table = datasets.Dataset.from_dict({"content": TEXTS})
    with pytest.raises(ValueError, match="`column`='text'.*content"):
        tokenize_dataset(table, words())
    with pytest.raises(ValueError, match="append_eos"):
        tokenize_dataset(table, words(), column="content", append_eos=True)


def test_whole_documents_are_held_out():
    documents = [np.full(length, index) for index, length in enumerate(np.random.default_rng(1).integers(1, 90, 200))]
    kept, held_out = hold_out_documents(documents, 0.1)
    total = sum(map(len, documents))
    assert abs(sum(map(len, held_out)) - 0.1 * total) <= 45
    numbers = [[row[0] for row in part] for part in (kept, held_out)]
    assert sorted(chain(*numbers)) == list(range(200))
    assert all(part == sorted(part) for part in numbers)
    assert numbers[1] != list(range(200 - len(numbers[1]), 200))  # not the end, which may be of another kind
    assert [row[0] for row in hold_out_documents(documents, 0.1)[1]] == numbers[1]
    assert [row[0] for row in hold_out_documents(documents, 0.1, seed=1)[1]] != numbers[1]


@pytest.mark.parametrize(("fraction", "count"), [(0, 3), (1, 3), (-0.5, 3), (0.01, 3), (0.5, 1)])
def test_a_part_that_would_be_empty_is_refused(fraction: float, count: int):
    with pytest.raises(ValueError, match="`fraction`"):
        hold_out_documents([[1, 2, 3]] * count, fraction)
