"""The byte tokenizer: every text and every byte survives, and offsets point at the right characters."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.generation.streamers import TextStreamer

from transformers_xl import ByteTokenizer, TransformerXLConfig

TOKENIZER = ByteTokenizer()
HARD_TEXTS = [
    "  two  spaces  ",
    "na\u00efve \u00e9t\u00e9",
    "e\u0301 and \u00e9 are two spellings",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u65e5\u672c\u8a9e",
    "\x00\x01\x7f\t\r\n\ufeff\u2028",
    "<|pad|><|bos|><|eos|>",
    "a , b . don 't  clean me up !",
]


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_hard_texts_survive(text: str):
    ids = TOKENIZER(text)["input_ids"]
    assert ids == list(text.encode("utf-8"))
    assert TOKENIZER.decode(ids) == text


@settings(max_examples=200)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_survives_with_offsets(text: str):
    encoded = TOKENIZER(text, return_offsets_mapping=True)
    assert encoded["input_ids"] == list(text.encode("utf-8"))
    assert TOKENIZER.decode(encoded["input_ids"]) == text
    # all bytes of a character point at that character
    expected = [(i, i + 1) for i, character in enumerate(text) for _ in character.encode("utf-8")]
    assert [tuple(offset) for offset in encoded["offset_mapping"]] == expected


@settings(max_examples=200)
@given(st.binary())
def test_any_bytes_survive(data: bytes):
    ids = TOKENIZER.encode_bytes(data)
    assert TOKENIZER.decode_bytes(ids) == data
    TOKENIZER.decode(ids)  # bytes that are no UTF-8 are shown somehow, and never raise


def test_special_tokens():
    assert (TOKENIZER.pad_token_id, TOKENIZER.bos_token_id, TOKENIZER.eos_token_id) == (256, 257, 258)
    assert len(TOKENIZER) == 259
    assert TOKENIZER.decode([65, 258, 66], skip_special_tokens=True) == "AB"
    assert TOKENIZER("<|eos|>", split_special_tokens=False)["input_ids"] == [258]
    assert TOKENIZER.decode_bytes([257, 65, 258]) == b"A"
    with pytest.raises(ValueError, match="259"):
        TOKENIZER.decode_bytes([65, 259])


def test_batches_are_padded_on_the_left():
    batch = TOKENIZER(["ab", "c"], padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == [[97, 98], [256, 99]]
    assert batch["attention_mask"].tolist() == [[1, 1], [0, 1]]
    assert set(batch) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize("with_config", [True, False], ids=["model folder", "tokenizer folder"])
def test_round_trip_through_auto_tokenizer(tmp_path: Path, with_config: bool):
    TOKENIZER.save_pretrained(tmp_path)
    if with_config:
        TransformerXLConfig().save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded) is ByteTokenizer
    assert loaded.padding_side == "left"
    for text in HARD_TEXTS:
        assert loaded(text)["input_ids"] == list(text.encode("utf-8"))
        assert loaded.decode(loaded(text)["input_ids"]) == text


def test_loads_as_a_tokenizer_of_transformers(tmp_path: Path):
    """Where the package is not installed: tests/hub/without_package.py."""
    # a new one: a tokenizer that has padded writes its side into its files; and without code there is nothing to trust
    ByteTokenizer().save_pretrained(tmp_path, include_code=False)
    plain = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert plain(HARD_TEXTS[1])["input_ids"] == TOKENIZER(HARD_TEXTS[1])["input_ids"]
    assert plain(["ab", "c"], padding=True)["input_ids"] == [[97, 98], [256, 99]]


def test_a_streamer_puts_characters_together(capsys: pytest.CaptureFixture):
    text = "na\u00efve \U0001f389 end\n"
    streamer = TextStreamer(TOKENIZER)
    for token in TOKENIZER(text)["input_ids"]:
        streamer.put(torch.tensor([token]))
    streamer.end()
    assert capsys.readouterr().out.rstrip("\n") == text.rstrip("\n")


CORPUS = b"abc \xc3\xa9"


def test_symbols_of_a_corpus_are_its_bytes_and_nothing_else(tmp_path: Path):
    tokenizer = ByteTokenizer(symbols=CORPUS)
    assert len(tokenizer) == tokenizer.vocab_size == 6
    assert tokenizer.all_special_ids == []
    ids = [1, 2, 0, 5, 4]  # in the order of the values: space, a, b, c, 0xa9, 0xc3
    assert tokenizer("ab \u00e9")["input_ids"] == ids == tokenizer.encode_bytes("ab \u00e9".encode())
    assert tokenizer.decode(ids) == "ab \u00e9"
    assert tokenizer.decode_bytes(ids) == "ab \u00e9".encode()
    tokenizer.save_pretrained(tmp_path)
    for loaded in (ByteTokenizer.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)):
        assert len(loaded) == 6
        assert loaded.pad_token is None
        assert loaded.encode_bytes(CORPUS) == tokenizer.encode_bytes(CORPUS)


def test_a_byte_that_is_no_symbol_is_refused():
    tokenizer = ByteTokenizer(symbols=CORPUS)
    with pytest.raises(ValueError, match=r"byte 100 \(b'd'\) that is not among the 6 `symbols`"):
        tokenizer.encode_bytes(b"abcd")
    with pytest.raises(ValueError, match="not among the 6 `symbols`"):
        tokenizer("abcd")
    with pytest.raises(ValueError, match="`ids` holds 6: a byte is 0..5"):
        tokenizer.decode_bytes([6])


@pytest.mark.parametrize("symbols", [[], [-1, 4], [256]])
def test_symbols_are_bytes(symbols: list[int]):
    with pytest.raises(ValueError, match="`symbols`"):
        ByteTokenizer(symbols=symbols)
