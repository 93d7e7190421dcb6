"""`transformers-xl prepare`: the papers' splits and vocabularies, on stand-ins whose counts are worked out by hand."""

import gzip
import io
import json
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from optional_packages import needs
from programs import run
from stand_ins import ENWIK8, WIKITEXT, stand_in
from transformers import AutoTokenizer

from transformers_xl.data.official_files import md5
from transformers_xl.data.paper_corpora import CORPORA, PARTS
from transformers_xl.data.preparing import prepare

# tokens of the three parts, and the vocabulary
COUNTS = {
    ("enwik8", "drop"): (14, 1, 1, 5),  # a b < > and a space
    ("enwik8", "keep"): (18, 1, 1, 6),
    ("text8", "drop"): (36, 2, 1, 12),  # a c d e g h m n o s t and a space
    ("text8", "keep"): (37, 3, 2, 13),
    # every line ends with a token: 0 + 3 + 0 + 3 words in four lines
    ("wikitext-2", None): (10, 4, 3, 8),  # <eos> <unk> = A the a dog cat
    ("wikitext-103", None): (10, 4, 3, 5),  # of the training part alone: <eos> <unk> = A the
    ("ptb", None): (8, 3, 2, 7),  # <eos> <unk> the N sat dog a
    ("ptb-char", "drop"): (12, 2, 1, 11),  # "the N" and "a <unk>": t h e N a < u n k > and a space
    ("ptb-char", "keep"): (14, 3, 2, 12),
    ("lm1b", None): (
        12,
        3,
        3,
        5,
    ),  # three sentences of three words; <S> </S> <UNK>, and what occurs three times: the dog
}
LINES = {
    "enwik8": (4, 0, 0),
    "text8": (1, 1, 1),
    "wikitext-2": (4, 2, 1),
    "wikitext-103": (4, 2, 1),
    "ptb": (2, 1, 1),
    "ptb-char": (2, 1, 1),
    "lm1b": (3, 1, 1),
}


def counts_of(corpus: str, line_feeds: str | None) -> dict[str, int]:
    *tokens, vocabulary = COUNTS[corpus, line_feeds]
    counts = {f"{part} tokens": number for part, number in zip(PARTS, tokens, strict=True)}
    counts |= {f"{part} lines": number for part, number in zip(PARTS, LINES[corpus], strict=True)}
    return counts | {"vocabulary": vocabulary}


@pytest.mark.parametrize(("corpus", "line_feeds"), COUNTS)
def test_counts_of_a_stand_in(corpus: str, line_feeds, tmp_path: Path):
    result = prepare(corpus, stand_in(corpus, tmp_path), tmp_path / "out", line_feeds, check=False, progress=False)
    expected = counts_of(corpus, line_feeds)
    assert {what: result.counts[what] for what in expected} == expected
    assert result.line_feeds == line_feeds
    assert result.checked == []
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    assert len(tokenizer) == expected["vocabulary"]
    for part in PARTS:
        file = tmp_path / "out" / f"{part}.txt"
        assert file.stat().st_size == result.counts[f"{part} bytes"]
        assert len(tokenizer(file.read_text())["input_ids"]) == expected[f"{part} tokens"]


def test_texts_are_those_of_the_papers(tmp_path: Path):
    for corpus, line_feeds, texts in (
        ("enwik8", "drop", ("aabbbaab<ab>bb", " ", "a")),
        ("enwik8", "keep", ("aab\nbba\nab<ab>\nb\nb", " ", "a")),
        ("text8", "keep", ("the cat sat on the mat and the dog s\n", "at\n", "o\n")),
        ("ptb-char", "drop", ("the Na <unk>", "th", "n")),
        ("ptb-char", "keep", ("the N\na <unk>\n", "th\n", "n\n")),
        ("lm1b", None, ("the dog sat\nthe dog ran\nthe dog sat\n", "the cat\n", "the cat\n")),
    ):
        out = tmp_path / f"{corpus}-{line_feeds}"
        prepare(corpus, stand_in(corpus, tmp_path), out, line_feeds, check=False, progress=False)
        assert tuple((out / f"{part}.txt").read_text() for part in PARTS) == texts


def test_sentences_of_lm1b_have_one_boundary_between_them(tmp_path: Path):
    prepare("lm1b", stand_in("lm1b", tmp_path), tmp_path / "out", check=False, progress=False)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    words = tokenizer.convert_ids_to_tokens(tokenizer("the dog sat\nthe cat\n")["input_ids"])
    assert words == ["the", "dog", "<UNK>", "<S>", "the", "<UNK>", "<S>"]


