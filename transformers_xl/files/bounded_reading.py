"""Compressed files that anybody may have written, read as long as what comes out is in proportion to what goes in."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

MAX_RATIO = 100  # text shrinks to a quarter, logs to a thirtieth; zeros by gzip to a thousandth, by xz to less
ALLOWANCE = 1 << 26  # bytes that come out of any file
OPENERS: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}


def check_ratio(made: int, read: int, name: str, allowance: int = ALLOWANCE) -> None:
    """Raise a `ValueError` where `made` bytes came out of `read` bytes of the file `name`: more than of any text."""
    if made > allowance + MAX_RATIO * read:
        raise ValueError(
            f"{name!r} holds more than {MAX_RATIO} times its size: this is no compressed text. Unpack it, if it is meant."
        )


def check_parquet(metadata: Any, size: int, name: str) -> None:
    """As [`check_ratio`], of a parquet file of `size` bytes by the rows and bytes that its end counts."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    check_ratio(max(metadata.num_rows, sum(group.total_byte_size for group in groups)), size, name)


class _Bounded(RawIOBase):
    """What `opened` decompresses of `raw`."""

    def __init__(self, opened: Any, raw: BinaryIO, name: str, allowance: int):
        self.opened, self.raw, self.name, self.allowance, self.made = opened, raw, name, allowance, 0
        self.read_some = getattr(opened, "read1", opened.read)  # what stands before a damage is read

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.made

    def readinto(self, buffer: Any) -> int:
        data = self.read_some(len(buffer))
        self.made += len(data)
        check_ratio(self.made, self.raw.tell(), self.name, self.allowance)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self.opened.close()
            self.raw.close()
        super().close()


def bounded_stream(opened: Any, raw: BinaryIO, name: str, allowance: int = ALLOWANCE) -> BinaryIO:
    """What `opened`, a reader that decompresses the file `raw`, gives.

    Reading raises a `ValueError` where more comes out of a file than of any text; `allowance`: bytes that come out of any.
    """
    return cast(BinaryIO, BufferedReader(_Bounded(opened, raw, name, allowance), 1 << 16))


def open_unpacked(path: Path, allowance: int = ALLOWANCE) -> BinaryIO:
    """The bytes of a file, decompressed where its first bytes say that it is compressed; bounds as [`bounded_stream`]."""
    raw = path.open("rb")
    begin = raw.read(8)
    raw.seek(0)
    opener = next((each for magic, each in OPENERS.items() if begin.startswith(magic)), None)
    return raw if opener is None else bounded_stream(opener(raw), raw, str(path), allowance)


__all__ = ["ALLOWANCE", "bounded_stream", "check_parquet", "check_ratio", "open_unpacked"]
