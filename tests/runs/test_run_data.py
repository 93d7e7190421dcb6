"""The texts of a run: every kind of file, and how the held-out part is found and counted."""

import bz2
import gzip
import json
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest
from optional_packages import needs

from transformers_xl import ByteTokenizer, WordTokenizer
from transformers_xl.data.document_stream import DocumentStream
from transformers_xl.data.streaming_text import StreamingText
from transformers_xl.data.text_files import TextCounts, TextFile, count_text
from transformers_xl.runs.run_config import DataSection
from transformers_xl.runs.run_data import files_to_read, read_data, text_folder

TEXT = "na\u00efve words .\nmore of them\n"
ROWS = ["one two three", "four", "five six", "seven eight nine ten"]


def section(*paths: object, **fields) -> DataSection:
    return DataSection(path=[str(path) for path in paths], **fields)


def spelled(rows: list[np.ndarray]) -> list[str]:
    return [ByteTokenizer().decode_bytes(row.tolist()).decode() for row in rows]


def archive(folder: Path, **members: str) -> Path:
    with zipfile.ZipFile(folder / "texts.zip", "w") as file:
        for name, text in members.items():
            file.writestr(f"{name}.txt", text)
    return folder / "texts.zip"


@pytest.mark.parametrize("ending", [".txt", ".gz", ".xz", ".bz2", ".zst", ".zip"])
def test_texts_are_decompressed(tmp_path: Path, ending: str):
    data = TEXT.encode()
    path = tmp_path / f"text{ending}"
    if ending == ".zip":
        path = archive(tmp_path, only=TEXT)
    elif ending == ".zst":
        path.write_bytes(needs("zstandard").compress(data))
    else:
        path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}.get(ending, bytes)(data))
    read = read_data(section(path, eval_path=[str(path)]), ByteTokenizer(), progress=False)
    assert spelled(read.rows) == [TEXT]
    # the first byte, which nothing predicts, is not counted, but its word is
    assert read.held_out.counts == TextCounts(len(data) - 1, len(TEXT) - 1, 6)


@pytest.mark.parametrize("ending", [".txt", ".gz", ".zip"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, ending: str):
    """Notepad writes one, and nothing in the text begins with it."""
    data, path = TEXT.encode("utf-8-sig"), tmp_path / f"text{ending}"
    if ending == ".zip":
        path = archive(tmp_path, only="\ufeff" + TEXT)
    else:
        path.write_bytes(gzip.compress(data) if ending == ".gz" else data)
    read = read_data(section(path, eval_path=[str(path)]), ByteTokenizer(), progress=False)
    assert spelled(read.rows) == [TEXT]
    assert read.held_out.counts.bytes == len(TEXT.encode()) - 1


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zst", ".zip"])
def test_a_damaged_text_is_not_read_in_part(tmp_path: Path, ending: str):
    """Cut off anywhere, or with a byte that is another: with the name of the file."""
    data, path = (
        np.random.default_rng(0).integers(97, 123, 300_000).astype(np.uint8).tobytes(),
        tmp_path / f"text{ending}",
    )
    if ending == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("text.txt", data)
    elif ending == ".zst":
        path.write_bytes(needs("zstandard").ZstdCompressor(write_checksum=True).compress(data))
    else:
        path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[ending](data))
    whole = path.read_bytes()
    middle = len(whole) // 2
    other = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for damaged in (whole[:5], whole[:middle], whole[:-9], whole[:-1], other):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"text{ending}' cannot be read"):
            read_data(section(path, eval_path=[str(path)]), ByteTokenizer(), progress=False)


def test_all_frames_of_a_zst_are_read(tmp_path: Path):
    """Tools that compress in parallel write several; datasets does not see where the last one was cut off."""
    compress, path = needs("zstandard").compress, tmp_path / "rows.jsonl.zst"
    lines = [json.dumps({"text": row}).encode() + b"\n" for row in ROWS]
    frames = b"".join(map(compress, lines))
    path.write_bytes(frames)
    assert TextFile(path).open().read() == b"".join(lines)
    path.write_bytes(b"")
    assert TextFile(path).open().read() == b""
    path.write_bytes(frames[:-1])
    with pytest.raises(ValueError, match=r"rows\.jsonl\.zst' cannot be read: .*ends in the middle"):
        read_data(section(path, documents=True), ByteTokenizer(), progress=False)


