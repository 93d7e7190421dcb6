"""The texts of a comparison: one to train on, and documents to choose by and to score."""

import codecs
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from transformers import PreTrainedTokenizerBase

from transformers_xl.data.identity import digest_of
from transformers_xl.data.text_files import TextFile, kind_of, refuse_table
from transformers_xl.files.json_files import check_stream
from transformers_xl.runs.comparison_plan import ComparisonPlan
from transformers_xl.runs.loading import load_tokenizer
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer


class Documents(NamedTuple):
    """Documents in the order of their names.

    Attributes:
        names: of each.
        ids: token ids of each `(tokens,)`.
        num_bytes: that all tokens of each but its first stand for `(documents,)`.
    """

    names: list[str]
    ids: list[np.ndarray]
    num_bytes: np.ndarray


class ComparisonTexts(NamedTuple):
    """Token ids `(tokens,)` to train on, and documents."""

    train: np.ndarray
    validation: Documents
    test: Documents

    def digests(self) -> dict[str, str]:
        """SHA-256 of the ids of each, by which a file of a comparison knows them again."""
        parts = {"train": [self.train], "validation": self.validation.ids, "test": self.test.ids}
        return {name: digest_of(ids) for name, ids in parts.items()}


@cache
def comparison_tokenizer(folder: str | None) -> PreTrainedTokenizerBase:
    """The tokenizer of a plan, which names its folder; None: bytes.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    if folder is None:
        return ByteTokenizer()
    if not Path(folder).is_dir():
        raise ValueError(
            f"`tokenizer`={folder!r} does not exist: give the folder of a tokenizer, or nothing for bytes."
        )
    return load_tokenizer(Path(folder))


def read_comparison_texts(plan: ComparisonPlan) -> ComparisonTexts:
    """The texts that a plan names, as tokens.

    Raises:
        ValueError: one does not exist, is no JSON lines where its name says so, has no document of two tokens, or is not
            what the tokenizer gives back.
    """
    limits = {"train": None, "validation": plan.document_bytes, "test": plan.document_bytes}
    train, validation, test = (_documents(plan, name, limit) for name, limit in limits.items())
    return ComparisonTexts(np.concatenate(train.ids), validation, test)


def check_apart(plan: ComparisonPlan) -> None:
    """Check that no text has a document of another.

    Raises:
        ValueError: a document is in two of them.
    """
    seen: dict[bytes, tuple[str, str]] = {}
    for name in ("train", "validation", "test"):
        for key, text in _texts(name, getattr(plan.texts, name)).items():
            other, other_key = seen.setdefault(text, (name, key))
            if other != name and len(text) > 1:
                raise ValueError(
                    f"`texts.{name}` has {key!r}, which `texts.{other}` has too, as {other_key!r}: a score on what a model "
                    "was trained or chosen on says nothing. Give each document once."
                )


def _documents(plan: ComparisonPlan, name: str, limit: int | None) -> Documents:
    """The beginnings, `limit` bytes, of the documents of a text."""
    given, tokenizer = getattr(plan.texts, name), comparison_tokenizer(plan.tokenizer)
    found = {}
    for key, text in _texts(name, given).items():
        is_cut = limit is not None and len(text) > limit
        found[key] = _tokens(tokenizer, text[:limit], f"`texts.{name}`, {key!r}", is_cut)
    found = {key: each for key, each in found.items() if len(each[0]) > 1}
    if not found:
        raise ValueError(f"`texts.{name}`={given!r} has no document of two tokens or more: give another.")
    ids, num_bytes = zip(*found.values(), strict=True)
    return Documents([*found], [*ids], np.array(num_bytes))


def _tokens(tokenizer: PreTrainedTokenizerBase, text: bytes, where: str, is_cut: bool) -> tuple[np.ndarray, int]:
    """Token ids of a text, and the bytes of all but the first. `is_cut`: its last character may not be whole."""
    if isinstance(tokenizer, ByteTokenizer):
        return np.array(tokenizer.encode_bytes(text)), len(text) - 1
    string = _string(text, where, is_cut)
    ids = tokenizer(string, add_special_tokens=False)["input_ids"]
    if tokenizer.decode(ids, clean_up_tokenization_spaces=False) != string:
        raise ValueError(
            f"{where}: `tokenizer` gives back another text than it read, so that bits per byte mean nothing: give one that "
            "loses nothing, such as a byte-level BPE."
        )
    first = cast(
        str, tokenizer.decode(ids[:1])
    )  # three bytes where it is a part of a character, as BPE of bytes may have
    return np.array(ids), len(string.encode()) - len(first.encode())


def _string(text: bytes, where: str, is_cut: bool) -> str:
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(text, final=not is_cut)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where} is not UTF-8 ({error.reason}): convert it, or compare bytes, without `tokenizer`."
        ) from error


def _texts(name: str, given: str) -> dict[str, bytes]:
    """Documents by name: each file of a folder but hidden ones, or each line of a file of JSON lines, or else the file."""
    path = Path(given)
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file() and not _is_hidden(each.relative_to(path)))
        for each in files:
            refuse_table(str(each))
        return {each.relative_to(path).as_posix(): _text(TextFile(each)) for each in files}
    if not path.is_file():
        raise ValueError(f"`texts.{name}`={given!r} does not exist: give a file, or a folder of files.")
    file = TextFile(path)
    if kind_of(str(file)) == ".jsonl":
        return _lines(file)
    refuse_table(str(file))
    return {path.name: _text(file)}


def _is_hidden(path: Path) -> bool:
    """As what systems and editors leave in a folder."""
    return any(part.startswith(".") for part in path.parts)


def _text(file: TextFile) -> bytes:
    with file.open() as stream:
        return stream.read()


def _lines(file: TextFile) -> dict[str, bytes]:
    """The `text` of each line, by its `name`, or by its number where it has none."""
    texts: dict[str, bytes] = {}
    with file.open() as stream:
        check_stream(stream, str(file))
    with file.open() as stream:
        for number, line in enumerate(stream, start=1):
            try:
                row = json.loads(line)
                name, text = row.get("name"), row["text"].encode()
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"line {number} of {str(file)!r} is no JSON object with a `text`: remove it."
                ) from error
            name = str(number if name is None else name)
            if name in texts:
                raise ValueError(
                    f"line {number} of {str(file)!r} has the `name` {name!r} again: give each its own, or none."
                )
            texts[name] = text
    return texts


__all__ = ["ComparisonTexts", "Documents", "check_apart", "comparison_tokenizer", "read_comparison_texts"]