def test_a_text_of_ones_own_may_have_any_name(tmp_path: Path):
    source = tmp_path / "mine.txt"
    source.write_bytes(ENWIK8)
    result = run(
        "prepare", "enwik8", source, "-o", tmp_path / "out", "--no-check", "--line-feeds", "keep", "--markdown"
    )
    assert result.exit_code == 0, result.output
    assert "| train | 4 | 18 | 18 |" in result.output
    preparation = json.loads((tmp_path / "out" / "preparation.json").read_text())
    assert preparation["checksums"] == {"mine.txt": f"md5:{md5(ENWIK8)}"}
    assert "it has no file for train" in run("prepare", "enwik8", source, "-o", tmp_path / "no").output


def test_parquet_of_the_hub_counts_as_the_official_file(tmp_path: Path):
    needs("datasets")  # which brings it
    import pyarrow
    from pyarrow import parquet

    rows = tmp_path / "rows"
    rows.mkdir()
    for part, text in WIKITEXT.items():
        split = "validation" if part == "valid" else part
        lines = text.splitlines()
        for shard, some in enumerate((lines[:1], lines[1:])):
            table = pyarrow.table({"text": pyarrow.array([line.strip() for line in some], pyarrow.string())})
            parquet.write_table(table, rows / f"{split}-0000{shard}-of-00002.parquet")
    result = prepare("wikitext-103", rows, tmp_path / "out", check=False, progress=False)
    expected = counts_of("wikitext-103", None)
    assert {what: result.counts[what] for what in expected} == expected


def stand_in_for_checks(monkeypatch: pytest.MonkeyPatch, corpus: str, **fields) -> None:
    monkeypatch.setitem(CORPORA, corpus, replace(CORPORA[corpus], **fields))


def test_what_comes_out_as_published_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stand_in_for_checks(monkeypatch, "enwik8", md5={"enwik8": md5(ENWIK8)}, counts={"vocabulary": 5})
    for line_feeds, size in (("drop", 5), ("keep", 6)):
        out = tmp_path / line_feeds
        result = run("prepare", "enwik8", stand_in("enwik8", tmp_path), "-o", out, "--line-feeds", line_feeds)
        assert result.exit_code == 0, result.output
        assert f"vocabulary: {size}" in result.output
        assert "as published: enwik8, vocabulary" in result.output
        assert json.loads((out / "preparation.json").read_text())["checked"] == ["enwik8", "vocabulary"]
    assert json.loads(run("prepare", "enwik8", tmp_path / "enwik8.zip", "-o", tmp_path / "j", "--json").stdout)[
        "counts"
    ]


@pytest.mark.parametrize(
    ("corpus", "fields", "message"),
    [
        ("enwik8", {}, "md5 [0-9a-f]{32} of 'enwik8', not a1fa5ffddb56f4953e226637dabbb36a"),
        ("wikitext-2", {}, "md5:[0-9a-f]{32}, not md5:542ccefacc6c27f945fb54453812b3cd"),
        ("lm1b", {}, "sha256:[0-9a-f]{64}, not sha256:01ba60381110"),
        ("lm1b", {"archive_digest": None}, "train lines 3, not 30,301,028; vocabulary 5, not 793,471"),
        ("ptb", {"md5": {}, "counts": {"test lines": 1, "vocabulary": 8}}, "\\(vocabulary 7, not 8\\)"),
    ],
)
def test_another_file_than_the_official_one_is_refused(corpus, fields, message, tmp_path: Path, monkeypatch):
    stand_in_for_checks(monkeypatch, corpus, **fields)
    with pytest.raises(ValueError, match=message) as error:
        prepare(corpus, stand_in(corpus, tmp_path), tmp_path / "out", progress=False)
    assert CORPORA[corpus].files in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_source_without_the_files_of_the_corpus_is_refused(tmp_path: Path):
    source = stand_in("enwik8", tmp_path)
    with pytest.raises(ValueError, match=r"it has no file for train, valid, test\): give simple-examples.tgz"):
        prepare("ptb", source, tmp_path / "out", check=False, progress=False)
    with zipfile.ZipFile(tmp_path / "part.zip", "w") as archive:
        archive.writestr("ptb.train.txt", "a dog\n")
        archive.writestr("ptb.test.txt", "a dog\n")
    with pytest.raises(ValueError, match=r"it has no file for valid\)"):
        prepare("ptb", tmp_path / "part.zip", tmp_path / "out", check=False, progress=False)


def test_a_damaged_archive_is_refused(tmp_path: Path):
    source = stand_in("ptb", tmp_path)
    source.write_bytes(source.read_bytes()[:-60])
    with pytest.raises(ValueError, match="is damaged .*download it again"):
        prepare("ptb", source, tmp_path / "out", check=False, progress=False)


