"""Vocabularies of old checkpoints, as plain data: `vocab.json`, `vocab.pkl`, `vocab.bin` of transformers 4.x, `cache.pt` of
the original repository."""

import json
import os
from pathlib import Path
from typing import Any

from transformers_xl.modeling.conversion.safe_pickle import Inert, refusal, short_repr
from transformers_xl.modeling.conversion.torch_module import TorchFile

# in the order of preference: JSON needs no trust at all
HF_FILES = ("vocab.json", "vocab.pkl", "vocab.bin")
ORIGINAL_FILES = ("cache.pt", "vocab_attributes.pt", *HF_FILES)
MAX_SYMBOLS = 1_000_000  # One Billion Word has 793,471
MAX_JSON = 24 * 2**20  # bytes; Python's values take up to 30 times as many
FIELDS: dict[str, type | tuple[type, ...]] = {
    "special": list,
    "never_split": list,
    "min_freq": int,
    "max_size": int,
    "lower_case": bool,
    "delimiter": str,
    "counter": dict,
    "eos_idx": int,
    "unk_idx": int,
}


def read_vocabulary(path: str | Path) -> dict[str, Any]:
    """`sym2idx` (symbol -> id), `idx2sym` (symbols in the order of their ids), and those of [`FIELDS`] that are there.

    Raises:
        ValueError: the file is no vocabulary; the file and the reason are named.
    """
    value = read_json(path) if Path(path).suffix == ".json" else TorchFile(path).value
    for outer in ("vocab", "vocab_attributes"):  # the original pickled its corpus, with the vocabulary in it
        inner = _fields(value).get(outer)
        value = inner if isinstance(_fields(inner).get("sym2idx"), dict) else value
    fields = _fields(value)
    if not isinstance(fields.get("sym2idx"), dict) and not isinstance(fields.get("idx2sym"), list):
        fields = {"sym2idx": fields}  # a mapping of symbols alone
    try:
        return _checked(fields)
    except ValueError as error:
        raise refusal(str(path), error) from error


def read_json(path: str | Path) -> Any:
    """The value of a JSON file.

    Raises:
        ValueError: the file is no JSON, or too large; it is named.
        OSError: the file cannot be read.
    """
    if os.path.getsize(path) > MAX_JSON:
        raise refusal(str(path), f"it is longer than {MAX_JSON:,} bytes")
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise refusal(str(path), f"it is not JSON ({error})") from error


def _fields(value: Any) -> dict:
    """The attributes of an object, the items of a dict."""
    value = value.state if isinstance(value, Inert) else value
    return value if isinstance(value, dict) else {}


def _checked(fields: dict) -> dict[str, Any]:
    symbols: Any = fields.get("idx2sym")
    ids = fields.get("sym2idx")
    if not isinstance(ids, dict):
        if any(type(symbol) is not str for symbol in symbols):
            raise ValueError("a symbol of `idx2sym` is not a string")
        ids = {symbol: index for index, symbol in enumerate(symbols)}
    if not 0 < len(ids) <= MAX_SYMBOLS:
        raise ValueError(f"it holds {len(ids) or 'no'} symbols, at most {MAX_SYMBOLS:,} are read")
    by_id: list[str | None] = [None] * len(ids)
    for symbol, index in ids.items():
        if type(symbol) is not str or type(index) is not int:
            raise ValueError(
                f"symbol {short_repr(symbol)} has the id {short_repr(index)}: it takes a string and an integer"
            )
        if not 0 <= index < len(ids):
            raise ValueError(
                f"symbol {short_repr(symbol)} has the id {short_repr(index)}, past the {len(ids)} symbols of the vocabulary"
            )
        if by_id[index] is not None:
            raise ValueError(f"{short_repr(by_id[index])} and {short_repr(symbol)} have the same id {index}")
        by_id[index] = symbol
    if isinstance(symbols, list) and symbols and symbols != by_id:
        raise ValueError("its `idx2sym` and `sym2idx` disagree")
    checked: dict[str, Any] = {"sym2idx": ids, "idx2sym": by_id}
    for name, kind in FIELDS.items():
        value: Any = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ValueError(f"its `{name}` is {short_repr(value)}")
        if isinstance(value, list) and any(type(item) is not str for item in value):
            raise ValueError(f"its `{name}` holds something else than strings")
        if isinstance(value, dict):
            value = {symbol: count for symbol, count in value.items() if type(count) is int}
        if name.endswith("_idx") and not 0 <= value < len(ids):
            raise ValueError(f"its `{name}` is {short_repr(value)}, past the {len(ids)} symbols of the vocabulary")
        checked[name] = value
    return checked


__all__ = ["HF_FILES", "ORIGINAL_FILES", "read_json", "read_vocabulary"]
