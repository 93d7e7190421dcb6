"""Memory tokens around any causal language model: Bulatov et al., 2022, https://arxiv.org/abs/2207.06881, section 3.

    | memory tokens | segment | memory tokens |

The same vectors stand on both sides. In front the segment reads them; after it they see the segment, and what the model
makes of them there is the memory of the next segment. All of it enters as `inputs_embeds`, at positions 0, 1, 2, ..
Code of the authors: https://github.com/booydar/recurrent-memory-transformer, `MemoryCell`.

Differs from the original: a row's segments are counted from its own first token, whatever the calls that bring them, and
the tokens of a segment that is not whole are remembered; what was written is multiplied by a learned number when it is
read, 1 in the original, since embeddings and hidden states of a trained model differ in size.

Shapes: B batch, T tokens of a call, m memory tokens, S segment length, E width, V words.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

import torch
from torch import nn
from transformers import Cache, DynamicCache
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import ModelOutput

from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.modeling.layers.memory_tokens import MemoryTokens, warn_of_writing
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.memory.segment import Call, Segment
from transformers_xl.modeling.ops.columns import gather_columns, keep_last
from transformers_xl.modeling.pretrained.base_head import decoder_of
from transformers_xl.modeling.pretrained.memory_reader import MemoryReader, ModelAroundBase
from transformers_xl.modeling.pretrained.token_places import (
    OpenRows,
    OpenSegments,
    place_alike,
    place_tokens,
    rows_to_read,
)

PerToken = tuple[torch.Tensor, ...]  # what a call says of its tokens: (B, T, ..) each


class ScaledMemoryTokens(MemoryTokens):
    """What training adds to the base model: the memory tokens, and the number `scale` `(1,)` that written ones are
    multiplied by. They are float32 at least, whatever the base is or is cast to: the steps of a training are too small for
    half precision, which would round them away."""

    def __init__(self, num_tokens: int, width: int):
        super().__init__(num_tokens, width)
        self.scale = nn.Parameter(torch.empty(1))
        self.to(torch.promote_types(self.scale.dtype, torch.float32))

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """What casts and moves the parameters of a module."""

        def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
            applied = fn(tensor)
            wanted = torch.promote_types(applied.dtype, torch.float32)
            return applied if applied.dtype == wanted else tensor.to(applied.device, wanted)

        return super()._apply(at_least_float32, recurse)

    def init_weights(self, config: SegmentMemoryConfig) -> None:
        super().init_weights(config)
        init.constant_(self.scale, config.memory_scale)

    def forward(self, written: torch.Tensor, begun: torch.Tensor) -> torch.Tensor:
        return super().forward(written * self.scale, begun)


class Rows(NamedTuple):
    """What rows have written, `state` `(b, m, E)`, and whether they have, `begun` `(b,)`."""

    state: torch.Tensor
    begun: torch.Tensor

    def select(self, index: torch.Tensor | None) -> "Rows":
        """The rows of `index`; None: all."""
        return self if index is None else Rows(self.state[index], self.begun[index])

    def put(self, index: torch.Tensor | None, rows: "Rows") -> "Rows":
        """These, with `rows` in the places of `index`."""
        return Rows(put(self.state, index, rows.state), put(self.begun, index, rows.begun))


class BaseCall:
    """Calls of the base in one call of the model.

    Args:
        model: the model around the base.
        num_said: how many of the newest tokens of the call something is to be said of.
        kwargs: what else it is to be told, or asked for.
    """

    def __init__(self, model: ModelAroundBase, num_said: int, kwargs: dict[str, Any]):
        if kwargs.get("output_attentions"):
            raise ValueError(
                "`output_attentions`=True has no meaning for `kind`='tokens', whose segments are read one by one: ask "
                "`model.backbone` for the attentions of one segment."
            )
        self.backbone, self.run, self.num_said, self.kwargs = model.backbone, model.run_backbone, num_said, kwargs
        self.has_logits = False
        self.shown: list[bool] = []  # of each hidden state, whether it was asked for

    def __call__(
        self, embeds: list[torch.Tensor], cache: Cache | None = None, is_asked: bool = True
    ) -> tuple[PerToken, torch.Tensor]:
        """What the base says of `embeds`, side by side, `(B, ..)` each, nothing where it `is_asked` for nothing; and its
        last hidden states `(B, .., E)`."""
        if not is_asked and not self.kwargs.get("output_hidden_states"):  # logits are large
            given = {"past_key_values": cache, "use_cache": cache is not None}
            return (), decoder_of(self.backbone)(inputs_embeds=torch.cat(embeds, dim=1), **given)[0]
        last = []  # not by `output_hidden_states`, which keeps those of all layers
        hook = decoder_of(self.backbone).register_forward_hook(lambda module, given, output: last.append(output[0]))
        try:
            output = self.run(torch.cat(embeds, dim=1), None, None, cache, **self.kwargs)
        finally:
            hook.remove()
        self.has_logits = "logits" in output
        made = output["logits" if self.has_logits else "last_hidden_state"]
        hidden_states = output.get("hidden_states") or ()
        self.shown = [states is not None for states in hidden_states]
        return (made, *(states for states in hidden_states if states is not None)), last[0]

    def output(self, fields: PerToken) -> ModelOutput:
        """The base's output, of what it said of the tokens."""
        said, rest = fields[0].contiguous(), iter(fields[1:])  # transformers' losses view it
        hidden_states: Any = tuple(next(rest) if shown else None for shown in self.shown) or None
        if self.has_logits:
            return CausalLMOutput(logits=said, hidden_states=hidden_states)
        return BaseModelOutput(last_hidden_state=said, hidden_states=hidden_states)


