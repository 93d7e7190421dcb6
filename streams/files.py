"""Text files as one row of token ids."""

from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm.auto import tqdm


def read_ids(
    paths: Iterable[str | PathLike], tokenizer, chunk_bytes: int = 1 << 20, progress: bool = True
) -> tuple[np.ndarray, int]:
    """Read files and tokenise them, joined in the order given, without special tokens.

    Files are read in chunks of about `chunk_bytes` bytes, cut at the ends of lines. A tokenizer with `encode_bytes` takes
    any bytes; any other gets the text, which must be UTF-8.

    Args:
        paths: the files.
        tokenizer: a tokenizer of this package or of transformers.
        chunk_bytes: bytes to tokenise at a time.
        progress: show a bar on stderr.

    Returns:
        The token ids `(tokens,)` and the number of bytes they stand for.

    Raises:
        ValueError: no file is given, a file does not exist, is no file or is not UTF-8, or all files are empty.
    """
    files = [Path(path) for path in paths]
    if not files:
        raise ValueError("`paths` is empty: give at least one text file.")
    for file in files:
        if not file.is_file():
            raise ValueError(f"`paths`: {str(file)!r} is not a file that can be read.")
    size = sum(file.stat().st_size for file in files)
    if size == 0:
        raise ValueError(f"`paths`: {', '.join(map(str, files))} are empty: give files with text in them.")

    dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.int32
    rows = []
    with tqdm(total=size, unit="B", unit_scale=True, desc="reading", disable=not progress) as bar:
        for file in files:
            with file.open("rb") as stream:
                for chunk in _chunks(stream, chunk_bytes):
                    rows.append(np.asarray(_encode(tokenizer, chunk, file), dtype=dtype))
                    bar.update(len(chunk))
    return np.concatenate(rows), size


def _chunks(stream: BinaryIO, chunk_bytes: int) -> Iterator[bytes]:
    while lines := stream.readlines(chunk_bytes):
        yield b"".join(lines)


def _encode(tokenizer, chunk: bytes, file: Path) -> list[int]:
    if hasattr(tokenizer, "encode_bytes"):
        return tokenizer.encode_bytes(chunk)
    try:
        text = chunk.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"`paths`: {str(file)!r} is not UTF-8 ({error.reason}), which {type(tokenizer).__name__} needs: convert it, "
            "or use a byte-level tokenizer."
        ) from error
    return tokenizer(text, add_special_tokens=False)["input_ids"]


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


__all__ = ["read_ids", "split_held_out"]