def test_members_of_an_archive(tmp_path: Path):
    path = archive(tmp_path, first="a\n", second="b\n")
    assert TextFile(f"{path}::second.txt").open().read() == b"b\n"
    with pytest.raises(ValueError, match="holds 2 files.*::first.txt"):
        TextFile(path)
    with pytest.raises(ValueError, match="has no 'third.txt'.*first.txt, second.txt"):
        TextFile(f"{path}::third.txt").open()
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ValueError, match="no .zip"):
        TextFile(f"{tmp_path / 'a.txt'}::b")


def test_texts_are_counted_as_python_counts_them(tmp_path: Path):
    text = " a\u00e9\u3042 b\tc\n\n d\U0001f600" * 70_000  # more than one piece
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text("x y")
    found = count_text([tmp_path / "a.txt", tmp_path / "b.txt"], skipped_bytes=2)
    assert found == (len(text.encode()) + 3 - 2, len(text) + 3 - 2, len(text.split()) + 2)


@pytest.mark.parametrize("tokenizer", ["bytes", "words"])
def test_the_end_of_a_text_is_held_out(tmp_path: Path, tokenizer: str):
    path = tmp_path / "a.txt"
    path.write_text("one two\nthree four\nfive six\nseven eight\n")
    if tokenizer == "bytes":
        read = read_data(section(path, eval_fraction=0.3), ByteTokenizer(), progress=False)
        assert spelled([*read.rows, *read.held_out.rows]) == [
            path.read_text()[:28], path.read_text()[28:],
        ]  # fmt: skip
        return
    words = WordTokenizer.train_from_files([path], progress=False)
    read = read_data(section(path, eval_fraction=0.3, cache_dir=str(tmp_path / "cache")), words, progress=False)
    whole = words(path.read_text())["input_ids"]
    assert np.concatenate([*read.rows, *read.held_out.rows]).tolist() == whole
    assert words.decode(read.held_out.rows[0].tolist()).split()[:2] == ["seven", "eight"]  # from the start of a line
    assert read.held_out.counts == TextCounts(12, 12, 2)
    assert list((tmp_path / "cache").glob("*.safetensors"))


