"""A token of generation whose memory is a ring: columns of a fixed size that are written over in turn.

    ring     k6 k7 k3 k4 k5      7 tokens of a window of 5; the newest stands in slot 1
    distance  1  0  4  3  2

Attention with relative positions needs no order of its columns, only their distances, and keys that were turned by their
places need not even these. So a token moves nothing.
"""

from typing import Any, NamedTuple, cast

import torch
from transformers import PreTrainedModel

from transformers_xl.modeling.exporting import ExportableStep, name_in_programs
from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.layers.rotary_attention import RotaryAttention
from transformers_xl.modeling.memory.memory_cache import LayerCache, Tensors
from transformers_xl.modeling.memory.memory_value import Memory, with_count
from transformers_xl.modeling.memory.segment import Call, LayerContext, Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, mixed


class RingLayerCache(LayerCache):
    """Writes the columns of a token into `slot` () of the ring."""

    is_ring = True

    def __init__(self, slot: torch.Tensor, positions: torch.Tensor | None):
        super().__init__()
        self.slot, self.positions = slot, positions

    def append(self, past: Tensors, new: Tensors) -> Tensors:
        for ring, each in zip(past, new, strict=True):
            ring.index_copy_(-2, self.slot[None], each)
        return past


# B batch, H heads, S slots, D head dim
class Rings(NamedTuple):
    """A memory as a step with rings takes it.

    Args:
        memory: what is remembered. The columns of each layer, `(B, H, S, D)`, are rings, which are written to.
        written: `()`, how many tokens were written: the next one goes into slot `written` modulo S.
    """

    memory: Memory
    written: torch.Tensor

    @property
    def lengths(self) -> torch.Tensor:
        """Columns that are real, `(B,)`."""
        return self.memory.lengths


name_in_programs(Rings)


class RingStep(ExportableStep):
    """The token of a language model whose window is a ring; other things that it remembers are replaced."""

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether a model is read so: each layer has the attention of Transformer-XL, or a rotary one, and sees as far as
        the others."""
        decoder = cast(Any, model.base_model)
        kinds = {type(getattr(layer, "self_attn", None)) for layer in decoder.layers}
        if len(set(model.config.layer_windows)) != 1 or len(kinds) != 1:
            return False
        plain = all(
            getattr(type(decoder), name) is getattr(MemoryModel, name) for name in ("plan", "run_layers", "read")
        )
        return kinds == {RotaryAttention} or (plain and kinds == {RelativeAttention})

    def forward(self, input_ids: torch.Tensor, rings: Any) -> tuple[torch.Tensor, Any]:
        """Logits `(B, vocab_size)` of what follows `input_ids` (B, 1); and the [`Rings`] after it, without the columns,
        which are written to."""
        model, (memory, written) = cast(Any, self.model), rings
        decoder, size = model.model, memory.num_columns
        slot = written % size
        distance = slot - torch.arange(size, device=written.device)
        distance = torch.where(distance < 0, distance + size, distance)  # a remainder is slow, in each layer and head
        mask = (distance <= memory.lengths[:, None])[:, None, None]
        segment = Segment.of(size - 1, memory.lengths, memory.tokens_read, 1, Call(input_ids=input_ids))
        segment, plan, state = decoder.plan(segment, memory)
        shared = None if decoder.positions is None else decoder.positions.bias
        bias = None if shared is None else shared()
        context = LayerContext(segment, None, size, mask, True, bias=bias, distance=distance[None, None], plan=plan)
        contexts = [
            context._replace(layer_cache=RingLayerCache(slot, getattr(self, f"positions_{layer}")))
            for layer in range(len(memory.layers))
        ]
        output, layers = decoder.run_layers(decoder.embed_tokens(input_ids), memory.layers, contexts)
        if decoder.norm is not None:
            output.last_hidden_state = decoder.norm(output.last_hidden_state)
        rest = tuple(layer._replace(columns=()) for layer in layers)
        after = Memory(rest, (memory.lengths + 1).clamp(max=size), memory.tokens_read + 1, state)
        # contiguous, as compiled code reads them again
        return model.compute_logits(output)[:, -1], Rings(after.map(torch.Tensor.contiguous), written + 1)


class RingMemory:
    """What a cache holds while a compiled step writes to rings.

    Args:
        memory: the memory before, with keys and values in `keep` columns.
        size: slots of the rings.
    """

    def __init__(self, memory: Memory, size: int):
        self.keep = memory.num_columns
        layers = tuple(  # copies: the rings are written to
            layer._replace(
                columns=tuple(
                    with_count(each, size).clone(memory_format=torch.contiguous_format) for each in layer.columns
                )
            )
            for layer in memory.layers
        )
        lengths = memory.lengths.clamp(max=size)
        self.rings = Rings(memory._replace(layers=layers, lengths=lengths), torch.zeros((), dtype=torch.long))
        self.ended: Memory | None = None  # of rows that have ended
        self.rows: torch.Tensor | None = None  # which

    def close(self, after: Rings) -> None:
        """Note what a step returned."""
        pairs = zip(self.rings.memory.layers, after.memory.layers, strict=True)
        layers = tuple(new._replace(columns=old.columns) for old, new in pairs)
        self.rings = Rings(after.memory._replace(layers=layers), after.written)

    def note_ended(self, ended: torch.Tensor | None) -> None:
        """Keep what rows remember that have ended now, before the next token is written to their columns."""
        if ended is None or (self.rows is not None and bool((ended == self.rows).all())):
            return
        self.ended, self.rows = self.memory(self.rows), ended.clone()

    def memory(self, ended: torch.Tensor | None) -> Memory:
        """The value, in which rows that have `ended` (B,) remember what they did then."""
        (memory, written), size = self.rings, self.rings.memory.num_columns
        order = (written - self.keep + torch.arange(self.keep, device=written.device)) % size
        layers = tuple(
            layer._replace(columns=tuple(each.index_select(-2, order) for each in layer.columns))
            for layer in memory.layers
        )
        memory = memory._replace(layers=layers, lengths=memory.lengths.clamp(max=self.keep))
        return memory if self.ended is None or self.rows is None else with_rows_of(self.ended, memory, self.rows)


def with_rows_of(memory: Memory, other: Memory, rows: torch.Tensor) -> Memory:
    """The `other` memory, with those of `rows` (B,) bool that are given."""
    mine, others = memory.named_tensors(), other.named_tensors()
    chosen = mixed(rows, tuple(mine[name] for name in others), tuple(others.values()))
    return Memory.from_named_tensors(dict(zip(others, chosen, strict=True)))


__all__ = ["RingMemory", "RingStep", "Rings", "with_rows_of"]
