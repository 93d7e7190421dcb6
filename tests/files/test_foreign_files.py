"""Files that somebody made to have no end, to be deeper or larger than they look, or to run: each is a sentence."""

import bz2
import gzip
import io
import lzma
import os
import re
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow
import pytest
from pyarrow import parquet

from transformers_xl.files import bounded_calls, json_files
from transformers_xl.files.bounded_calls import BoundedCalls, bounded
from transformers_xl.files.bounded_reading import bounded_stream, check_parquet, open_unpacked
from transformers_xl.files.json_files import MAX_DEPTH, MAX_TEXT_DEPTH, check_stream, read_json
from transformers_xl.files.plain_files import check_folder, read_plain
from transformers_xl.files.yaml_files import MAX_NODES, load_yaml, read_yaml


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.fixture(params=["pipe", "/dev/zero"])
def endless(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "file.json"
    if request.param == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(request.param)
    return path


@pytest.mark.parametrize(
    "read", [read_json, read_yaml, lambda path: read_plain(path, 9), lambda path: check_folder(path.parent)]
)
def test_what_has_no_end_is_not_opened(read: Callable, endless: Path):
    with pytest.raises(ValueError, match=r"file.json' is a pipe or a device: give a regular file"):
        read(endless)


def test_the_depth_of_json(tmp_path: Path):
    file = tmp_path / "config.json"
    file.write_text(nested(MAX_DEPTH))
    assert list(read_json(file)) == ["a"]
    for text in (nested(MAX_DEPTH + 1), '{"a":' * 100_000, "[" * 100_000):
        file.write_text(text)
        with pytest.raises(ValueError, match=rf"config.json' is not JSON .* more than {MAX_DEPTH} levels deep"):
            read_json(file)
    brackets = {"a": "[{" * 99, 'b"\\': ["]", "\\", '\\"[[[']}
    file.write_text(json_files.json.dumps(brackets))
    assert read_json(file) == brackets


def test_the_size_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "config.json"
    file.write_text('{"a": [[], [], {}]}')
    monkeypatch.setattr(json_files, "MAX_CONTAINERS", 4)
    with pytest.raises(ValueError, match="holds 5 lists and objects: at most 4 are read"):
        read_json(file)
    monkeypatch.setattr(json_files, "MAX_BYTES", 18)
    with pytest.raises(ValueError, match="longer than 18 bytes"):
        read_json(file)


@pytest.mark.parametrize("chunk_bytes", [7, 64, 1 << 24])
def test_the_depth_of_lines_of_json(chunk_bytes: int, monkeypatch: pytest.MonkeyPatch):
    line, deep = b'{"text": "[[[ \\" {{{ \\\\"}\n', nested(MAX_TEXT_DEPTH + 1).encode()
    check_stream(io.BytesIO(line * 300 + nested(MAX_TEXT_DEPTH).encode()), "a.jsonl", chunk_bytes)
    for text in (deep, line * 3 + deep + b"\n", b'"\n' + deep, b"[\n" * 9 + b"{}\n" * 9 + b"[\n" * MAX_TEXT_DEPTH):
        with pytest.raises(ValueError, match=rf"'a.jsonl' is not JSON .* {MAX_TEXT_DEPTH} levels deep"):
            check_stream(io.BytesIO(text), "a.jsonl", chunk_bytes)
    monkeypatch.setattr(json_files, "MAX_LINE", 100)
    with pytest.raises(ValueError, match="a line of more than 100 bytes"):
        check_stream(io.BytesIO(b'{"text": "' + b"a" * 999), "a.jsonl", 64)


LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAUGHS, f"aliases stand for more than {MAX_NODES:,} values"),
        ("a: &a [*a]", "in itself"),
        ("a: &a {b: &b [*a]}", "in itself"),
        ("[" * 70 + "]" * 70, "more than 64 levels deep"),
        ("[" * 1500, "levels deep|not YAML"),
        ("a: [1", "is not YAML"),
        ("a: !!python/object/apply:os.system ['touch run']", "is not YAML of plain values"),
        ("a: !!python/name:os.system", "is not YAML of plain values"),
        ("!!python/object/new:os.system [touch run]", "is not YAML of plain values"),
        ("a: !run b", "is not YAML of plain values"),
    ],
)
def test_hostile_yaml(text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said):
        load_yaml(text)
    assert not (tmp_path / "run").exists()


def test_yaml_of_people():
    assert load_yaml("a: &a {b: 1}\nc: {<<: *a, d: [2]}\ne: *a") == {
        "a": {"b": 1},
        "c": {"b": 1, "d": [2]},
        "e": {"b": 1},
    }
    assert load_yaml("") is None


def catastrophic() -> bool:
    return re.fullmatch("(a+)+b", "a" * 99) is None


def doubled() -> int:
    items = [0]
    while True:
        items += items