def test_a_folder_with_splits(tmp_path: Path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(f"{name}, a text\n")
    read = read_data(section(tmp_path), ByteTokenizer(), progress=False)
    assert spelled(read.rows) == ["train, a text\n"]
    assert spelled(read.held_out.rows) == ["valid, a text\n"]
    assert text_folder(section(tmp_path)) == tmp_path
    (tmp_path / "train.txt").unlink()
    assert spelled(
        read_data(section(tmp_path, eval_path=[str(tmp_path / "valid.txt")]), ByteTokenizer(), False).rows
    ) == ["test, a text\nvalid, a text\n"]


def test_splits_are_those_of_each_folder(tmp_path: Path, caplog):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for name in ("train", "valid", "test"):
            (tmp_path / folder / f"{name}.txt").write_text(f"{name} of {folder}\n")
    (tmp_path / "more.txt").write_text("more\n")
    (tmp_path / "one" / "novel.txt").write_text("in no split\n")
    paths = (tmp_path / "one", tmp_path / "more.txt", tmp_path / "two")
    read = read_data(section(*paths), ByteTokenizer(), progress=False)
    assert spelled(read.rows) == ["train of one\nmore\ntrain of two\n"]
    assert spelled(read.held_out.rows) == ["valid of one\nvalid of two\n"]
    files_to_read(section(*paths))
    assert caplog.text.count("novel.txt is not read") == 1  # a command looks several times
    assert "test.txt" not in caplog.text


def test_the_vocabulary_of_a_tokenizer_is_no_text(tmp_path: Path):
    """In the folder of texts, and in a folder of its own inside."""
    (tmp_path / "words").mkdir()
    for folder in (tmp_path, tmp_path / "words"):
        (folder / "tokenizer_config.json").write_text("{}")
        (folder / "vocab.txt").write_text("[UNK]\n")
    (tmp_path / "words" / "added.txt").write_text("no text\n")
    (tmp_path / "corpus.txt").write_text(TEXT * 3)
    read = read_data(section(tmp_path), ByteTokenizer(), progress=False)
    assert spelled([np.concatenate([*read.rows, *read.held_out.rows])]) == [TEXT * 3]


def tables(folder: Path, kind: str) -> Path:
    datasets = needs("datasets")
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        datasets.Dataset.from_dict({"text": ROWS}).to_parquet(path)
    else:
        path.write_text("".join(json.dumps({"text": row, "id": 1}) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_are_documents_or_one_stream(tmp_path: Path, kind: str, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    path = tables(tmp_path, kind)
    documents = read_data(section(path, documents=True, eval_fraction=0.3), ByteTokenizer(), progress=False)
    assert sorted(spelled([*documents.rows, *documents.held_out.rows])) == sorted(ROWS)
    held = spelled(documents.held_out.rows)
    assert documents.held_out.counts == TextCounts(
        sum(len(row) - 1 for row in held), sum(len(row) - 1 for row in held), sum(len(row.split()) for row in held)
    )
    assert isinstance(documents.stream(4, 1), DocumentStream)
    stream = read_data(section(path, eval_fraction=0.3), ByteTokenizer(), progress=False)
    assert spelled(stream.rows) == ["".join(ROWS[:3])]
    assert spelled(stream.held_out.rows) == [ROWS[3]]


def test_rows_are_streamed(tmp_path: Path):
    path = tables(tmp_path, "jsonl")
    with pytest.raises(ValueError, match="separate held-out text"):
        read_data(section(path, streaming=True), ByteTokenizer(), progress=False)
    read = read_data(section(path, streaming=True, eval_path=[str(path)]), ByteTokenizer(), progress=False)
    assert read.tokens is None
    assert isinstance(read.stream(4, 1), StreamingText)
    first = next(iter(read.stream(4, 1)))["input_ids"]
    assert spelled([first.numpy()]) == ["one "]
    assert spelled(read.held_out.rows) == ["".join(ROWS)]


def test_a_dataset_is_read_by_its_name_and_splits(tmp_path: Path, monkeypatch):
    datasets = needs("datasets")
    for split, rows in (("train", ROWS[:3]), ("test", ROWS[3:])):
        datasets.Dataset.from_dict({"body": rows}).to_parquet(tmp_path / "rows" / f"{split}.parquet")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    fields = {"dataset": str(tmp_path / "rows"), "eval_split": "test", "text_field": "body"}
    for streaming in (False, True):
        read = read_data(section(streaming=streaming, **fields), ByteTokenizer(), progress=False)
        assert spelled(read.held_out.rows) == [ROWS[3]]
        first = next(iter(read.stream(4, 1)))["input_ids"]
        assert spelled([np.asarray(first)]) == [ROWS[0][:4]]
    with pytest.raises((ValueError, OSError), match="'no/where'"):
        read_data(section(dataset="no/where"), ByteTokenizer(), progress=False)


def test_texts_of_documents(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("\n--\n".join(ROWS))
    fields = {"documents": True, "separator": "\n--\n", "append_eos": True, "eval_fraction": 0.3}
    read = read_data(section(path, **fields), ByteTokenizer(), progress=False)
    assert sorted(spelled([*read.rows, *read.held_out.rows])) == sorted(ROWS)
    assert all(row[-1] == ByteTokenizer().eos_token_id for row in read.rows)


def test_one_stream_is_cut_as_the_section_says(tmp_path: Path):
    (tmp_path / "a.txt").write_text(TEXT * 20)
    data = read_data(section(tmp_path / "a.txt", overlap=4), ByteTokenizer(), progress=False)
    stream, held_out = data.stream(10, 2), data.held_out.stream(10, 1, overlap=4)
    for each in (stream, held_out):
        assert each[each.lanes]["input_ids"][:4].tolist() == each[0]["input_ids"][-4:].tolist()
        assert each[each.lanes]["shift_labels"][:4].tolist() == [-100] * 4
    for name in ("vary_lengths", "roll"):
        data = read_data(section(tmp_path / "a.txt", **{name: True}), ByteTokenizer(), progress=False)
        stream = data.stream(10, 2)
        assert (stream.vary_lengths, stream.roll) == (name == "vary_lengths", name == "roll")
        assert data.held_out.stream(10, 1).identity["segment_length"] == 10


@pytest.mark.parametrize("fields", [{"documents": True}, {"streaming": True}])
@pytest.mark.parametrize("cut", [{"overlap": 4}, {"vary_lengths": True}, {"roll": True}])
def test_documents_and_what_is_streamed_are_not_cut_so(cut: dict, fields: dict):
    with pytest.raises(ValueError, match=rf"`data\.{next(iter(cut))}`=.* is for a text that is one stream"):
        read_data(section("any.txt", **fields, **cut), ByteTokenizer(), progress=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "`data.path` is empty"),
        ({"path": ["missing.txt"]}, "missing.txt"),
        ({"path": ["{folder}"]}, "has no file that ends in"),
        ({"path": ["{text}"], "streaming": True}, "streaming"),
        ({"path": ["{text}"], "eval_fraction": 1.5}, "fraction"),
        ({"path": ["{text}", "{broken}"]}, "mix text with"),
        ({"path": ["{broken}"]}, "broken.jsonl' cannot be read"),
        ({"path": ["{text}"], "eval_path": ["{table}"]}, "mix text with"),
        ({"path": ["{text}"], "eval_path": ["missing.txt"]}, "`data.eval_path`.*missing.txt"),
        ({"path": ["{text}"], "text_field": "body"}, "`data.text_field`='body' is a field"),
        ({"path": ["{text}"], "append_eos": True}, "`data.append_eos`=True ends documents"),
        ({"path": ["{text}"], "separator": "\n"}, "`data.separator`='.n' parts"),
        ({"path": ["{table}"], "separator": "\n", "documents": True}, "`data.separator`='.n' parts"),
        ({"path": ["{text}"], "eval_split": "test"}, "`data.eval_split`='test' is of a dataset"),
        ({"dataset": "a/b", "eval_path": ["{text}"]}, "`data.eval_path`=.* give `data.eval_split`"),
        ({"path": ["{text}"], "documents": True}, "1 document"),
        ({"path": ["{table}"], "text_field": "body"}, "its columns are"),
        ({"path": ["{zip}"]}, "rows.jsonl' is a table, whose texts are a field"),
        ({"path": ["{zip}::rows.jsonl"]}, "rows.jsonl' is in an archive, where tables are not read"),
        ({"path": ["{null}"]}, "`data.text_field`='text' of row 1 is None: it must be a text"),
        ({"path": ["{text}"], "eval_path": ["{byte}"]}, "`data.eval_path`: of byte.txt no token is predicted"),
        ({"path": ["{ab}"], "eval_fraction": 0.5}, "`data.eval_fraction`: of ab.txt no token is predicted"),
        (
            {"path": ["{text}"], "eval_path": ["{byte}"], "documents": True, "append_eos": True},
            "`data.eval_path`: what is predicted of byte.txt stands for no bytes",
        ),
        ({"path": ["{text}"], "eval_source": "a.en"}, "`data.eval_source`='a.en' is of pairs"),
        ({"path": ["{one}"]}, "`data.eval_fraction`=0.1 holds out whole rows, and one.jsonl has 1 with a text"),
        ({"path": ["{latin}"]}, "`data.text_field`='text' has a text that is not UTF-8"),
        ({"path": ["{twice}"]}, r"twice.jsonl' cannot be read: .*specified twice"),
        ({"path": ["{text}"], "eval_path": ["{folder}"]}, "`data.eval_path`: the folder .* has no file that ends in"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, fields: dict, message: str):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "broken.jsonl").write_text('{"text": ')
    (tmp_path / "null.jsonl").write_text('{"text": "one"}\n{"text": null}\n')
    (tmp_path / "byte.txt").write_text("a")
    (tmp_path / "ab.txt").write_text("ab")
    (tmp_path / "one.jsonl").write_text('{"text": "one"}\n{"text": " "}\n')
    (tmp_path / "latin.jsonl").write_bytes('{"text": "na\u00efve"}\n{"text": "two"}\n'.encode("latin-1"))
    (tmp_path / "twice.jsonl").write_text('{"text": "one", "text": "two"}\n')
    with zipfile.ZipFile(tmp_path / "rows.zip", "w") as file:
        file.writestr("rows.jsonl", '{"text": "one"}\n')
    names = {path.stem: path for path in tmp_path.iterdir() if path.is_file()}
    names |= {"folder": tmp_path / "empty", "text": tmp_path / "a.txt", "zip": tmp_path / "rows.zip"}
    paths = {name: fields.get(name, []) for name in ("path", "eval_path")}
    if ["{table}"] in paths.values():
        names["table"] = tables(tmp_path, "jsonl")
    fields |= {name: [path.format(**names) for path in given] for name, given in paths.items()}
    with pytest.raises(ValueError, match=message):
        read_data(DataSection(**fields), ByteTokenizer(), progress=False)


def test_two_files_of_one_name_are_two_texts(tmp_path: Path):
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.txt").write_text(f"{name} {TEXT}")
    for held_out in ("test/data.txt", "test"):
        data = section(tmp_path / "train/data.txt", eval_path=[str(tmp_path / held_out)])
        read = read_data(data, ByteTokenizer(), progress=False)
        assert not read.shared
        assert (read.names, read.eval_names) == ("data.txt", "data.txt")
        assert spelled(read.held_out.rows) == [f"test {TEXT}"]
    assert read_data(section(tmp_path / "train/data.txt"), ByteTokenizer(), progress=False).shared


def test_words_are_the_same_in_every_kind_of_file(tmp_path: Path):
    text = "one\u00a0two\u3000three four\n"
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n" + json.dumps({"text": " \n"}) + "\n")
    found = [
        read_data(section(path, eval_path=[str(path)], documents=True), ByteTokenizer(), progress=False)
        for path in (tmp_path / "a.txt", tmp_path / "a.jsonl")
    ]
    assert [each.held_out.counts.words for each in found] == [2, 2]
    assert [spelled(each.rows) for each in found] == [[text], [text]]  # without the row of white space


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "A.TAR.XZ"])
def test_archives_of_files_are_no_text(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(gzip.compress(TEXT.encode()))
    with pytest.raises(ValueError, match="is a tar archive, which holds files: unpack it"):
        read_data(section(tmp_path / name), ByteTokenizer(), progress=False)


@pytest.mark.parametrize("name", ["a.gzip", "a.txt", "texts.zip::a.txt"])
@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_compressed_bytes_are_no_text(tmp_path: Path, name: str, compress):
    """The name says which kind it is; a name that says nothing is refused."""
    data = compress(TEXT.encode() * 9)
    if "::" in name:
        with zipfile.ZipFile(tmp_path / "texts.zip", "w") as file:
            file.writestr("a.txt", data)
    else:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match="begins like compressed data, or Parquet, but its name"):
        read_data(section(tmp_path / name), ByteTokenizer(), progress=False)


def test_a_name_with_colons_is_that_of_a_file(tmp_path: Path):
    (tmp_path / "a::b.txt").write_text(TEXT)
    read = read_data(section(tmp_path / "a::b.txt", eval_fraction=0.5), ByteTokenizer(), progress=False)
    assert "".join(spelled([*read.rows, *read.held_out.rows])) == TEXT


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_tables_are_not_all_empty(tmp_path: Path, kind: str):
    empty = tmp_path / f"empty.{kind}"
    if kind == "parquet":
        datasets = needs("datasets")
        datasets.Dataset.from_dict({"text": []}, features=datasets.Features(text=datasets.Value("string"))).to_parquet(
            empty
        )
    else:
        empty.write_text("\n")
    with pytest.raises(ValueError, match="are empty: give rows with text in them"):
        read_data(section(empty), ByteTokenizer(), progress=False)
    for paths in ([tables(tmp_path, kind), empty], [empty, tables(tmp_path, kind)]):
        assert spelled(read_data(section(*paths), ByteTokenizer(), progress=False).held_out.rows) == [ROWS[3]]


def test_endings_in_capitals(tmp_path: Path):
    (tmp_path / "A.GZ").write_bytes(gzip.compress(TEXT.encode()))
    read = read_data(section(tmp_path / "A.GZ", eval_fraction=0.5), ByteTokenizer(), progress=False)
    assert "".join(spelled([*read.rows, *read.held_out.rows])) == TEXT
    tables(tmp_path, "jsonl").rename(tmp_path / "ROWS.JSONL")
    read = read_data(section(tmp_path / "ROWS.JSONL"), ByteTokenizer(), progress=False)
    assert spelled(read.held_out.rows) == [ROWS[3]]


def test_processes_need_a_document_each(tmp_path: Path):
    (tmp_path / "held.txt").write_text(TEXT)
    (tmp_path / "read.txt").write_text(TEXT)
    data = section(tmp_path / "read.txt", eval_path=[str(tmp_path / "held.txt")], documents=True)
    held_out = read_data(data, ByteTokenizer(), progress=False).held_out
    assert held_out.stream(8, 1, processes=1).lanes == 1
    with pytest.raises(ValueError, match="1 documents are held out, and 2 processes read them"):
        held_out.stream(8, 1, processes=2)
