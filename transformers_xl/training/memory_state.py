"""What a training remembers between two batches, and its file in a checkpoint."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file


class Memory(NamedTuple):
    """What a batch remembers: `mems`, batch first and detached, and the real positions of attention memories
    `(batch, <=mem_len)` bool, None when all are."""

    mems: tuple[torch.Tensor, ...]
    mems_mask: torch.Tensor | None

    @property
    def rows(self) -> int:
        return len(self.mems[0])

    def first(self, rows: int) -> "Memory":
        """The memory of the first `rows` rows."""
        return Memory(tuple(state[:rows] for state in self.mems), _first(self.mems_mask, rows))


def _first(mask: torch.Tensor | None, rows: int) -> torch.Tensor | None:
    return None if mask is None else mask[:rows]


def match_rows(memory: Memory, inputs: dict[str, Any], last_batch_may_be_smaller: bool) -> Memory:
    """The memory of the rows of a batch: of the first ones, where the last batch of an epoch is smaller.

    Raises:
        ValueError: the batch has other rows than the memory.
    """
    rows = len(inputs["input_ids"] if inputs.get("input_ids") is not None else inputs["inputs_embeds"])
    if rows == memory.rows:
        return memory
    if rows < memory.rows and last_batch_may_be_smaller:
        return memory.first(rows)
    raise ValueError(
        f"`input_ids` has a batch of {rows} rows, but the memory has {memory.rows}: make the length of the dataset a "
        "multiple of the batch size, or set `reset` to true where the number of rows changes."
    )


def memory_file(folder: Path, process: int) -> Path:
    return folder / f"memory-{process}.safetensors"


def save_memory(path: Path, memory: Memory | None, extra: dict[str, torch.Tensor]) -> None:
    """Write the memory of one process, and `extra` tensors by their names."""
    tensors = dict(extra)
    if memory is not None:
        tensors |= {f"mems.{index}": state for index, state in enumerate(memory.mems)}
        if memory.mems_mask is not None:
            tensors["mems_mask"] = memory.mems_mask
    # cloned: safetensors refuses tensors that share their storage
    save_file({name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, path)


def load_memory(path: Path, device: torch.device) -> tuple[Memory | None, dict[str, torch.Tensor]]:
    """What `save_memory` wrote."""
    tensors = {name: tensor.to(device) for name, tensor in load_file(path).items()}
    mask = tensors.pop("mems_mask", None)
    count = sum(name.startswith("mems.") for name in tensors)
    mems = tuple(tensors.pop(f"mems.{index}") for index in range(count))
    return (Memory(mems, mask) if mems else None), tensors


__all__ = ["Memory", "load_memory", "match_rows", "memory_file", "save_memory"]
