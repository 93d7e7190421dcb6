"""Sentences and their translations: from two files, from JSON lines, and from `datasets`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformers_xl.data.text_files import TextFile, kind_of, parted
from transformers_xl.files.json_files import json_lines
from transformers_xl.files.parquet_files import parquet_rows
from transformers_xl.files.plain_files import check_regular

MAX_BYTES = 1 << 32
Pairs = list[tuple[str, str]]


def read_pairs(source: str, target: str, files: Sequence[str] = ()) -> Pairs:
    """Pairs of texts.

    Args:
        source, target: two files, also compressed, whose lines belong together; or, with `files`, the fields of their rows,
            also inside of others as in `translation.en`.
        files: JSON lines, or Parquet (`pip install '.[datasets]'`).

    Raises:
        ValueError: a file is missing, the files have different numbers of lines, a line is empty on one side, or a field is
            missing.
        OSError: a file cannot be read.
    """
    if files:
        return pairs_of_rows([row for file in files for row in _rows_of(file)], source, target)
    sides = [_lines_of(name, file) for name, file in (("source", source), ("target", target))]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"`source`={source!r} has {len(sides[0]):,} lines, `target`={target!r} {len(sides[1]):,}: each line must stand "
            "beside its translation."
        )
    return _checked(zip(*sides, strict=True), f"of {source!r} and {target!r}")


def lines_of(text: str) -> list[str]:
    """What stands between line feeds: other characters that Unicode calls ends of lines may stand within a sentence."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _lines_of(name: str, file: str) -> list[str]:
    if not Path(parted(file)[0]).is_file():
        raise ValueError(f"`{name}`={file!r} is no file: name one whose lines are sentences.")
    return lines_of(_text_of(file))


def _rows_of(file: str) -> Iterable[Any]:
    if kind_of(file) != ".parquet":
        return json_lines(lines_of(_text_of(file)), file)
    opened = TextFile(file)
    if opened.is_compressed:
        raise ValueError(f"{file!r} is Parquet that was compressed once more: unpack it.")
    check_regular(opened.path)
    return parquet_rows(opened.path)


def _text_of(file: str) -> str:
    check_regular(Path(file))
    with TextFile(file).open() as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{file!r} is longer than {MAX_BYTES:,} bytes: this is not such a file.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file!r} is not UTF-8 ({error}).") from error


def pairs_of_rows(rows: Iterable[Any], source: str, target: str) -> Pairs:
    """The texts of rows, such as those of a `datasets.Dataset`, by the names of their fields."""
    found = ((_field(row, source, number), _field(row, target, number)) for number, row in enumerate(rows, start=1))
    return _checked(found, f"with {source!r} and {target!r}")


def hold_out_pairs(pairs: Pairs, fraction: float, seed: int = 0) -> tuple[Pairs, Pairs]:
    """The pairs to train on, and a random share to hold out: the same every time, and none that is trained on too.

    Raises:
        ValueError: nothing is left of a part.
    """
    order = np.random.default_rng(seed).permutation(len(pairs))
    chosen = {int(each) for each in order[: round(fraction * len(pairs))]}
    held_out = [pair for index, pair in enumerate(pairs) if index in chosen]
    known = set(held_out)
    kept = [pair for pair in pairs if pair not in known]
    if not held_out or not kept:
        raise ValueError(
            f"`eval_fraction`={fraction} of {len(pairs)} pairs leaves a part empty: use more pairs, "
            "another fraction, or held-out files (`eval_source` and `eval_target`)."
        )
    return kept, held_out


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text of either side, and its end.

    Raises:
        ValueError: the tokenizer has no `eos_token`.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("`tokenizer` has no `eos_token`: a translation would have no end. Take another one.")
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


def _field(row: Any, name: str, number: int) -> str:
    value = row
    for part in [name] if isinstance(row, dict) and name in row else name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, str):
        known = ", ".join(row if isinstance(row, dict) else ()) or "no fields"
        raise ValueError(
            f"`{name}` is no text of row {number}, which has {known}: name one, as `translation.en`, or take it out."
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can say half of a surrogate pair
        raise ValueError(f"`{name}` of row {number} is no text ({error}): take it out.") from error
    return value


def _checked(pairs: Iterable[tuple[str, str]], where: str) -> Pairs:
    found = [(source.strip(), target.strip()) for source, target in pairs]
    empty = next((number for number, pair in enumerate(found, start=1) if "" in pair), None)
    if empty is not None or not found:
        what = "there are none" if empty is None else f"number {empty} is empty on one side: take it out on both"
        raise ValueError(f"Pairs {where}: {what}.")
    return found


__all__ = ["Pairs", "hold_out_pairs", "lines_of", "pairs_of_rows", "read_pairs", "text_ids"]