BOUNDLESS = [
    (catastrophic, "more than 1 s of processor time"),
    (lambda: len("a" * 10**12), "more than 64 MiB of memory"),
    (doubled, "more than 64 MiB of memory"),
    (lambda: "a" * 1001, "makes more than 1,000 bytes"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), "ends the process that reads it"),
    (lambda: os._exit(0), "ends the process that reads it"),
    (lambda: {}["key"], "KeyError: 'key'"),
    (lambda: int("x"), "^invalid literal"),
]


@pytest.mark.parametrize(("call", "said"), BOUNDLESS)
def test_a_call_that_has_no_bound(call: Callable, said: str):
    before = psutil.Process().children()  # of other tests
    with pytest.raises(ValueError, match=said):
        bounded(call, seconds=1, memory=1 << 26, most=1000)
    assert psutil.Process().children() == before  # nobody is left, also no process that has ended


def test_a_call_in_bounds(monkeypatch: pytest.MonkeyPatch):
    assert bounded(lambda text: text * 2, "\u00e9\ud83d ") == "\u00e9\ud83d " * 2
    assert bounded(lambda: None) is None
    assert bounded(lambda: os.read(0, 9).decode()) == ""  # nobody is asked
    monkeypatch.delattr(bounded_calls.os, "fork")
    assert bounded(lambda: "as it is") == "as it is"


@pytest.mark.parametrize(("call", "said"), BOUNDLESS)
def test_a_kept_process_has_the_same_bounds(call: Callable, said: str):
    before = psutil.Process().children()
    calls = BoundedCalls(lambda wrong: call() if wrong else "right", seconds=1, memory=1 << 26)
    for wrong in (False, True, False, True):
        if wrong:
            with pytest.raises(ValueError, match=said):
                calls(wrong, most=1000)
        else:
            assert calls(wrong, most=1000) == "right"
    calls.end()
    assert psutil.Process().children() == before


def test_a_process_is_kept_and_has_nothing_of_this_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with (tmp_path / "open").open("w") as file:
        calls = BoundedCalls(
            lambda number: [
                os.getpid(),
                os.path.exists(f"/proc/self/fd/{number}"),
                os.readlink("/proc/self/fd/0") == os.devnull,
            ]
        )
        first, other = calls(file.fileno()), calls(1)
        assert first == [other[0], False, True]
        assert first[0] != os.getpid()
    os.kill(first[0], signal.SIGKILL)
    with pytest.raises(ValueError, match="ends the process"):
        calls(1)
    assert calls(1)[0] != first[0]
    os.kill(calls(1)[0], signal.SIGINT)  # Ctrl-C is for this process
    assert calls(1)[1:] == [True, True]
    calls.end()
    calls.end()
    monkeypatch.delattr(bounded_calls.os, "fork")
    assert calls(1)[0] == os.getpid()


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_bomb_ends_where_its_ratio_shows(pack: Callable[[bytes], bytes], tmp_path: Path):
    file = tmp_path / "bomb.tar"
    file.write_bytes(pack(bytes(1 << 23)))
    with open_unpacked(file, 1 << 16) as stream:
        with pytest.raises(ValueError, match=r"bomb.tar' holds more than 100 times its size"):
            stream.read()
        assert stream.raw.made < 1 << 22
    with open_unpacked(file) as stream:  # it is small
        assert stream.read() == bytes(1 << 23)


def test_a_text_that_shrinks_as_texts_do(tmp_path: Path):
    text = b"".join(b"%d bottles of beer on the wall\n" % number for number in range(99999))
    file = tmp_path / "text"
    file.write_bytes(gzip.compress(text))
    with open_unpacked(file, 0) as stream:
        assert stream.read() == text
    raw = file.open("rb")
    assert bounded_stream(gzip.GzipFile(fileobj=raw), raw, "text", 0).readlines() == text.splitlines(True)


def test_a_header_of_a_tar_archive_is_no_bomb(tmp_path: Path):
    """Of a pax header, Python's reader takes all that it claims to be."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 27
    file = tmp_path / "a.tgz"
    file.write_bytes(gzip.compress(header.tobuf() + bytes(1 << 27)))
    with (
        pytest.raises(ValueError, match="more than 100 times its size"),
        open_unpacked(file) as stream,
        tarfile.open(fileobj=stream, mode="r|"),
    ):
        pass


def test_a_parquet_file_of_few_bytes_and_many_rows(tmp_path: Path):
    file = tmp_path / "a.parquet"
    table = pyarrow.table({"text": pyarrow.DictionaryArray.from_arrays([0] * 10**6, ["a" * 10**5])})
    parquet.write_table(table, file, compression="zstd")
    size = file.stat().st_size
    check_parquet(parquet.read_metadata(file), size, "a.parquet")

    class Claimed:
        """Metadata, which anybody may have written."""

        num_rows, num_row_groups = 10**12, 0

    with pytest.raises(ValueError, match=r"'a.parquet' holds more than 100 times its size"):
        check_parquet(Claimed, size, "a.parquet")
