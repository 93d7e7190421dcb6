"""The files of a corpus as they were published: in a .zip or .tar.gz archive, in a folder, as parquet, or one by itself.

Nothing is unpacked: members are read by name, so that no name in an archive becomes a path.
"""

import hashlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from transformers_xl.hub.installing import pip_install


def members(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name (without folders) and content of each file that is `wanted`, one in memory at a time; in the order of the
    archive, or of the names in a folder. Of a parquet file, the lines of its column `text`.

    Raises:
        ValueError: an archive or a parquet file is damaged.
    """
    try:
        for name, data in _files(source, wanted):
            yield name, _lines_of_parquet(data) if name.endswith(".parquet") else data
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise ValueError(f"`source`={str(source)!r} is damaged ({error}): download it again.") from error


def _files(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file() and wanted(path.name):
                yield path.name, path.read_bytes()
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            for entry in archive.infolist():
                if wanted(name := PurePosixPath(entry.filename).name):
                    yield name, archive.read(entry)
    elif is_archive(source):
        with tarfile.open(source, "r|*") as archive:  # in one pass: a .tar.gz has no index
            for member in archive:
                if member.isfile() and wanted(name := PurePosixPath(member.name).name):
                    stream = archive.extractfile(member)
                    assert stream is not None
                    yield name, stream.read()
    elif wanted(source.name):
        yield source.name, source.read_bytes()


def is_archive(source: Path) -> bool:
    return source.is_file() and (zipfile.is_zipfile(source) or tarfile.is_tarfile(source))


def md5(data: bytes) -> str:
    """The checksum that the files of these corpora are published with."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def file_digest(path: Path, algorithm: str) -> str:
    """The checksum of a file by `"md5"` or `"sha256"`."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def _lines_of_parquet(data: bytes) -> bytes:
    try:
        from pyarrow import lib, parquet
    except ImportError as error:
        raise ValueError(f"Parquet files need the package datasets: {pip_install('datasets')}.") from error
    try:
        rows = parquet.read_table(io.BytesIO(data), columns=["text"])["text"].to_pylist()
    except (lib.ArrowException, KeyError) as error:
        raise ValueError(f"`source` holds parquet without rows of `text` ({error}).") from error
    # on the Hub a row is a line, with its line feed or without
    return "".join(f"{row.removesuffix(chr(10))}\n" for row in rows).encode()


__all__ = ["file_digest", "is_archive", "md5", "members"]
