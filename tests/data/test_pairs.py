"""Pairs of sentences: from two files, from JSON lines and Parquet, and held out."""

import gzip
import json

import pytest
from optional_packages import needs

from transformers_xl import ByteTokenizer
from transformers_xl.data.pairs import hold_out_pairs, pairs_of_rows, read_pairs, text_ids

PAIRS = [("one", "eins"), ("two", "zwei"), ("three", "drei")]


def test_lines_end_at_line_feeds_alone(tmp_path):
    """Other ends of lines in Unicode stand within sentences, also within a string of JSON."""
    (tmp_path / "a").write_text("one\u2028two\nthree\x0c\nfour\r\n", newline="")
    (tmp_path / "b").write_text("eins\x85zwei\ndrei\nvier", newline="")
    pairs = read_pairs(str(tmp_path / "a"), str(tmp_path / "b"))
    assert pairs == [("one\u2028two", "eins\x85zwei"), ("three", "drei"), ("four", "vier")]
    (tmp_path / "rows").write_text(json.dumps({"a": "one\u2028two", "b": "eins"}, ensure_ascii=False) + "\n")
    assert read_pairs("a", "b", [str(tmp_path / "rows")]) == [("one\u2028two", "eins")]


def test_two_files_and_json_lines_are_the_same(tmp_path):
    for side, name in enumerate(("a.en", "a.de")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS), encoding="utf-8-sig")
    source, target = str(tmp_path / "a.en"), str(tmp_path / "a.de")
    assert read_pairs(source, target) == PAIRS
    rows = [{"id": 0, "translation": {"en": a, "de": b}} for a, b in PAIRS]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8-sig")
    assert read_pairs("translation.en", "translation.de", [str(tmp_path / "a.jsonl")]) == PAIRS
    assert pairs_of_rows(rows, "translation.en", "translation.de") == PAIRS
    for file in ("a.en", "a.de", "a.jsonl"):
        (tmp_path / f"{file}.gz").write_bytes(gzip.compress((tmp_path / file).read_bytes()))
    assert read_pairs(f"{source}.gz", f"{target}.gz") == PAIRS
    assert read_pairs("translation.en", "translation.de", [str(tmp_path / "a.jsonl.gz")]) == PAIRS
    with pytest.raises(ValueError, match="`fr` is no text of row 1, which has id, translation: name one"):
        pairs_of_rows(rows, "translation.en", "fr")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    with pytest.raises(ValueError, match="has 3 lines, `target`"):
        read_pairs(source, target)
    (tmp_path / "a.de").write_text("eins\n\ndrei\n")
    with pytest.raises(ValueError, match="number 2 is empty on one side"):
        read_pairs(source, target)
    (tmp_path / "a.jsonl").write_text("{}\nno\n")
    with pytest.raises(ValueError, match="line 2, is no JSON"):
        read_pairs("a", "b", [str(tmp_path / "a.jsonl")])


def test_parquet_as_datasets_writes_it(tmp_path, monkeypatch):
    datasets = needs("datasets")
    rows = [{"id": "0", "translation": {"en": a, "de": b}} for a, b in PAIRS]
    features = datasets.Features(id=datasets.Value("string"), translation=datasets.Translation(["en", "de"]))
    table, files = datasets.Dataset.from_list(rows, features), []
    for name, part in (("one", [0, 1]), ("none", []), ("two", [2])):
        files.append(str(tmp_path / f"{name}.parquet"))
        table.select(part).to_parquet(files[-1])
    assert read_pairs("translation.en", "translation.de", files) == PAIRS
    with pytest.raises(ValueError, match="`fr` is no text of row 1, which has id, translation: name one"):
        read_pairs("fr", "de", files)
    with pytest.raises(ValueError, match="'no.parquet' is not a file"):
        read_pairs("en", "de", ["no.parquet"])
    (tmp_path / "a.parquet").write_bytes((tmp_path / "one.parquet").read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"a.parquet' cannot be read"):
        read_pairs("en", "de", [str(tmp_path / "a.parquet")])
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress((tmp_path / "one.parquet").read_bytes()))
    with pytest.raises(ValueError, match=r"is Parquet that was compressed once more: unpack it"):
        read_pairs("en", "de", [str(tmp_path / "a.parquet.gz")])
    monkeypatch.setattr("transformers_xl.files.parquet_files.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs the package pyarrow"):
        read_pairs("translation.en", "translation.de", files)


def test_what_is_held_out_is_not_trained_on():
    """The same every time; a pair that stands twice is on one side alone."""
    pairs = [(str(number % 30), str(number % 30)) for number in range(60)]
    kept, held_out = hold_out_pairs(pairs, 0.1)
    assert (kept, held_out) == hold_out_pairs(pairs, 0.1)
    assert len(held_out) == 6
    assert not {*kept} & {*held_out}
    assert {*kept} | {*held_out} == {*pairs}
    with pytest.raises(ValueError, match="leaves a part empty"):
        hold_out_pairs(pairs[:3], 0.1)


def test_a_text_ends():
    tokenizer = ByteTokenizer()
    assert text_ids(tokenizer, "ab") == [
        *tokenizer("ab", add_special_tokens=False)["input_ids"],
        tokenizer.eos_token_id,
    ]
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="has no `eos_token`"):
        text_ids(tokenizer, "ab")


def test_half_of_a_surrogate_pair_is_refused(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"en": "a", "de": "b"}\n{"en": "a \\ud800 b", "de": "x"}\n')
    with pytest.raises(ValueError, match=r"`en` of row 2 is no text.*surrogates"):
        pairs_of_rows(map(json.loads, file.read_text().splitlines()), "en", "de")