PARTS_OF_PTB = {f"ptb.{part}.txt": b"a dog and a cat\n" * 2000 for part in ("train", "valid", "test")}


def tar(path: Path, mode: str) -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in PARTS_OF_PTB.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def refused(source: Path, message: str, corpus: str = "ptb") -> None:
    out = source.parent / "out"
    result = run("prepare", corpus, source, "-o", out, "--no-check")
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert not out.exists()


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zip"])
def test_a_checksum_of_an_archive_that_is_wrong_is_refused(tmp_path: Path, kind: str):
    """Of all data, also behind the last file of the corpus; without published checksums too."""
    if kind == "zip":
        path = tmp_path / "ptb.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, data in PARTS_OF_PTB.items():
                archive.writestr(name, data)
        damaged = path.read_bytes().replace(b"a cat", b"a rat", 1)
    else:
        path = tar(tmp_path / f"ptb.tar.{kind}", f"w:{kind}")
        whole = path.read_bytes()
        at = {"gz": -8, "bz2": -5, "xz": -20}[kind]  # in the checksum, or the index of checked sizes
        damaged = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
    assert run("prepare", "ptb", path, "-o", tmp_path / "whole", "--no-check").exit_code == 0
    path.write_bytes(damaged)
    refused(path, "is damaged")


def test_a_tar_that_ends_too_early_is_refused(tmp_path: Path):
    path = tar(tmp_path / "ptb.tar", "w")
    whole = path.read_bytes()
    second = whole.index(b"ptb.valid.txt")
    for damaged in (whole[:second], whole[:second] + b"x" + whole[second + 1 :], whole[: second + 100]):
        path.write_bytes(damaged)
        refused(path, "is damaged")
    path.write_bytes(whole)
    assert run("prepare", "ptb", path, "-o", tmp_path / "whole", "--no-check").exit_code == 0


@pytest.mark.parametrize("corpus", ["enwik8", "text8", "log"])
def test_a_broken_or_compressed_file_is_not_the_text_itself(tmp_path: Path, corpus: str):
    source = stand_in("enwik8", tmp_path, repeat=50)
    source.write_bytes(source.read_bytes()[:-30])
    options = () if corpus == "log" else ("--no-check",)
    for path, data in ((source, source.read_bytes()), (tmp_path / "enwik8.gz", gzip.compress(b"a b c\n" * 99))):
        path.write_bytes(data)
        result = run("prepare", corpus, path, "-o", tmp_path / "out", *options)
        assert result.exit_code == 2, result.output
        assert "is packed" in " ".join(result.output.split())
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_no_name_in_an_archive_becomes_a_path(tmp_path: Path, kind: str):
    """Names with `..`, absolute names, links and devices: files are read by the last part of their names."""
    inside, path = tmp_path / "deep" / "inside", tmp_path / f"ptb.{kind}"
    inside.mkdir(parents=True)
    names = dict(
        zip(PARTS_OF_PTB, ("../../ptb.train.txt", f"{tmp_path}/ptb.valid.txt", "..\\..\\/ptb.test.txt"), strict=True)
    )
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in PARTS_OF_PTB.items():
                archive.writestr(names[name], data)
    else:
        with tarfile.open(path, "w") as tarred:
            for name, data in PARTS_OF_PTB.items():
                link = tarfile.TarInfo(f"x/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tarred.addfile(link)
                entry = tarfile.TarInfo(names[name])
                entry.size = len(data)
                tarred.addfile(entry, io.BytesIO(data))
    before = sorted(tmp_path.rglob("*"))
    result = run("prepare", "ptb", path, "-o", inside / "out", "--no-check")
    assert result.exit_code == 0, result.output
    assert (inside / "out" / "train.txt").read_bytes() == PARTS_OF_PTB["ptb.train.txt"]
    assert [each for each in sorted(tmp_path.rglob("*")) if inside / "out" not in (each, *each.parents)] == before


def test_arguments_that_mean_nothing_are_refused(tmp_path: Path):
    source = stand_in("ptb", tmp_path)
    for arguments, message in (
        (("ptb", source, "--line-feeds", "keep"), "`line_feeds`='keep' is for symbols"),
        (("pbt", source), "`corpus`='pbt' is not one of enwik8, text8"),
        (("ptb-char", words_as_characters(tmp_path), "--no-check"), "holds 'the', where characters"),
    ):
        result = run("prepare", *arguments, "-o", tmp_path / "out")
        assert result.exit_code == 2
        assert message in result.output
        assert not (tmp_path / "out").exists()


def words_as_characters(folder: Path) -> Path:
    path = folder / "ptb.char.train.txt"
    path.write_text("the dog\n")
    return path
