"""The texts of a comparison: documents as tokens, and how many bytes their bits are divided by."""

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from transformers_xl import WordTokenizer
from transformers_xl.runs.comparison_folder import Comparison
from transformers_xl.runs.comparison_models import ComparedModel
from transformers_xl.runs.comparison_plan import ComparisonPlan, Texts, plan_of
from transformers_xl.runs.comparison_texts import read_comparison_texts

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from corpus_tokenizer import tokenizer_of

DOCUMENTS = {"one": "now then, said the mole", "two": "na\u00efve \u2014 now", "short": "n"}


@pytest.fixture
def plan_file(tmp_path: Path):
    """A plan whose texts are all the same documents; `fields` are more of it."""

    def plan(**fields) -> ComparisonPlan:
        lines = (json.dumps({"name": name, "text": text}) + "\n" for name, text in DOCUMENTS.items())
        (tmp_path / "text.jsonl").write_text("".join(lines), encoding="utf-8")
        texts = dict.fromkeys(("train", "validation", "test"), str(tmp_path / "text.jsonl"))
        sizes = {"hidden_size": 16, "layers": 1, "heads": 2, "mem_len": 64}
        return plan_of(
            {"texts": texts, "models": {"transformer_xl": None}, "reference": "transformer_xl"} | sizes | fields
        )

    return plan


@pytest.fixture
def bpe(tmp_path: Path) -> PreTrainedTokenizerFast:
    """A byte-level BPE that knows `now` as one token."""
    tokenizer = tokenizer_of(["now"] * 3, 259)
    assert len(tokenizer) == 259
    tokenizer.save_pretrained(tmp_path / "bpe")
    return tokenizer


def test_bytes_but_the_first_count(plan_file):
    test = read_comparison_texts(plan_file(document_bytes=20)).test
    assert test.names == ["one", "two"]  # one byte has nothing to predict
    assert bytes(test.ids[0].tolist()) == b"now then, said the m"
    assert test.num_bytes.tolist() == [19, len("na\u00efve \u2014 now".encode()) - 1]


def test_tokens_and_the_bytes_they_stand_for(plan_file, bpe, tmp_path: Path):
    texts = read_comparison_texts(plan_file(tokenizer=str(tmp_path / "bpe")))
    one, two = texts.test.ids
    assert (bpe.decode(one[:1]), bpe.decode(two[:1])) == ("now", "n")
    assert texts.test.num_bytes.tolist() == [len(DOCUMENTS["one"]) - 3, len(DOCUMENTS["two"].encode()) - 1]
    assert [bpe.decode(ids) for ids in (one, two)] == [DOCUMENTS["one"], DOCUMENTS["two"]]
    assert np.array_equal(texts.train[: len(one)], one)
    assert texts.digests() != read_comparison_texts(plan_file()).digests()


def test_a_limit_cuts_no_character_in_two(plan_file, bpe, tmp_path: Path):
    """Its third byte is the first half of a character."""
    test = read_comparison_texts(plan_file(tokenizer=str(tmp_path / "bpe"), document_bytes=3)).test
    assert test.names == ["two"]  # the other is one token
    assert bpe.decode(test.ids[0]) == "na"
    assert test.num_bytes.tolist() == [1]


def test_models_have_the_vocabulary(plan_file, bpe, tmp_path: Path):
    plan = plan_file(tokenizer=str(tmp_path / "bpe"), models={"transformer_xl": None, "mistral": None})
    for name in plan.models:
        config = ComparedModel(name, plan).build(0, 0.1).config
        assert (config.vocab_size, config.eos_token_id, config.bos_token_id) == (len(bpe), bpe.eos_token_id, None)


def test_a_tokenizer_that_loses_text_is_refused(plan_file, tmp_path: Path):
    (tmp_path / "words.txt").write_text("now then")
    WordTokenizer.train_from_files([tmp_path / "words.txt"]).save_pretrained(tmp_path / "words")
    with pytest.raises(ValueError, match=r"`texts.train`, 'one': `tokenizer` gives back another text"):
        read_comparison_texts(plan_file(tokenizer=str(tmp_path / "words")))


def test_a_tokenizer_that_is_missing_is_refused(plan_file):
    with pytest.raises(ValueError, match="`tokenizer`='nowhere' does not exist"):
        read_comparison_texts(plan_file(tokenizer="nowhere"))


