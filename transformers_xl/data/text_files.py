"""Text files as bytes: plain, compressed, or a member of a ZIP archive; and how much text is in them."""

import os
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from io import BufferedReader, RawIOBase
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import fsspec

from transformers_xl.files.blaming import blamed
from transformers_xl.files.bounded_reading import check_ratio

zstandard: Any = None
with suppress(ImportError):  # of the extra `zstd`
    import zstandard

COMPRESSED = (".gz", ".xz", ".zst", ".bz2", ".zip")
CONTINUATIONS = bytes(range(0x80, 0xC0))  # of UTF-8
# of gzip, xz, zstd, ZIP and Parquet; bzip2 begins with letters, and has its own test
MAGIC = (b"\x1f\x8b\x08", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"PAR1\x15")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # that editors of Windows write before a text in UTF-8, and which is no part of it
MEMBER = "::"  # corpus.zip::member.txt
TARS = (".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst")
TABLES = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}  # as `datasets` calls them


def suffix_of(path: str | PathLike) -> str:
    """The ending of a file, in lower case."""
    return Path(path).suffix.lower()


def kind_of(path: str) -> str:
    """The ending of a file, without that of its compression, in lower case."""
    path = path.rpartition(MEMBER)[2]
    return suffix_of(Path(path).with_suffix("") if suffix_of(path) in COMPRESSED else path)


def parted(path: str | PathLike) -> tuple[str, str]:
    """A file, and the member of it that is meant, empty where it is the file itself: its name may hold colons."""
    name, _, member = (str(path), "", "") if os.path.exists(path) else str(path).partition(MEMBER)
    return name, member


def refuse_table(path: str) -> None:
    """Raise a `ValueError` where a text is asked for, and the file has rows with texts in a field."""
    if kind_of(path) in TABLES:
        raise ValueError(
            f"`paths`: {path!r} is a table, whose texts are a field of its rows: give a file of plain text. Only `train` "
            "(`data.path`) and `compare` read tables."
        )


def name_of(path: str) -> str:
    """A file or folder of this machine, or a member of an archive, without where it lies; other words as they are."""
    file, member = parted(path)
    return Path(file).name + (MEMBER + member if member else "") if os.path.exists(file) else path


class BlamedReader(RawIOBase):
    """What `opened` reads; its errors, of any kind, name the file. `raw`: the file that it decompresses, of which no more
    may come out than of any text."""

    def __init__(self, opened: Any, path: Path, raw: BinaryIO | None = None):
        self.opened, self.path, self.raw, self.place = opened, path, raw, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with blamed(self.path):
            data = self.opened.read(len(buffer))
        buffer[: len(data)] = data
        self.place += len(data)
        if self.raw is not None:
            check_ratio(self.place, self.raw.tell(), str(self.path))
        return len(data)

    def tell(self) -> int:
        return self.place

    def close(self) -> None:
        self.opened.close()
        if self.raw is not None:
            self.raw.close()
        super().close()


class WholeFrames:
    """A .zst file, frame by frame. The readers of zstandard end silently where a file was cut off, and after its first
    frame."""

    def __init__(self, file: BinaryIO):
        self.file, self.close = file, file.close
        self.frame: Any = None  # that is not at its end
        self.compressed, self.text = b"", memoryview(b"")

    def read(self, size: int) -> bytes:
        while not self.text:
            self.compressed = self.compressed or self.file.read(1 << 12)  # a few bytes may stand for many
            if not self.compressed and self.frame is None:
                return b""
            if not self.compressed:
                raise EOFError("it ends in the middle of its data: copy it again.")
            frame = self.frame or zstandard.ZstdDecompressor().decompressobj()
            self.text = memoryview(frame.decompress(self.compressed))
            self.compressed, self.frame = frame.unused_data, None if frame.eof else frame
        data, self.text = self.text[:size], self.text[size:]
        return bytes(data)


class TextCounts(NamedTuple):
    """How long a text is: bytes, characters, and words, which are what white space parts. None: it is not known."""

    bytes: int
    characters: int | None = None
    words: int | None = None