class TokenReader(MemoryReader):
    """Reads a call in segments, between memory tokens.

    There is one layer of memory: its columns `(B, C, E)` are the embeddings of the tokens that a row has read since its
    last whole segment, its state `(B, m, E)` what the row has written at the end of that one.
    """

    def __init__(self, config: SegmentMemoryConfig):
        super().__init__(config)
        self.memory_tokens = ScaledMemoryTokens(config.num_memory_tokens, config.embedding_width)

    def new_memory(self, backbone: nn.Module, batch: int, counts: list[int], like: torch.Tensor) -> Memory:
        width = self.config.embedding_width
        written = like.new_zeros(batch, self.config.num_memory_tokens, width)
        none = torch.zeros(batch, dtype=torch.long, device=like.device)
        return Memory((LayerMemory((like.new_zeros(batch, *counts, width),), (written,)),), none, none)

    def read(
        self,
        model: ModelAroundBase,
        inputs_embeds: torch.Tensor,
        memory: Memory,
        call: Call,
        cache: MemoryCache | None,
        **kwargs: Any,
    ) -> tuple[ModelOutput, Memory]:
        (((opened,), (written,), _),) = memory.layers
        layer_cache = None if cache is None else cache.layer_cache(0)
        held, length = None if layer_cache is None else layer_cache.derived, inputs_embeds.shape[1]
        if layer_cache is not None:
            layer_cache.derived = None  # a call changes it in place
        kept = kwargs.pop("logits_to_keep", 0)
        base = BaseCall(model, min(kept, length) if isinstance(kept, int) and kept > 0 else length, kwargs)
        reads_on = (
            layer_cache is not None
            and not torch.is_grad_enabled()  # gradients reach back `bptt_segments`, and a cache is no part of a graph
            and not (model.training and model.backbone.is_activation_checkpointing)  # would append twice
            and call.document_ids is None
            and (call.num_tokens is None or bool(call.num_tokens.any()))
        )
        groups = [] if held is None else held.of(opened, memory.tokens_read.tolist())
        opened = keep_last(opened.to(inputs_embeds), int(memory.lengths.max()))
        segment = Segment.of(opened.shape[1], memory.lengths, memory.tokens_read, length, call)
        both = torch.cat([opened, inputs_embeds], dim=1)
        rows = Rows(written.to(inputs_embeds), memory.tokens_read >= self.config.segment_length)
        if reads_on:
            fields, rows, groups = self.read_on(base, both, segment, rows, groups)
        else:
            fields, rows = self.read_again(base, both, segment, rows)
        if not isinstance(kept, int):
            fields = (slice_logits_to_keep(fields[0], kept), *fields[1:])
        tokens_read = segment.tokens_read_after()
        lengths = tokens_read % self.config.segment_length
        opened = segment.newest(both, int(lengths.max())).detach()
        if layer_cache is not None and reads_on:
            layer_cache.derived = OpenSegments(opened, tokens_read.tolist(), groups)
        return base.output(fields), Memory((LayerMemory((opened,), (rows.state,)),), lengths, tokens_read)

    def read_again(self, base: BaseCall, both: torch.Tensor, segment: Segment, rows: Rows) -> tuple[PerToken, Rows]:
        """Read `both` `(B, C + T, E)`, the open segment again and what follows: what is said of the call, and the rows
        after it. Nothing real stands after padding, so that nothing has to be masked: what a row writes there is not
        kept."""
        segment_length, is_plain = self.config.segment_length, segment.is_plain
        places = (place_alike if is_plain else place_tokens)(segment, segment_length)
        placed, made = gather_columns(both, places.sources), []
        if self.training:
            warn_of_writing(len(places.widths), segment_length, cast(int, self.config.bptt_segments))
        for index, width in enumerate(places.widths):
            if (len(places.widths) - index) % self.config.bptt_segments == 0:
                rows = Rows(rows.state.detach(), rows.begun)
            rows = Rows(rows.state, rows.begun & ~places.is_new[:, index])
            piece = placed[:, index * segment_length :][:, :width]
            is_asked = not is_plain or both.shape[1] - (index * segment_length + width) < base.num_said
            fields, written = self.read_segment(base, rows, [], piece, width == segment_length, is_asked=is_asked)
            made.append(fields if is_plain else tuple(pad_right(each, segment_length) for each in fields))
            if written is not None:
                is_full = places.lengths[:, index] == segment_length
                rows = Rows(written.where(is_full[:, None, None], rows.state), rows.begun | is_full)
        if is_plain:
            return tuple(keep_last(each, base.num_said) for each in joined(made)), rows
        targets = keep_last(places.targets, base.num_said)
        return tuple(gather_columns(each, targets) for each in joined(made)), rows

    def read_on(
        self, base: BaseCall, both: torch.Tensor, segment: Segment, rows: Rows, projected: list[OpenRows]
    ) -> tuple[PerToken, Rows, list[OpenRows]]:
        """Read what follows the open segment, of which caches of the base's hold what is `projected`; return these too."""
        batch, num_open = len(both), segment.num_before
        added, result, after = (segment.end - num_open).tolist(), cast(PerToken, ()), []
        for group in rows_to_read(segment.lengths.tolist(), added, projected):
            index = None if len(group.rows) == batch else torch.tensor(group.rows, device=both.device)
            here = both if index is None else both[index]
            new, opened = here[:, num_open:][:, : group.num_new], keep_last(here[:, :num_open], group.num_open)
            fields, made, cache = self.extend(base, new, opened, rows.select(index), group.cache)
            rows = rows.put(index, made)
            if cache is not None and not fields[0].requires_grad:  # a cache is no part of a graph
                after.append(OpenRows(group.rows, cache))
            fields = tuple(pad_right(keep_last(each, base.num_said), base.num_said) for each in fields)
            result = result or tuple(each.new_zeros(batch, *each.shape[1:]) for each in fields)
            result = tuple(put(old, index, each) for old, each in zip(result, fields, strict=True))
        return result, rows, after

    def extend(
        self, base: BaseCall, new: torch.Tensor, opened: torch.Tensor, rows: Rows, cache: Cache | None
    ) -> tuple[PerToken, Rows, Cache | None]:
        """Read `new` `(b, t, E)` after `opened` `(b, n, E)`, which `cache` holds if there is one; what is said of the
        tokens, the rows after them, and the cache of what is open then."""
        made, segment_length, rest = [], self.config.segment_length, new.shape[1]
        first = segment_length - opened.shape[1]
        for piece in (new[:, :first], *new[:, first:].split(segment_length, dim=1)):
            if piece.shape[1] == 0:
                continue
            is_whole = opened.shape[1] + piece.shape[1] == segment_length
            front = [opened] if cache is None else None
            if cache is None and not is_whole:
                cache = DynamicCache(config=base.backbone.config)
            rest -= piece.shape[1]
            is_asked = rest < base.num_said
            fields, written = self.read_segment(base, rows, front, piece, is_whole, cache, is_asked)
            made.append(fields)
            if written is not None:
                rows, cache = Rows(written, torch.ones_like(rows.begun)), None
                opened = opened[:, :0]
        return joined(made), rows, cache

    def read_segment(
        self,
        base: BaseCall,
        rows: Rows,
        front: list[torch.Tensor] | None,
        piece: torch.Tensor,
        is_whole: bool,
        cache: Cache | None = None,
        is_asked: bool = True,
    ) -> tuple[PerToken, torch.Tensor | None]:
        """Read `piece` `(b, n, E)`, the end of a segment that begins with `front`, or in `cache` where `front` is None.

        What is said of the piece's tokens, where it `is_asked` for; and what is written after a whole segment,
        `(b, m, E)`.
        """
        read = self.memory_tokens(rows.state, rows.begun).to(piece.dtype)
        before = [] if front is None else [read, *front]
        start = sum(each.shape[1] for each in before)
        end = start + piece.shape[1]
        fields, last = base([*before, piece, read] if is_whole else [*before, piece], cache, is_asked)
        return tuple(each[:, start:end] for each in fields), last[:, end:] if is_whole else None


def put(rows: torch.Tensor, index: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
    """`rows` with `new` ones in the places of `index`; None: in all."""
    return new.to(rows.dtype) if index is None else rows.index_copy(0, index, new.to(rows.dtype))


def joined(made: list[PerToken]) -> PerToken:
    """What was said of tokens one after another; of some nothing was."""
    return tuple(torch.cat(each, dim=1) for each in zip(*[fields for fields in made if fields], strict=True))


def pad_right(columns: torch.Tensor, length: int) -> torch.Tensor:
    """`columns` `(B, n, ..)` before so many zeros that there are `length`."""
    return nn.functional.pad(columns, (0, 0, 0, length - columns.shape[1]))


__all__ = ["ScaledMemoryTokens", "TokenReader"]
