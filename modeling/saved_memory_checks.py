"""What a memory is refused for that is written to a file, or comes from one: no call may fail on it."""

from typing import Any

import torch

from transformers_xl.modeling.checks import check_memory, check_tensors
from transformers_xl.modeling.memory.memory_value import Memory

MEMORY_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MAX_TOKENS = 2**53  # that a row has read


def check_saved_memory(model: Any, memory: Memory) -> None:
    """Check all of a memory that is written to a file, or comes from one: that no call of this base `model` can fail on it.

    Raises:
        ValueError: names the tensor, what it is and what it must be.
    """
    if not memory.lengths.dim() == memory.tokens_read.dim() == 1:
        raise ValueError("`lengths` and `tokens_read` of a memory must be of shape (batch,).")
    check_memory(model, memory.batch_size, None, memory)
    new = model.new_memory(0, torch.empty(0, dtype=model.dtype), static=True)
    for index, (layer, held, fresh) in enumerate(zip(model.layers, memory.layers, new.layers, strict=False)):
        for field in ("columns", "older"):
            if (given := getattr(held, field)) and given[0].dim() == 4 != getattr(fresh, field)[0].dim():
                device = next(layer.parameters()).device
                inputs = fresh.columns[0].to("cpu" if device.type == "meta" else device)  # offloaded ones move them
                made = layer.project(inputs)
                made = made[:2] if field == "older" else made  # keys and values are all that is remembered there
                check_tensors(f"mems.layers[{index}].{field}", given, made, memory.batch_size, are_columns=True)
    check_counts(memory, model.config.layer_mem_lens)
    for name, tensor in memory.named_tensors().items():
        top = memory.num_columns if name == "lengths" else MAX_TOKENS
        is_integer = tensor.dtype == torch.int64 and bool(((tensor >= 0) & (tensor <= top)).all())
        if not is_integer and tensor.dtype not in MEMORY_TYPES:
            raise ValueError(
                f"`{name}` of a memory, of type {tensor.dtype}, holds what no memory does: floating-point numbers have "
                f"one of the types {MEMORY_TYPES}, integers have int64 and lie in 0..{top}."
            )


def check_counts(memory: Memory, mem_lens: list[int]) -> None:
    """Check that all layers remember the same positions, as far back as each does."""
    counts = [layer.num_columns for layer in memory.layers if layer.columns]
    wanted = [
        min(most, memory.num_columns) for layer, most in zip(memory.layers, mem_lens, strict=True) if layer.columns
    ]
    older = {each.shape[-2] for layer in memory.layers for each in layer.older}
    if any(count < least for count, least in zip(counts, wanted, strict=True)) or len(older) > 1:
        raise ValueError(
            f"`mems.layers` have {counts} columns, and {sorted(older)} older ones: this model remembers {wanted}, and the "
            "same number of older ones in all layers."
        )


__all__ = ["check_saved_memory"]