class TextFile:
    """A file of text, whose bytes `open()` gives decompressed.

    Args:
        path: a file, or `archive.zip::member`; the member may be left out where there is one only.

    Raises:
        ValueError: it is no file, or an archive without that member.
    """

    def __init__(self, path: str | PathLike):
        name, self.member = parted(path)
        self.path = Path(name)
        if not self.path.is_file():
            raise ValueError(f"`paths`: {str(path)!r} is not a file that can be read.")
        if kind_of(name) in TARS:
            raise ValueError(f"`paths`: {str(path)!r} is a tar archive, which holds files: unpack it, and name those.")
        if suffix_of(self.path) == ".zip":
            self.member = self._only_member() if not self.member else self.member
        elif self.member:
            raise ValueError(f"`paths`: {str(path)!r} names a member, but {name!r} is no .zip: leave it out.")

    def __str__(self) -> str:
        return f"{self.path}{MEMBER}{self.member}" if self.member else str(self.path)

    @property
    def is_compressed(self) -> bool:
        return suffix_of(self.path) in COMPRESSED

    def open(self) -> BinaryIO:
        """The bytes of the text, without a byte order mark. To read them raises a `ValueError` where the file is damaged,
        or was cut off.

        Raises:
            ValueError: there is no such member, or no package for this kind of compression.
        """
        stream = self._opened()
        if stream.peek(len(BYTE_ORDER_MARK)).startswith(BYTE_ORDER_MARK):
            stream.read(len(BYTE_ORDER_MARK))
        return stream

    def _opened(self) -> BufferedReader:
        if self.member:
            with blamed(self.path), zipfile.ZipFile(self.path) as archive:
                if self.member not in archive.namelist():
                    raise ValueError(
                        f"`paths`: {str(self.path)!r} has no {self.member!r}: its members are {self._listed(archive)}."
                    )
                entry = archive.getinfo(self.member)
                check_ratio(entry.file_size, entry.compress_size, str(self))
                self._refuse_compressed(archive.open(self.member))
                return self._reader(archive.open(self.member))
        if suffix_of(self.path) == ".zst" and "zstd" not in fsspec.available_compressions():
            raise ValueError(f"`paths`: {str(self.path)!r} needs the package zstandard: `pip install zstandard`.")
        raw = self.path.open("rb")
        if not self.is_compressed:
            self._refuse_compressed(self.path.open("rb"))
            return raw
        if suffix_of(self.path) == ".zst" and zstandard is not None:
            return self._reader(WholeFrames(raw), raw)
        kind = fsspec.utils.infer_compression(str(self.path))
        return self._reader(fsspec.compression.compr[kind](raw, mode="rb"), raw)

    def check(self) -> None:
        """Raise a `ValueError` where the file is damaged, or was cut off: it is read to its end."""
        with self.open() as stream:
            while stream.read(1 << 20):
                pass

    def _refuse_compressed(self, opened: Any) -> None:
        """Raise a `ValueError` where a plain text begins as compressed data do."""
        with opened:
            start = b"" if kind_of(str(self)) in TABLES else opened.read(10)
        if start.startswith(MAGIC) or (start[:3] == b"BZh" and start[4:] == b"1AY&SY"):
            raise ValueError(
                f"`paths`: {str(self)!r} begins like compressed data, or Parquet, but its name does not say so: "
                f"unpack it, or rename it (to {', '.join((*COMPRESSED, *TABLES))})."
            )

    def _reader(self, opened: Any, raw: BinaryIO | None = None) -> BufferedReader:
        return BufferedReader(BlamedReader(opened, self.path, raw), 1 << 16)  # not all readers know lines

    def _only_member(self) -> str:
        with blamed(self.path), zipfile.ZipFile(self.path) as archive:
            files = [each.filename for each in archive.infolist() if not each.is_dir()]
            if len(files) == 1:
                return files[0]
            raise ValueError(
                f"`paths`: {str(self.path)!r} holds {len(files)} files: name one, as in "
                f"'{self.path}{MEMBER}{files[0] if files else 'text.txt'}'; there are {self._listed(archive)}."
            )

    @staticmethod
    def _listed(archive: zipfile.ZipFile) -> str:
        names = archive.namelist()
        return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


def count_text(paths: Iterable[str | PathLike], skipped_bytes: int = 0) -> TextCounts:
    """The length of all files together, read once in pieces.

    Args:
        paths: the files.
        skipped_bytes: bytes at the beginning that count as no bytes and no characters: those of the first token, which
            nothing predicts. Their word counts.

    Returns:
        The counts. Characters are bytes that continue no other: exact in UTF-8.
    """
    size = characters = words = 0
    for path in paths:
        in_word = False  # a file ends its last word
        with TextFile(path).open() as stream:
            while chunk := stream.read(1 << 20):
                words += len(chunk.split()) - (in_word and not chunk[:1].isspace())
                in_word = not chunk[-1:].isspace()
                part = chunk[max(0, skipped_bytes - size) :]
                characters += len(part.translate(None, CONTINUATIONS))
                size += len(chunk)
    return TextCounts(size - skipped_bytes, characters, words)


def count_bytes(text: bytes, skipped_bytes: int = 0) -> TextCounts:
    """The length of a text; `skipped_bytes` as in [`count_text`]."""
    part = text[skipped_bytes:]
    return TextCounts(len(part), len(part.translate(None, CONTINUATIONS)), len(text.split()))


__all__ = [
    "COMPRESSED",
    "MEMBER",
    "TABLES",
    "TextCounts",
    "TextFile",
    "count_bytes",
    "count_text",
    "kind_of",
    "name_of",
    "parted",
    "refuse_table",
    "suffix_of",
]
