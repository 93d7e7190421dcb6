"""One step of generation as a graph of fixed shapes: `torch.export` of a token in, logits and the next memory out."""

from typing import Any, cast

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils._pytree import _register_namedtuple  # public torch has no name for it
from transformers import PreTrainedModel

from transformers_xl.modeling.layers.transformer_layer import MemoryLayer
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory, with_columns_of


def name_in_programs(kind: type) -> None:
    """Let saved programs take and give a NamedTuple of this kind."""
    torch.serialization.add_safe_globals([kind])  # among the example inputs
    _register_namedtuple(kind, serialized_type_name=f"transformers_xl.{kind.__name__}")


name_in_programs(LayerMemory)
name_in_programs(Memory)


class ExportableStep(nn.Module):
    """A step as a function: the memory comes in and goes out as a value.

    Args:
        model: a language model, see [`step_memory`].
        memory: what [`step_memory`] gives; its values do not matter.
    """

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, memory: Memory):
        super().__init__()
        self.model = model
        # what attention projects of the positions is the same at every step: it is kept in the graph
        cache = MemoryCache(memory, static=True)
        model(memory.lengths.new_zeros(memory.batch_size, 1), past_key_values=cache)
        for layer, layer_cache in enumerate(cache.layer_caches):
            self.register_buffer(f"positions_{layer}", layer_cache.positions)

    def forward(self, input_ids: torch.LongTensor, memory: Memory) -> tuple[torch.Tensor, Memory]:
        """Logits `(batch, vocab_size)` of what follows `input_ids` `(batch, 1)`, and the memory after it."""
        cache = MemoryCache(memory, static=True)
        for layer in range(len(memory.layers)):
            cache.layer_cache(layer).positions = getattr(self, f"positions_{layer}")
        output = self.model(input_ids, past_key_values=cache)
        return output.logits[:, -1], output.mems.map(torch.Tensor.contiguous)


@torch.no_grad()
def step_memory(model: PreTrainedModel, batch: int = 1, mems: Memory | None = None) -> Memory:
    """A memory as an exported step takes it, as keys and values in all `mem_len` columns: of new rows, or `mems` of an
    output.

    Raises:
        ValueError: the model remembers nothing, or what a static cache has no place for.
    """
    decoder: Any = model.base_model
    memory = decoder.new_memory(batch, torch.empty(0, dtype=model.dtype, device=model.device), static=True)
    has_more = memory.state or any(layer.state or layer.older for layer in memory.layers)
    is_unplaced = has_more and not model._can_compile_fullgraph
    if is_unplaced or not memory.num_columns:
        remembers = "what a static cache has no place for" if is_unplaced else "nothing"
        raise ValueError(
            f"`model` is a {model.config.model_type!r} that remembers {remembers}: export a model whose memory is that of "
            "its attention, or a Streaming Transformer, with `mem_len` above 0."
        )
    memory = memory if mems is None else with_columns_of(mems, memory)
    layers = [
        past._replace(columns=cast(MemoryLayer, layer).project(past.columns[0])) if len(past.columns) == 1 else past
        for layer, past in zip(decoder.layers, memory.layers, strict=True)
    ]
    return memory._replace(layers=tuple(layers)).map(torch.Tensor.contiguous)


@torch.no_grad()
def export_step(model: PreTrainedModel, batch: int = 1) -> ExportedProgram:
    """Export a step of `batch` rows: `logits, memory = program.module()(input_ids, memory)`.

    `input_ids` is `(batch, 1)`, `memory` begins as [`step_memory`] and is passed on; logits are `(batch, vocab_size)`. A
    prompt is read token by token, or at once by the model itself, whose `mems` [`step_memory`] takes.

    Raises:
        ValueError: the model is in training mode, or remembers nothing, or what a static cache has no place for.
    """
    memory = step_memory(model, batch)
    return export_module(ExportableStep(model, memory), memory)


@torch.no_grad()
def export_module(step: ExportableStep, memory: Any) -> ExportedProgram:
    """Export a `step` that reads `input_ids` `(batch, 1)` and a memory like this one."""
    if step.model.training:
        raise ValueError("`model` is in training mode, where dropout is part of the graph: call `model.eval()` first.")
    input_ids = memory.lengths.new_zeros(len(memory.lengths), 1)
    return torch.export.export(step, (input_ids, memory))


__all__ = ["ExportableStep", "export_module", "export_step", "name_in_programs", "step_memory"]
