"""The texts of a comparison: one to train on, and documents to choose by and to score."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformers_xl.data.identity import digest_of
from transformers_xl.files.json_files import check_stream
from transformers_xl.runs.comparison_plan import ComparisonPlan
from transformers_xl.tokenization.tokenization_bytes import ByteTokenizer


class ComparisonTexts(NamedTuple):
    """Token ids of bytes: a text `(tokens,)`, and documents `(tokens,)` by name."""

    train: np.ndarray
    validation: dict[str, np.ndarray]
    test: dict[str, np.ndarray]

    def digests(self) -> dict[str, str]:
        """SHA-256 of each, by which a file of a comparison knows them again."""
        documents = {"validation": self.validation, "test": self.test}
        return {"train": digest_of([self.train])} | {
            name: digest_of(each.values()) for name, each in documents.items()
        }


def read_comparison_texts(plan: ComparisonPlan) -> ComparisonTexts:
    """The texts that a plan names.

    Raises:
        ValueError: one does not exist, is no JSON lines where its name says so, or has no document of two bytes.
    """
    train = np.concatenate([*_documents("train", plan.texts.train).values()])
    validation, test = (_documents(name, getattr(plan.texts, name)) for name in ("validation", "test"))
    limit = plan.document_bytes
    parts = ({name: ids[:limit] for name, ids in part.items()} for part in (validation, test))
    return ComparisonTexts(train, *parts)


def _documents(name: str, given: str) -> dict[str, np.ndarray]:
    """Documents by name: each file of a folder, or each line of a file of JSON lines, or else the file."""
    path = Path(given)
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file())
        texts = {each.relative_to(path).as_posix(): each.read_bytes() for each in files}
    elif path.is_file():
        texts = _lines(path) if path.suffix == ".jsonl" else {path.name: path.read_bytes()}
    else:
        raise ValueError(f"`texts.{name}`={given!r} does not exist: give a file, or a folder of files.")
    tokenizer = ByteTokenizer()
    found = {key: np.array(tokenizer.encode_bytes(text)) for key, text in texts.items() if len(text) > 1}
    if not found:
        raise ValueError(f"`texts.{name}`={given!r} has no document of two bytes or more: give another.")
    return found


def _lines(path: Path) -> dict[str, bytes]:
    """The `text` of each line, by its `name`, or by its number where it has none."""
    texts: dict[str, bytes] = {}
    with path.open("rb") as stream:
        check_stream(stream, str(path))
        stream.seek(0)
        for number, line in enumerate(stream, start=1):
            try:
                row = json.loads(line)
                texts[str(row.get("name", number))] = row["text"].encode()
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"line {number} of {str(path)!r} is no JSON object with a `text`: remove it."
                ) from error
    return texts


__all__ = ["ComparisonTexts", "read_comparison_texts"]
