"""Text files as token ids: one row for all of them, or a row for each document in them.

Files may be compressed (.gz, .xz, .zst, .bz2), or members of a ZIP archive: `corpus.zip::member.txt`.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from io import BytesIO
from os import PathLike
from typing import BinaryIO

import numpy as np
from tqdm.auto import tqdm

from transformers_xl.data.documents import check_end_of_text, without_empty
from transformers_xl.data.text_beginning import beginning_of
from transformers_xl.data.text_files import TextCounts, TextFile, count_bytes, count_text, refuse_table
from transformers_xl.data.token_cache import cached_arrays, file_digest, tokenizer_digest


def read_ids(
    paths: Iterable[str | PathLike],
    tokenizer,
    chunk_bytes: int = 1 << 20,
    progress: bool = True,
    cache_dir: str | PathLike | None = None,
) -> tuple[np.ndarray, int]:
    """Read files and tokenise them, joined in the order given, without special tokens: a stream puts its `beginning` where
    a text begins.

    Files are read in chunks of about `chunk_bytes` bytes, cut at the ends of lines. A tokenizer with `encode_bytes` takes
    any bytes; any other gets the text, which must be UTF-8.

    Args:
        paths: the files.
        tokenizer: a tokenizer of this package or of transformers.
        chunk_bytes: bytes to tokenise at a time.
        progress: show a bar on stderr.
        cache_dir: a folder to keep the tokens in: the same files, tokenizer and options are tokenised once.

    Returns:
        The token ids `(tokens,)` and the number of bytes they stand for.

    Raises:
        ValueError: no file is given, a file does not exist, is no file or is not UTF-8, or all files are empty.
    """
    files, total = _check_files(paths)

    def make() -> dict[str, np.ndarray]:
        rows, size = [], 0
        with tqdm(
            total=total, unit="B", unit_scale=True, desc="tokenising", disable=None if progress else True
        ) as bar:
            for file in files:
                with file.open() as stream:
                    for chunk in _chunks(stream, chunk_bytes):
                        rows += _encode(tokenizer, [chunk], file)
                        size += len(chunk)
                        bar.update(len(chunk))
        if not size:
            raise ValueError(_nothing_in(files))
        return {"ids": np.concatenate(rows), "bytes": np.array([size])}

    key = partial(_key, files, tokenizer, kind="ids", chunk_bytes=chunk_bytes)
    arrays = _cached(cache_dir, key, make)
    return arrays["ids"], int(arrays["bytes"][0])


def read_predicted(
    paths: Iterable[str | PathLike], tokenizer, progress: bool = True, cache_dir: str | PathLike | None = None
) -> tuple[np.ndarray, TextCounts]:
    """As [`read_ids`], but the counts are those of all tokens but the first, if nothing predicts it: see
    [`unpredicted_bytes`]."""
    paths = list(paths)
    ids, _ = read_ids(paths, tokenizer, progress=progress, cache_dir=cache_dir)
    return ids, count_text(paths, unpredicted_bytes([ids], tokenizer))


def unpredicted_bytes(rows: Iterable[np.ndarray], tokenizer) -> int:
    """Bytes of the first token of each text, which nothing predicts. None where the tokenizer begins texts with its own
    id, which predicts it, or where it has no `decode_bytes`, which could tell."""
    if not hasattr(tokenizer, "decode_bytes") or beginning_of(tokenizer):
        return 0
    return sum(len(tokenizer.decode_bytes(list(map(int, row[:1])))) for row in rows)


def read_documents(
    paths: Iterable[str | PathLike],
    tokenizer,
    separator: str | None = None,
    append_eos: bool = False,
    progress: bool = True,
    cache_dir: str | PathLike | None = None,
) -> tuple[list[np.ndarray], int]:
    """Read files and tokenise the documents in them, in the order given, for a `DocumentStream`.

    Args:
        paths: the files.
        tokenizer: a tokenizer of this package or of transformers.
        separator: what stands between two documents of a file, such as `"\\n\\n"` or `"<|endoftext|>"`; it is left out, and
            so are documents of nothing but white space. `None`: every file is one document.
        append_eos: end every document with the tokenizer's `eos_token_id`.
        progress: show a bar on stderr.
        cache_dir: a folder to keep the tokens in: the same files, tokenizer and options are tokenised once.

    Returns:
        The token ids of each document `(tokens,)`, and the number of bytes of all of them, without separators and ends.

    Raises:
        ValueError: as [`read_ids`]; `separator` is empty; no document is left; or the tokenizer has no `eos_token_id`.
    """
    documents, counts = read_counted_documents(paths, tokenizer, separator, append_eos, progress, cache_dir)
    return documents, int(counts[:, 0].sum())


def read_counted_documents(
    paths: Iterable[str | PathLike],
    tokenizer,
    separator: str | None = None,
    append_eos: bool = False,
    progress: bool = True,
    cache_dir: str | PathLike | None = None,
) -> tuple[list[np.ndarray], np.ndarray]:
    """As [`read_documents`], with the bytes, characters and words of each document `(documents, 3)`."""
    if separator == "":
        raise ValueError(
            "`separator` is empty: give what stands between documents, or None for one document per file."
        )
    check_end_of_text(tokenizer, append_eos)
    files, total = _check_files(paths)

    def make() -> dict[str, np.ndarray]:
        rows, counts, before = [], [], 0
        with tqdm(
            total=total, unit="B", unit_scale=True, desc="tokenising", disable=None if progress else True
        ) as bar:
            for file in files:
                with file.open() as stream:
                    for parts in _parts(stream, separator):
                        documents = without_empty(parts)
                        counts += [count_bytes(document) for document in documents]
                        rows += _encode(tokenizer, documents, file, append_eos)
                        bar.update(before + stream.tell() - bar.n)
                    before += stream.tell()
        if not rows:
            raise ValueError(f"`paths`: {', '.join(map(str, files))} hold nothing but white space: give texts.")
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        return {"ids": np.concatenate(rows), "lengths": lengths, "counts": np.array(counts, dtype=np.int64)}

    key = partial(_key, files, tokenizer, kind="documents", separator=separator, append_eos=append_eos)
    arrays = _cached(cache_dir, key, make)
    return np.split(arrays["ids"], np.cumsum(arrays["lengths"])[:-1]), arrays["counts"]


def read_held_out(
    paths: Iterable[str | PathLike],
    tokenizer,
    fraction: float,
    progress: bool = True,
    cache_dir: str | PathLike | None = None,
) -> tuple[np.ndarray, np.ndarray, TextCounts]:
    """Read files as one text, and hold out its end.

    The text is cut after about `1 - fraction` of its bytes: anywhere by a tokenizer with `encode_bytes`, else at the end
    of a line. Both parts are tokenised as texts of their own.

    Returns:
        The ids to learn from, those that are held out, and the counts of the latter, as of [`read_predicted`].

    Raises:
        ValueError: as [`read_ids`]; `fraction` is not between 0 and 1, or one of the parts is empty.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"`fraction`={fraction} must lie between 0 and 1, for example 0.1.")
    files, _ = _check_files(paths)
    is_bytes = hasattr(tokenizer, "encode_bytes")

    def make() -> dict[str, np.ndarray]:
        text = b"".join(chunk for file in files for chunk in _read(file))
        cut = len(text) - round(len(text) * fraction)
        cut = cut if is_bytes else text.find(b"\n", cut - 1) + 1
        if not 0 < cut < len(text):
            raise ValueError(
                f"`fraction`={fraction} of a text of {len(text)} bytes leaves a part empty: use a longer text."
            )
        parts = [_encode_lines(tokenizer, part, files[0], progress) for part in (text[:cut], text[cut:])]
        counts = count_bytes(text[cut:], unpredicted_bytes(parts[1:], tokenizer))
        return {"ids": parts[0], "held_out": parts[1], "counts": np.array(counts)}

    # the ids have no beginning, but it says whether their first token counts
    begins = {"beginning": beginning} if (beginning := beginning_of(tokenizer)) else {}
    key = partial(_key, files, tokenizer, kind="held out", fraction=fraction, **begins)
    arrays = _cached(cache_dir, key, make)
    return arrays["ids"], arrays["held_out"], TextCounts(*arrays["counts"].tolist())


