"""What a training remembers between two batches, and its file in a checkpoint."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from transformers_xl.modeling.memory.memory_file import save_tensors
from transformers_xl.modeling.memory.memory_value import Memory

PREFIX = "mems."  # of the names of the tensors of a memory, in the file


def match_rows(memory: Memory, inputs: dict[str, Any], last_batch_may_be_smaller: bool) -> Memory:
    """The memory of the rows of a batch: of the first ones, where the last batch of an epoch is smaller.

    Raises:
        ValueError: the batch has other rows than the memory.
    """
    rows = len(inputs["input_ids"] if inputs.get("input_ids") is not None else inputs["inputs_embeds"])
    if rows == memory.batch_size:
        return memory
    if rows < memory.batch_size and last_batch_may_be_smaller:
        return memory.rows(slice(rows))
    raise ValueError(
        f"`input_ids` has a batch of {rows} rows, but the memory has {memory.batch_size}: make the length of the dataset a "
        "multiple of the batch size, or set `reset` to true where the number of rows changes."
    )


def memory_file(folder: Path, process: int) -> Path:
    return folder / f"memory-{process}.safetensors"


def save_memory(path: Path, memory: Memory | None, extra: dict[str, torch.Tensor]) -> None:
    """Write the memory of one process, and `extra` tensors by their names."""
    tensors = dict(extra)
    if memory is not None:
        tensors |= {PREFIX + name: tensor for name, tensor in memory.named_tensors().items()}
    save_tensors(path, tensors)


def load_memory(path: Path, device: torch.device) -> tuple[Memory | None, dict[str, torch.Tensor]]:
    """What `save_memory` wrote.

    Raises:
        ValueError: the tensors are not those of a memory.
    """
    tensors = {name: tensor.to(device) for name, tensor in load_file(path).items()}
    held = {name.removeprefix(PREFIX): tensors.pop(name) for name in list(tensors) if name.startswith(PREFIX)}
    if "0" in held:  # every memory had this one: `mems` was a tuple of tensors
        raise ValueError(
            f"{str(path)!r} holds a memory as an earlier version wrote it, which cannot be continued: begin a new training "
            "with the model of that checkpoint, in another `output_dir`."
        )
    return (Memory.from_named_tensors(held) if held else None), tensors


__all__ = ["load_memory", "match_rows", "memory_file", "save_memory"]
