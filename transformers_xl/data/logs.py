"""A log, or any text whose lines stand in the order of time: what comes later is held out."""

import json
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from transformers_xl.data.official_files import check_unpacked
from transformers_xl.data.paper_corpora import PARTS
from transformers_xl.data.text_files import BYTE_ORDER_MARK
from transformers_xl.files.digests import sha256
from transformers_xl.files.output_folder import output_folder
from transformers_xl.files.plain_files import check_regular
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer


@dataclass(frozen=True)
class LogPreparation:
    """What came out of a log, as `preparation.json` holds it.

    Attributes:
        source: name of the file.
        sha256: its checksum.
        drop_columns: bytes that were left out at the start of every line.
        held_out: share of the text for validation and test together.
        counts: `vocabulary`; `lines`, `bytes` and `words` (different ones, parted by white space) of each part; and `new
            words` of the held-out parts: those that the training part lacks.
    """

    source: str
    sha256: str
    drop_columns: int
    held_out: float
    counts: dict[str, int]


def prepare_log(source: Path, output: Path, drop_columns: int = 0, held_out: float = 0.2) -> LogPreparation:
    """Write `train.txt`, `valid.txt` and `test.txt`, cut at ends of lines, a tokenizer of the bytes that occur
    (`tokenizer/`), and `preparation.json`.

    Args:
        source: a text file, its oldest line first.
        output: the folder.
        drop_columns: bytes to leave out at the start of every line: a date that all lines of a day share is learned by
            heart, and the days that are held out have others.
        held_out: share of the bytes at the end, half of it for validation and, after that, half for test.

    Raises:
        ValueError: the file is no text, or has too few lines, or a number is out of range. Nothing is written then.
    """
    if drop_columns < 0:
        raise ValueError(f"`drop_columns`={drop_columns} must not be negative: 0 leaves lines as they are.")
    if not 0 < held_out < 1:
        raise ValueError(f"`held_out`={held_out} must be above 0 and below 1: a share of the text.")
    if source.is_dir():
        raise ValueError(f"`source`={str(source)!r} is a folder: name the log, a file.")
    check_regular(source)
    data = source.read_bytes().removeprefix(BYTE_ORDER_MARK)
    check_unpacked(source, source.name, data)
    if b"\0" in data:
        raise ValueError(f"`source`={str(source)!r} is not a text file: unpack it first, or name another file.")
    lines = data.removesuffix(b"\n").split(b"\n")
    text = b"".join(line[drop_columns:] + b"\n" for line in lines)
    if drop_columns and not text.strip() and data.strip():
        raise ValueError(f"`drop_columns`={drop_columns} leaves nothing of any line: give a lower number.")
    kept = (1 - held_out, 1 - held_out / 2)
    bounds = [0, *(text.rfind(b"\n", 0, round(share * len(text))) + 1 for share in kept), len(text)]
    parts = {part: text[start:stop] for part, (start, stop) in zip(PARTS, pairwise(bounds), strict=True)}
    if not text.strip():
        raise ValueError(f"`source`={str(source)!r} has no text: name another file.")
    empty = [part for part in PARTS if not parts[part].strip()]
    if empty:
        raise ValueError(
            f"`source`={str(source)!r} has {len(lines)} lines, too few for {' and '.join(empty)}: name a longer file."
        )
    tokenizer = ByteTokenizer(symbols=set(text))
    preparation = LogPreparation(
        source.name, sha256(source), drop_columns, held_out, _counts(parts) | {"vocabulary": len(tokenizer)}
    )
    with output_folder(output) as folder:
        for part, piece in parts.items():
            (folder / f"{part}.txt").write_bytes(piece)
        tokenizer.save_pretrained(folder / "tokenizer")
        record = json.dumps(asdict(preparation), indent=2) + "\n"
        (folder / "preparation.json").write_text(record, encoding="utf-8", newline="\n")
    return preparation


def _counts(parts: dict[str, bytes]) -> dict[str, int]:
    words = {part: {*text.split()} for part, text in parts.items()}
    counts = {f"{part} bytes": len(text) for part, text in parts.items()}
    counts |= {f"{part} lines": text.count(b"\n") for part, text in parts.items()}
    counts |= {f"{part} words": len(words[part]) for part in PARTS}
    return counts | {f"{part} new words": len(words[part] - words["train"]) for part in PARTS[1:]}


__all__ = ["LogPreparation", "prepare_log"]
