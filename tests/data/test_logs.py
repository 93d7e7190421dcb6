"""`transformers-xl prepare log`: what comes later is held out, on a log whose counts are worked out by hand."""

import json
from pathlib import Path

import pytest
from programs import run
from transformers import AutoTokenizer

from transformers_xl.data.logs import prepare_log

# ten lines of 8 bytes behind a date of 6
LINES = [f"07-22 {word} run\n" for word in ("aaa", "bbb", "aaa", "bbb", "aaa", "bbb", "aaa", "bbb", "ccc", "aaa")]


def log(folder: Path) -> Path:
    path = folder / "x.log"
    path.write_text("".join(LINES))
    return path


def test_parts_follow_each_other_in_time(tmp_path: Path):
    result = prepare_log(log(tmp_path), tmp_path / "out", drop_columns=6)
    texts = [(tmp_path / "out" / f"{part}.txt").read_text() for part in ("train", "valid", "test")]
    assert texts == ["aaa run\nbbb run\n" * 4, "ccc run\n", "aaa run\n"]
    counts = {"train words": 3, "valid words": 2, "test words": 2, "valid new words": 1, "test new words": 0}
    counts |= {
        "train lines": 8,
        "train bytes": 64,
        "valid lines": 1,
        "valid bytes": 8,
        "test lines": 1,
        "test bytes": 8,
    }
    assert result.counts == counts | {"vocabulary": 8}  # a b c r u n, a space, a line feed
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    assert tokenizer.decode(tokenizer(texts[0])["input_ids"]) == texts[0]


def test_a_byte_order_mark_is_no_part_of_a_line(tmp_path: Path):
    path = log(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    prepare_log(path, tmp_path / "out", drop_columns=6)
    assert (tmp_path / "out" / "train.txt").read_text().startswith("aaa run\n")


def test_the_share_that_is_held_out(tmp_path: Path):
    result = prepare_log(log(tmp_path), tmp_path / "out", held_out=0.6)
    assert [result.counts[f"{part} lines"] for part in ("train", "valid", "test")] == [4, 3, 3]


def test_lines_are_kept_as_they_are(tmp_path: Path):
    path = tmp_path / "x.log"
    path.write_bytes(b"a\rb\r\n\n" * 9 + b"the end")
    prepare_log(path, tmp_path / "out")
    texts = [(tmp_path / "out" / f"{part}.txt").read_bytes() for part in ("train", "valid", "test")]
    assert b"".join(texts) == path.read_bytes() + b"\n"
    assert all(text.endswith(b"\n") for text in texts)


def test_the_command_says_what_is_new(tmp_path: Path):
    result = run("prepare", "log", log(tmp_path), "-o", tmp_path / "out", "--drop-columns", 6, "--markdown")
    assert result.exit_code == 0, result.output
    assert "| valid | 1 | 8 | 2 | 1 |" in result.output
    assert json.loads((tmp_path / "out" / "preparation.json").read_text())["drop_columns"] == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("log", "--drop-columns", 20), "`drop_columns`=20 leaves nothing of any line"),
        (("log", "--held-out", 0.01), "has 10 lines, too few for valid: name a longer file"),
        (("log", "--line-feeds", "keep"), "`line_feeds`='keep' is for corpora of symbols"),
        (("log", "--held-out", 1), "`held_out`=1.0 must be above 0 and below 1"),
        (("ptb", "--drop-columns", 6), "`drop_columns`=6 is for a log"),
        (("ptb", "--held-out", 0.1), "`held_out`=0.1 is for a log"),
    ],
)
def test_what_means_nothing_is_refused(arguments, message, tmp_path: Path):
    result = run("prepare", arguments[0], log(tmp_path), *arguments[1:], "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_a_folder_is_no_log(tmp_path: Path):
    with pytest.raises(ValueError, match=r"`source`='.*' is a folder"):
        prepare_log(tmp_path, tmp_path / "out")


def test_a_packed_file_is_refused(tmp_path: Path):
    path = tmp_path / "x.log.gz"
    path.write_bytes(b"\x1f\x8b\0\0")
    with pytest.raises(ValueError, match=r"x\.log\.gz' is packed \(gzip\) .* or unpack it"):
        prepare_log(path, tmp_path / "out")
    (tmp_path / "zeros.log").write_bytes(b"a\0b\n" * 9)
    with pytest.raises(ValueError, match=r"zeros\.log' is not a text file: unpack it first"):
        prepare_log(tmp_path / "zeros.log", tmp_path / "out")
    (tmp_path / "blank.log").write_bytes(b" \n" * 99)
    with pytest.raises(ValueError, match=r"blank\.log' has no text: name another file"):
        prepare_log(tmp_path / "blank.log", tmp_path / "out")
    with pytest.raises(ValueError, match="`drop_columns`=-1 must not be negative"):
        prepare_log(path, tmp_path / "out", drop_columns=-1)
