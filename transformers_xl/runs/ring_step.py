"""A token of generation whose memory is a ring: columns of a fixed size that are written over in turn.

    ring     k6 k7 k3 k4 k5      7 tokens of a window of 5; the newest stands in slot 1
    distance  1  0  4  3  2

Attention with relative positions needs no order of its columns, only their distances. So a token moves nothing.
"""

from typing import Any, NamedTuple, cast

import torch
from transformers import PreTrainedModel

from transformers_xl.modeling.exporting import ExportableStep, name_in_programs
from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.memory.memory_cache import LayerCache, Tensors
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory, with_count
from transformers_xl.modeling.memory.segment import Call, LayerContext, Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, mixed


class RingLayerCache(LayerCache):
    """Writes the columns of a token into `slot` () of the ring."""

    is_ring = True

    def __init__(self, slot: torch.Tensor, positions: torch.Tensor):
        super().__init__()
        self.slot, self.positions = slot, positions

    def append(self, past: Tensors, new: Tensors) -> Tensors:
        for ring, each in zip(past, new, strict=True):
            ring.index_copy_(-2, self.slot[None], each)
        return past


# B batch, L layers, H heads, S slots, D head dim
class Rings(NamedTuple):
    """A memory as a step with rings takes it.

    Args:
        columns: keys and values of each layer, `(B, H, S, D)`, which are written to.
        written: `()`, how many tokens were written: the next one goes into slot `written` modulo S.
        lengths: `(B,)`, columns that are real.
    """

    columns: tuple[Tensors, ...]
    written: torch.Tensor
    lengths: torch.Tensor


name_in_programs(Rings)


class RingStep(ExportableStep):
    """The token of a language model whose only memory is that of relative attention: its window is the ring."""

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether a model is read so: each layer has the attention of Transformer-XL, and sees as far as the others."""
        decoder = cast(Any, model.base_model)
        plain = all(
            getattr(type(decoder), name) is getattr(MemoryModel, name) for name in ("plan", "run_layers", "read")
        )
        if not plain or len(set(model.config.layer_windows)) != 1:
            return False
        return all(type(getattr(layer, "self_attn", None)) is RelativeAttention for layer in decoder.layers)

    def forward(self, input_ids: torch.Tensor, rings: Any) -> tuple[torch.Tensor, Any]:
        """Logits `(B, vocab_size)` of what follows `input_ids` (B, 1), and `written` and `lengths` after it."""
        model, (columns, written, lengths) = cast(Any, self.model), rings
        decoder = model.model
        size = columns[0][0].shape[-2]
        slot = written % size
        distance = slot - torch.arange(size, device=written.device)
        distance = torch.where(distance < 0, distance + size, distance)  # a remainder is slow, in each layer and head
        mask = (distance <= lengths[:, None])[:, None, None]
        segment = Segment.of(size - 1, lengths, lengths, 1, Call())
        shared = decoder.positions.bias
        context = LayerContext(segment, None, size, mask, True, bias=None if shared is None else shared())
        contexts = [
            context._replace(
                layer_cache=RingLayerCache(slot, getattr(self, f"positions_{layer}")), distance=distance[None, None]
            )
            for layer in range(len(columns))
        ]
        memory = tuple(LayerMemory(each) for each in columns)
        output, _ = decoder.run_layers(decoder.embed_tokens(input_ids), memory, contexts)
        if decoder.norm is not None:
            output.last_hidden_state = decoder.norm(output.last_hidden_state)
        return model.compute_logits(output)[:, -1], (written + 1, (lengths + 1).clamp(max=size))


class RingMemory:
    """What a cache holds while a compiled step writes to rings.

    Args:
        memory: the memory before, as keys and values in `keep` columns.
        size: slots of the rings.
    """

    def __init__(self, memory: Memory, size: int):
        self.keep, self.tokens_read = memory.num_columns, memory.tokens_read
        columns = tuple(  # copies: the rings are written to
            tuple(with_count(each, size).clone(memory_format=torch.contiguous_format) for each in layer.columns)
            for layer in memory.layers
        )
        self.rings = Rings(columns, torch.zeros((), dtype=torch.long), memory.lengths.clamp(max=size))
        self.num_read = 0
        self.ended: Memory | None = None  # of rows that have ended
        self.rows: torch.Tensor | None = None  # which

    def close(self, written: torch.Tensor, lengths: torch.Tensor) -> None:
        """Note what a step returned."""
        self.rings, self.num_read = self.rings._replace(written=written, lengths=lengths), self.num_read + 1

    def note_ended(self, ended: torch.Tensor | None) -> None:
        """Keep what rows remember that have ended now, before the next token is written to their columns."""
        if ended is None or (self.rows is not None and bool((ended == self.rows).all())):
            return
        self.ended, self.rows = self.memory(self.rows), ended.clone()

    def memory(self, ended: torch.Tensor | None) -> Memory:
        """The value, in which rows that have `ended` (B,) remember what they did then."""
        (columns, written, lengths), size = self.rings, self.rings.columns[0][0].shape[-2]
        order = (written - self.keep + torch.arange(self.keep, device=written.device)) % size
        layers = tuple(LayerMemory(tuple(each.index_select(-2, order) for each in layer)) for layer in columns)
        memory = Memory(layers, lengths.clamp(max=self.keep), self.tokens_read + self.num_read)
        return memory if self.ended is None or self.rows is None else with_rows_of(self.ended, memory, self.rows)


def with_rows_of(memory: Memory, other: Memory, rows: torch.Tensor) -> Memory:
    """The `other` memory, with those of `rows` (B,) bool that are given."""
    mine, others = memory.named_tensors(), other.named_tensors()
    chosen = mixed(rows, tuple(mine[name] for name in others), tuple(others.values()))
    return Memory.from_named_tensors(dict(zip(others, chosen, strict=True)))


__all__ = ["RingMemory", "RingStep", "Rings", "with_rows_of"]
