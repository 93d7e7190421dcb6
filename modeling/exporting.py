"""One step of generation as a graph of fixed shapes: `torch.export` of a token in, logits and the next memory out."""

from typing import Any, cast

import torch
from torch import nn
from torch.export import ExportedProgram
from transformers import PreTrainedModel

from transformers_xl.modeling.memory.window_memory import WindowMemory
from transformers_xl.modeling.memory_cache import MemoryCache
from transformers_xl.modeling.modeling_memory import MemoryModel
from transformers_xl.modeling.ops.window import keep_last


class ExportableStep(nn.Module):
    """A step as a function: the memory comes in as tensors and goes out as tensors, and nothing is changed in place.

    Args:
        model: a language model with a memory of attention.
        memory: what [`step_memory`] gives; its values do not matter.
    """

    def __init__(self, model: PreTrainedModel, memory: dict):
        super().__init__()
        self.model = model
        # what attention projects of the positions is the same at every step: it is kept in the graph
        cache = self.cache_of(memory)
        mask = memory["mask"]
        model(mask.new_zeros(len(mask), 1, dtype=torch.long), past_key_values=cache)
        for layer_idx, window in enumerate(cache.memory.windows):
            self.register_buffer(f"positions_{layer_idx}", window.positions)

    def cache_of(self, memory: dict) -> MemoryCache:
        cache = cast(MemoryModel, self.model.base_model).make_cache(None, None, memory["keys"][0], static=True)
        cache.memory.mask = memory["mask"].clone()
        for window, *projected in zip(cache.memory.windows, memory["keys"], memory["values"], strict=True):
            window.buffer.hold(tuple(projected))  # type: ignore[union-attr]  # a cache has them
        return cache

    def forward(self, input_ids: torch.LongTensor, memory: dict) -> tuple[torch.Tensor, dict]:
        """Logits `(batch, vocab_size)` of what follows `input_ids` `(batch, 1)`, and the memory after it."""
        cache = self.cache_of(memory)
        for layer_idx, window in enumerate(cache.memory.windows):
            window.positions = getattr(self, f"positions_{layer_idx}")
        outputs = self.model(input_ids, past_key_values=cache)
        return outputs.logits[:, -1], as_tensors(cache)


def as_tensors(cache: MemoryCache) -> dict:
    """What a static cache holds, as [`step_memory`]: in one piece each, for compiled code does not ask how they lie."""
    columns = [window.buffer.tensors for window in cache.memory.windows]  # type: ignore[union-attr]  # a cache has them
    keys, values = (tuple(each.contiguous() for each in kind) for kind in zip(*columns, strict=True))
    return {"mask": cast(torch.Tensor, cache.mask).contiguous(), "keys": keys, "values": values}


@torch.no_grad()
def step_memory(
    model: PreTrainedModel,
    batch: int = 1,
    mems: tuple[torch.Tensor, ...] | None = None,
    mems_mask: torch.Tensor | None = None,
) -> dict:
    """A memory as the tensors that an exported step takes: of new rows, or `mems` (and `mems_mask`) of an output.

    Returns:
        `mask` `(batch, positions)` bool, and `keys` and `values`, a tensor `(batch, heads, positions, head_dim)` per layer,
        where positions are `config.sliding_window - 1`, newest last.

    Raises:
        ValueError: the model remembers nothing, or more than attention does.
    """
    decoder: Any = model.base_model
    others = [part.name for part in decoder.layout.parts if not isinstance(part.memory, WindowMemory)]
    if others or not model.config.mem_len:
        remembers = f"also remembers {', '.join(others)}" if others else "remembers nothing"
        raise ValueError(
            f"`model` is a {model.config.model_type!r} that {remembers}: export a model whose only memory is that of its "
            "attention, with `mem_len` above 0."
        )
    like = torch.empty(0, dtype=model.dtype, device=model.device)
    cache = decoder.make_cache(mems, mems_mask, like, static=True)
    if mems is None:
        cache.memory.start(batch, like)
    cache.memory.mask = cache.memory.memory_mask(batch, model.device)
    for layer, window in zip(decoder.layers, cache.memory.windows, strict=True):
        window.buffer.hold(layer.self_attn.project(layer.attention_input(keep_last(window.inputs, window.reach))))
    return as_tensors(cache)


@torch.no_grad()
def export_step(model: PreTrainedModel, batch: int = 1) -> ExportedProgram:
    """Export a step of `batch` rows: `logits, memory = program.module()(input_ids, memory)`.

    `input_ids` is `(batch, 1)`, `memory` begins as [`step_memory`] and is passed on; logits are `(batch, vocab_size)`. A
    prompt is read token by token, or at once by the model itself, whose `mems` [`step_memory`] takes.

    Raises:
        ValueError: the model is in training mode, or its memory is not that of attention alone.
    """
    if model.training:
        raise ValueError("`model` is in training mode, where dropout is part of the graph: call `model.eval()` first.")
    memory = step_memory(model, batch)
    input_ids = torch.zeros(batch, 1, dtype=torch.long, device=model.device)
    return torch.export.export(ExportableStep(model, memory), (input_ids, memory))


__all__ = ["export_step", "step_memory"]
