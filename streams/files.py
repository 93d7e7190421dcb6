"""Text files as token ids: one row for all of them, or a row for each document in them."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm.auto import tqdm

from transformers_xl.streams.documents import check_end_of_text, without_empty
from transformers_xl.streams.token_cache import cached_arrays, file_digest, tokenizer_digest


def read_ids(
    paths: Iterable[str | PathLike],
    tokenizer,
    chunk_bytes: int = 1 << 20,
    progress: bool = True,
    cache_dir: str | PathLike | None = None,
) -> tuple[np.ndarray, int]:
    """Read files and tokenise them, joined in the order given, without special tokens.

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
    files, size = _check_files(paths)

    def make() -> dict[str, np.ndarray]:
        rows = []
        with tqdm(total=size, unit="B", unit_scale=True, desc="tokenising", disable=not progress) as bar:
            for file in files:
                with file.open("rb") as stream:
                    for chunk in _chunks(stream, chunk_bytes):
                        rows += _encode(tokenizer, [chunk], file)
                        bar.update(len(chunk))
        return {"ids": np.concatenate(rows)}

    key = partial(_key, files, tokenizer, kind="ids", chunk_bytes=chunk_bytes)
    return _cached(cache_dir, key, make)["ids"], size


def read_predicted(paths: Iterable[str | PathLike], tokenizer, progress: bool = True) -> tuple[np.ndarray, int]:
    """As [`read_ids`], but the bytes are those of all tokens but the first, which nothing predicts; of a tokenizer without
    `decode_bytes`, of all."""
    ids, size = read_ids(paths, tokenizer, progress=progress)
    first = len(tokenizer.decode_bytes(ids[:1].tolist())) if hasattr(tokenizer, "decode_bytes") else 0
    return ids, size - first


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
    if separator == "":
        raise ValueError(
            "`separator` is empty: give what stands between documents, or None for one document per file."
        )
    check_end_of_text(tokenizer, append_eos)
    files, total = _check_files(paths)

    def make() -> dict[str, np.ndarray]:
        rows, size, before = [], 0, 0
        with tqdm(total=total, unit="B", unit_scale=True, desc="tokenising", disable=not progress) as bar:
            for file in files:
                with file.open("rb") as stream:
                    for parts in _parts(stream, separator):
                        documents = without_empty(parts)
                        size += sum(map(len, documents))
                        rows += _encode(tokenizer, documents, file, append_eos)
                        bar.update(before + stream.tell() - bar.n)
                    before += stream.tell()
        if not rows:
            raise ValueError(f"`paths`: {', '.join(map(str, files))} hold nothing but white space: give texts.")
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        return {"ids": np.concatenate(rows), "lengths": lengths, "bytes": np.array([size])}

    key = partial(_key, files, tokenizer, kind="documents", separator=separator, append_eos=append_eos)
    arrays = _cached(cache_dir, key, make)
    documents = np.split(arrays["ids"], np.cumsum(arrays["lengths"])[:-1])
    return documents, int(arrays["bytes"][0])


def _check_files(paths: Iterable[str | PathLike]) -> tuple[list[Path], int]:
    """The files, and how many bytes they hold."""
    files = [Path(path) for path in paths]
    if not files:
        raise ValueError("`paths` is empty: give at least one text file.")
    for file in files:
        if not file.is_file():
            raise ValueError(f"`paths`: {str(file)!r} is not a file that can be read.")
    size = sum(file.stat().st_size for file in files)
    if size == 0:
        raise ValueError(f"`paths`: {', '.join(map(str, files))} are empty: give files with text in them.")
    return files, size


def _key(files: list[Path], tokenizer, **options) -> dict:
    return {"version": 1, "files": file_digest(files), "tokenizer": tokenizer_digest(tokenizer), **options}


def _cached(
    cache_dir: str | PathLike | None, key: Callable[[], dict], make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Without a folder nothing is hashed."""
    return make() if cache_dir is None else cached_arrays(cache_dir, key(), make)


def _chunks(stream: BinaryIO, chunk_bytes: int) -> Iterator[bytes]:
    while lines := stream.readlines(chunk_bytes):
        yield b"".join(lines)


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


def _encode(tokenizer, texts: list[bytes], file: Path, append_eos: bool = False) -> list[np.ndarray]:
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


__all__ = ["read_documents", "read_ids", "read_predicted", "split_held_out"]
