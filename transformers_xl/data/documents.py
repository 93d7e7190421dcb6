"""Documents before they are a stream: from a text, from `datasets`, and held out."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, AnyStr

import numpy as np

from transformers_xl.data.token_cache import tokenizer_digest

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset


def split_documents(text: AnyStr, separator: AnyStr) -> list[AnyStr]:
    """The documents of a text, str or bytes, without `separator` and without those of nothing but white space."""
    if not separator:
        raise ValueError("`separator` is empty: give what stands between documents, for example a blank line.")
    return without_empty(text.split(separator))


def without_empty(parts: Iterable[AnyStr]) -> list[AnyStr]:
    """The parts that are more than white space."""
    return [part for part in parts if part.strip()]


def check_end_of_text(tokenizer, append_eos: bool) -> None:
    """Raise a `ValueError` where an end of text is asked for that the tokenizer does not have."""
    if append_eos and tokenizer.eos_token_id is None:
        raise ValueError("`append_eos`=True needs a tokenizer with an `eos_token`: set it, or leave the ends out.")


def tokenize_dataset(
    dataset: "Dataset | IterableDataset",
    tokenizer,
    column: str = "text",
    append_eos: bool = False,
    num_proc: int | None = None,
) -> "Dataset | IterableDataset":
    """Tokenise each row of a `datasets.Dataset`, or of a streaming `datasets.IterableDataset` as it is read.

    A `Dataset` is tokenised with a progress bar, by `num_proc` processes, and kept in the cache of `datasets`, under a
    fingerprint of the dataset, the tokenizer and the options; an interrupted run leaves no file there.

    Args:
        dataset: rows with a text each.
        tokenizer: a tokenizer of this package or of transformers; no special tokens are added, a stream has `beginning` for
            those.
        column: the column of texts.
        append_eos: end every row with the tokenizer's `eos_token_id`.
        num_proc: number of processes, for a `Dataset`.

    Returns:
        The same kind of dataset, with the columns `input_ids`, and `num_bytes` (in UTF-8), `num_characters` and `num_words`
        (parted by white space) of the text.

    Raises:
        ValueError: there is no such column, a row has no text in it, or the tokenizer has no `eos_token_id`.
    """
    names = dataset.column_names  # None where a stream has not told them
    if names is not None and column not in names:
        raise ValueError(f"`column`={column!r} is not in the dataset: its columns are {', '.join(names)}.")
    check_end_of_text(tokenizer, append_eos)
    options: dict[str, Any] = {
        "batched": True,
        "with_indices": True,
        "remove_columns": names,
        "fn_kwargs": {"tokenizer": tokenizer, "column": column, "append_eos": append_eos},
    }
    if hasattr(dataset, "__len__"):
        # `datasets` would hash the tokenizer as it is in memory, which its first use changes
        key = json.dumps(
            ["tokenize and count bytes", dataset._fingerprint, tokenizer_digest(tokenizer), column, append_eos]
        )
        fingerprint = hashlib.sha256(key.encode()).hexdigest()[:32]
        options |= {"desc": "tokenising", "num_proc": num_proc, "new_fingerprint": fingerprint}
    return dataset.map(_tokenize, **options)


def _tokenize(rows: dict[str, list], numbers: list[int], tokenizer, column: str, append_eos: bool) -> dict[str, list]:
    try:
        texts = rows.get(column, [None])
    except UnicodeDecodeError as error:  # pyarrow reads texts here
        raise ValueError(
            f"`column`={column!r} has a text that is not UTF-8 ({error.reason}): convert the file."
        ) from error
    for number, text in zip(numbers, texts, strict=False):
        if not isinstance(text, str):
            raise ValueError(f"`column`={column!r} of row {number} is {text!r}: it must be a text, remove the row.")
    end = [tokenizer.eos_token_id] if append_eos else []
    ids = tokenizer(rows[column], add_special_tokens=False)["input_ids"]
    return {
        # words by the white space of ASCII, as in files
        "input_ids": [np.array([*row, *end], dtype=np.int32) for row in ids],
        "num_bytes": [len(text.encode("utf-8")) for text in rows[column]],
        "num_characters": [len(text) for text in rows[column]],
        "num_words": [len(text.encode("utf-8").split()) for text in rows[column]],
    }


def dataset_documents(dataset: "Dataset", column: str = "input_ids") -> list[np.ndarray]:
    """The token ids of each row `(tokens,)`, for a `DocumentStream`, or joined by `np.concatenate` for a `TextStream`."""
    batches = dataset.with_format("numpy", columns=[column]).iter(batch_size=1000)
    return [np.asarray(row) for batch in batches for row in batch[column]]


def hold_out_documents(documents: Sequence[Any], fraction: float, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """Hold out whole documents, drawn by chance, with about `fraction` of all tokens.

    Args:
        documents: token ids of each, or anything with a length.
        fraction: share of the tokens, between 0 and 1.
        seed: of the draw: the same documents are held out every time.

    Returns:
        The documents to train on and those that are held out, each in their order.

    Raises:
        ValueError: `fraction` is not between 0 and 1, or one of the parts is empty.
    """
    chosen = held_out_places([len(document) for document in documents], fraction, seed)
    kept = [document for index, document in enumerate(documents) if index not in chosen]
    return kept, [documents[index] for index in sorted(chosen)]


def held_out_places(lengths: Sequence[int], fraction: float, seed: int = 0) -> set[int]:
    """The places of the documents that [`hold_out_documents`] holds out, by the lengths of all."""
    if not 0 < fraction < 1:
        raise ValueError(f"`fraction`={fraction} must lie between 0 and 1, for example 0.1.")
    order = np.random.default_rng(seed).permutation(len(lengths))
    # as many of them as come nearest to the share
    sums = np.concatenate([[0], np.cumsum(np.array(lengths)[order])])
    count = int(np.abs(sums - fraction * sums[-1]).argmin())
    if not 0 < count < len(lengths):
        raise ValueError(
            f"`fraction`={fraction} of {len(lengths)} document{'s' * (len(lengths) != 1)} leaves a part empty: use more "
            "documents, or a `separator` that stands between them."
        )
    return set(order[:count].tolist())


__all__ = [
    "check_end_of_text",
    "dataset_documents",
    "held_out_places",
    "hold_out_documents",
    "split_documents",
    "tokenize_dataset",
    "without_empty",
]