def _check_files(paths: Iterable[str | PathLike]) -> tuple[list[TextFile], int | None]:
    """The files, and how many bytes they hold where that can be told without reading them."""
    files = [TextFile(path) for path in paths]
    for file in files:
        refuse_table(str(file))
    if not files:
        raise ValueError("`paths` is empty: give at least one text file.")
    if any(file.is_compressed for file in files):
        return files, None
    size = sum(file.path.stat().st_size for file in files)
    if size == 0:
        raise ValueError(_nothing_in(files))
    return files, size


def _nothing_in(files: list[TextFile]) -> str:
    return f"`paths`: {', '.join(map(str, files))} are empty: give files with text in them."


def _key(files: list[TextFile], tokenizer, **options) -> dict:
    content = {"files": file_digest(file.path for file in files), "members": [file.member for file in files]}
    return {"version": 2, **content, "tokenizer": tokenizer_digest(tokenizer), **options}


def _cached(
    cache_dir: str | PathLike | None, key: Callable[[], dict], make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Without a folder nothing is hashed."""
    return make() if cache_dir is None else cached_arrays(cache_dir, key(), make)


def _chunks(stream: BinaryIO, chunk_bytes: int) -> Iterator[bytes]:
    while lines := stream.readlines(chunk_bytes):
        yield b"".join(lines)


def _read(file: TextFile) -> Iterator[bytes]:
    with file.open() as stream:
        yield stream.read()


def _encode_lines(tokenizer, text: bytes, file: TextFile, progress: bool) -> np.ndarray:
    """The ids of a text, tokenised in pieces that end at the ends of lines."""
    with tqdm(
        total=len(text), unit="B", unit_scale=True, desc="tokenising", disable=None if progress else True
    ) as bar:
        rows = []
        for chunk in _chunks(BytesIO(text), 1 << 20):
            rows += _encode(tokenizer, [chunk], file)
            bar.update(len(chunk))
    return np.concatenate(rows)


def _parts(stream: BinaryIO, separator: str | None, chunk_bytes: int = 1 << 20) -> Iterator[list[bytes]]:
    """The documents of a file, as many at a time as end in a chunk."""
    if separator is None:
        yield [stream.read()]
        return
    rest = b""
    while chunk := stream.read(chunk_bytes):
        *parts, rest = (rest + chunk).split(separator.encode())
        yield parts
    yield [rest]


def _encode(tokenizer, texts: list[bytes], file: TextFile, append_eos: bool = False) -> list[np.ndarray]:
    """A row of token ids for each text, in the smallest type that holds them all."""
    if not texts:
        return []
    if hasattr(tokenizer, "encode_bytes"):
        rows = [tokenizer.encode_bytes(text) for text in texts]
    else:
        try:
            decoded = [text.decode("utf-8") for text in texts]
        except UnicodeDecodeError as error:
            raise ValueError(
                f"`paths`: {str(file)!r} is not UTF-8 ({error.reason}), which {type(tokenizer).__name__} needs: "
                "convert it, or use a byte-level tokenizer."
            ) from error
        rows = tokenizer(decoded, add_special_tokens=False)["input_ids"]
    end = [tokenizer.eos_token_id] if append_eos else []
    dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.int32
    return [np.array([*row, *end], dtype=dtype) for row in rows]


def split_held_out(ids: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Split a text by position: the last `fraction` of its tokens is held out.

    Returns:
        The training part and the held-out part, views of `ids`.

    Raises:
        ValueError: `fraction` is not between 0 and 1, or one of the parts is empty.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"`fraction`={fraction} must lie between 0 and 1, for example 0.1.")
    kept = len(ids) - round(len(ids) * fraction)
    if not 0 < kept < len(ids):
        raise ValueError(
            f"`fraction`={fraction} of `ids` with {len(ids)} tokens leaves a part empty: use a longer text."
        )
    return ids[:kept], ids[kept:]


__all__ = [
    "read_counted_documents",
    "read_documents",
    "read_held_out",
    "read_ids",
    "read_predicted",
    "split_held_out",
    "unpredicted_bytes",
]
