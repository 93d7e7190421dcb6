"""Folders of adapters that PEFT wrote: for which model they are, and whether PEFT can be trusted with them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers_xl.files.bounded_calls import bounded
from transformers_xl.files.json_files import read_json

ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model*.safetensors"
MAX_NUMBER = 1 << 20  # of a rank, or of vectors


@dataclass(frozen=True)
class Adapter:
    """What `adapter_config.json` says.

    Attributes:
        base: folder, or repository on the Hub, of the model that the adapters are for.
        kind: of the adapters, as "LORA".
        rank: of LoRA; None for others.
    """

    base: str
    kind: str
    rank: int | None

    @property
    def base_repository(self) -> str | None:
        """None where the base is a folder, which is nobody else's."""
        return None if Path(self.base).is_dir() or Path(self.base).is_absolute() else self.base


def read_adapter(folder: Path) -> Adapter | None:
    """The adapters in a folder; None where it holds a whole model.

    Raises:
        ValueError: the file names no model.
    """
    file = folder / ADAPTER
    if not file.is_file():
        return None
    values: dict[str, Any] = read_json(file)
    base, rank = values.get("base_model_name_or_path"), values.get("r")
    if not isinstance(base, str) or not base:
        raise ValueError(f"{str(file)!r}: `base_model_name_or_path`={base!r} names no model.")
    return Adapter(base, str(values.get("peft_type")), rank if isinstance(rank, int) else None)


def check_adapter(folder: Path, shapes: Sequence[list[int]], modules: Iterable[str]) -> None:
    """Raise a `ValueError` where adapters would run code, or take more time or memory than they can need.

    Args:
        folder: of the adapters.
        shapes: of their weights.
        modules: names of the modules of their base.
    """
    file = folder / ADAPTER
    values = read_json(file)
    if not shapes:
        raise ValueError(
            f"{str(folder)!r} has no {ADAPTER_WEIGHTS.replace('*', '')}: adapters are read from safetensors."
        )
    if values.get("megatron_config") is not None:
        raise ValueError(f"{str(file)!r}: `megatron_config` imports what `megatron_core` names: it is not read.")
    largest = max((size for shape in shapes for size in shape), default=0)
    for name, number in _numbers(values):
        most = largest if name in ("r", "rank_pattern") else MAX_NUMBER
        if number > most:
            raise ValueError(f"{str(file)!r}: `{name}`={number} must be at most {most:,}.")
    names = list(modules)
    for name, pattern in _patterns(values):

        def match(pattern: str = pattern) -> None:
            for each in names:
                re.fullmatch(pattern, each)

        try:
            bounded(match)
        except ValueError as error:
            raise ValueError(f"{str(file)!r}: `{name}`={pattern[:80]!r} cannot be matched: {error}.") from error


def _numbers(values: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in values.items():
        for each in value.values() if isinstance(value, dict) else (value,):
            if isinstance(each, int):
                yield name, each


def _patterns(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The regular expressions in a config, as PEFT completes them."""
    for name in ("target_modules", "exclude_modules"):
        if isinstance(pattern := values.get(name), str):
            yield name, pattern
    layers = values.get("layers_pattern")
    for pattern in layers if isinstance(layers, list) else [layers] if isinstance(layers, str) else ():
        yield "layers_pattern", rf".*\.{pattern}\.(\d+)\..*"
    for name in ("rank_pattern", "alpha_pattern"):
        patterns = values.get(name)
        for pattern in patterns if isinstance(patterns, dict) else ():
            yield name, rf"(.*\.)?({pattern})"


__all__ = ["ADAPTER", "ADAPTER_WEIGHTS", "Adapter", "check_adapter", "read_adapter"]