def test_a_name_that_two_lines_have_is_refused(plan_file, tmp_path: Path):
    """One of them would be lost."""
    plan = plan_file()
    lines = ['{"name": "a", "text": "now then"}', '{"name": null, "text": "mole"}', '{"name": "a", "text": "said"}']
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match="line 3 of .* has the `name` 'a' again"):
        read_comparison_texts(plan)
    (tmp_path / "text.jsonl").write_text("\n".join(lines[:2]))
    assert read_comparison_texts(plan).test.names == ["a", "2"]


def test_texts_are_decompressed_and_tables_refused(plan_file, tmp_path: Path):
    plan = plan_file()
    (tmp_path / "text.jsonl.gz").write_bytes(gzip.compress((tmp_path / "text.jsonl").read_bytes()))
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(b"now then"))
    (tmp_path / "text.json").write_text("[]")
    names = {"train": "text.txt.gz", "validation": "text.jsonl.gz", "test": "text.jsonl"}
    texts = read_comparison_texts(
        replace(plan, texts=Texts(**{each: str(tmp_path / name) for each, name in names.items()}))
    )
    assert bytes(texts.train.tolist()) == b"now then"
    assert texts.validation.names == texts.test.names
    with pytest.raises(ValueError, match="text.json' is a table"):
        read_comparison_texts(replace(plan, texts=replace(plan.texts, train=str(tmp_path / "text.json"))))


def test_what_is_not_utf_8_is_refused_where_a_tokenizer_reads(plan_file, bpe, tmp_path: Path):
    """A cut end alone is left out: other bytes would be missing without a word."""
    (tmp_path / "latin.txt").write_bytes("gr\u00fc\u00df dich".encode("latin-1"))
    for name, limit in (("train", None), ("test", 6)):
        plan = plan_file(tokenizer=str(tmp_path / "bpe"), document_bytes=limit)
        plan = replace(plan, texts=replace(plan.texts, **{name: str(tmp_path / "latin.txt")}))
        with pytest.raises(ValueError, match=f"`texts.{name}`, 'latin.txt' is not UTF-8.*without `tokenizer`"):
            read_comparison_texts(plan)
        assert read_comparison_texts(replace(plan, tokenizer=None)).train.size
    (tmp_path / "latin.txt").write_bytes("now then \u2014".encode()[:-1])  # cut, and not by `document_bytes`
    with pytest.raises(ValueError, match="is not UTF-8"):
        read_comparison_texts(replace(plan, document_bytes=None))


def test_hidden_files_are_no_documents(plan_file, tmp_path: Path):
    for name in ("a.txt", ".DS_Store", ".git/objects", "b/._c.txt", "b/c.txt"):
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_text("now then")
    plan = plan_file()
    plan = replace(plan, texts=replace(plan.texts, test=str(tmp_path / "folder")))
    assert read_comparison_texts(plan).test.names == ["a.txt", "b/c.txt"]


@pytest.mark.parametrize(("name", "other"), [("validation", "train"), ("test", "train"), ("test", "validation")])
def test_no_model_is_scored_on_what_it_was_trained_or_chosen_on(plan_file, tmp_path: Path, name: str, other: str):
    texts = {each: tmp_path / f"{each}.jsonl" for each in ("train", "validation", "test")}
    for each, path in texts.items():
        lines = [{"name": number, "text": f"{each} {number}" * 200} for number in "abc"] + [{"name": "e", "text": ""}]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = replace(plan_file(), texts=Texts(**{each: str(path) for each, path in texts.items()}))
    Comparison(plan, tmp_path / "out")
    with texts[name].open("a") as file:
        file.write(json.dumps({"name": "z", "text": f"{other} b" * 200}) + "\n")
    with pytest.raises(ValueError, match=f"`texts.{name}` has 'z', which `texts.{other}` has too, as 'b'"):
        Comparison(plan, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_intervals_need_two_documents(plan_file, tmp_path: Path):
    plan = plan_file()
    (tmp_path / "one.txt").write_text("now then")
    (tmp_path / "train.txt").write_text("said the mole " * 30)
    plan = replace(plan, texts=replace(plan.texts, test=str(tmp_path / "one.txt"), train=str(tmp_path / "train.txt")))
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "said the mole"}))
    with pytest.raises(ValueError, match="`texts.test`=.* has one document"):
        Comparison(plan, tmp_path / "out")
