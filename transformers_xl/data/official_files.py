"""The files of a corpus as they were published: in a .zip or .tar.gz archive, in a folder, as parquet, or one by itself.

Nothing is unpacked: members are read by name, so that no name in an archive becomes a path.
"""

import hashlib
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from transformers_xl.files.bounded_reading import check_parquet, check_ratio, open_unpacked
from transformers_xl.hub.installing import pip_install

# how a compressed file or an archive begins; no text begins so
PACKED = {
    b"PK\x03\x04": "ZIP", b"PK\x05\x06": "ZIP", b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard", b"7z\xbc\xaf\x27\x1c": "7z",
}  # fmt: skip
# what Python's readers raise, one or the other, for damaged files
DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, OverflowError,
    RuntimeError, OSError,
)  # fmt: skip


class WholeArchive(tarfile.TarInfo):
    """A header of a tar archive. One that is damaged, or missing, is an error: for tarfile it is the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> "WholeArchive":
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # not in typeshed: the block of zeros at the end
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error


def members(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name (without folders) and content of each file that is `wanted`, one in memory at a time; in the order of the
    archive, or of the names in a folder. Of a parquet file, the lines of its column `text`.

    Raises:
        ValueError: an archive or a parquet file is damaged, or a file is packed that should be text.
    """
    try:
        for name, data in _files(source, wanted):
            check_unpacked(source, name, data)
            yield name, _lines_of_parquet(data) if name.endswith(".parquet") else data
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, which names the file
            raise
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
                    check_ratio(entry.file_size, entry.compress_size, f"{source}::{entry.filename}")
                    yield name, archive.read(entry)
    elif is_archive(source):
        with _tar(source) as archive:
            for member in archive:
                if member.isfile() and wanted(name := PurePosixPath(member.name).name):
                    stream = archive.extractfile(member)
                    assert stream is not None
                    yield name, stream.read()
    elif wanted(source.name):
        yield source.name, source.read_bytes()


@contextmanager
def _tar(source: Path) -> Iterator[tarfile.TarFile]:
    """An archive that is read in one pass, as a .tar.gz has no index, and to its end, where its checksum stands."""
    with (
        open_unpacked(source) as opened,
        tarfile.open(fileobj=opened, mode="r|", tarinfo=WholeArchive) as archive,
    ):
        yield archive
        while opened.read(1 << 20):
            pass


def _packing(beginning: bytes) -> str | None:
    return next((name for mark, name in PACKED.items() if beginning.startswith(mark)), None)


def check_unpacked(source: Path, name: str, data: bytes) -> None:
    """Raise a `ValueError` where the file `name`, which should be text, is an archive that is broken, or compressed."""
    packing = _packing(data)
    if packing is not None:
        which = "" if name == source.name else f" holds {name!r}, which"
        raise ValueError(
            f"`source`={str(source)!r}{which} is packed ({packing}) and can be read neither as an archive of the corpus "
            "nor as text: download it again, or unpack it."
        )


def is_archive(source: Path) -> bool:
    return source.is_file() and (zipfile.is_zipfile(source) or _is_tar(source))


def _is_tar(source: Path) -> bool:
    """Whether the first header is one of a tar archive: `tarfile.is_tarfile` would read one of any length."""
    try:
        with open_unpacked(source) as stream:
            tarfile.TarInfo.frombuf(stream.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
            return True
    except DAMAGED:
        return False


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
        check_parquet(parquet.read_metadata(io.BytesIO(data)), len(data), "source")
        rows = parquet.read_table(io.BytesIO(data), columns=["text"])["text"].to_pylist()
    except (lib.ArrowException, KeyError) as error:
        raise ValueError(f"`source` holds parquet without rows of `text` ({error}).") from error
    # on the Hub a row is a line, with its line feed or without
    return "".join(f"{row.removesuffix(chr(10))}\n" for row in rows).encode()


__all__ = ["check_unpacked", "file_digest", "is_archive", "md5", "members"]
