"""Folders of adapters that PEFT wrote: for which model they are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers_xl.files.json_files import read_json

ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model*.safetensors"


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


__all__ = ["ADAPTER", "ADAPTER_WEIGHTS", "Adapter", "read_adapter"]
