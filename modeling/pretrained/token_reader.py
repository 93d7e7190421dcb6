"""Memory tokens around any causal language model: Bulatov et al., 2022, https://arxiv.org/abs/2207.06881, section 3.

    | memory tokens | segment | memory tokens |

The same vectors stand on both sides. In front the segment reads them; behind it they see the segment, and what the model
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
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import ModelOutput

from transformers_xl.configuration.configuration_segment_memory import SegmentMemoryConfig
from transformers_xl.modeling.memory.layer_memory import LayerMemory
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.memory.token_memory import (
    MemoryTokens,
    OpenRows,
    OpenSegmentMemory,
    TokensMemory,
    WrittenMemory,
    warn_of_writing,
)
from transformers_xl.modeling.ops.window import SegmentPacking, gather_columns, keep_last, right_align
from transformers_xl.modeling.pretrained.memory_reader import MemoryReader, RunBackbone
from transformers_xl.modeling.pretrained.token_places import place_alike, place_tokens, rows_to_read

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
        backbone: the base.
        run: runs its decoder, or all of it.
        num_said: how many of the newest tokens of the call something is to be said of.
        kwargs: what else it is to be told, or asked for.
    """

    def __init__(self, backbone: PreTrainedModel, run: RunBackbone, num_said: int, kwargs: dict[str, Any]):
        if kwargs.get("output_attentions"):
            raise ValueError(
                "`output_attentions`=True has no meaning for `kind`='tokens', whose segments are read one by one: ask "
                "`model.backbone` for the attentions of one segment."
            )
        self.backbone, self.run, self.num_said, self.kwargs = backbone, run, num_said, kwargs
        self.has_logits = False
        self.shown: list[bool] = []  # of each hidden state, whether it was asked for

    def __call__(
        self, embeds: list[torch.Tensor], cache: Cache | None = None, is_asked: bool = True
    ) -> tuple[PerToken, torch.Tensor]:
        """What the base says of `embeds`, side by side, `(B, ..)` each, nothing where it `is_asked` for nothing; and its
        last hidden states `(B, .., E)`."""
        if not is_asked and not self.kwargs.get("output_hidden_states"):  # logits are large
            given = {"past_key_values": cache, "use_cache": cache is not None}
            return (), self.backbone.get_decoder()(inputs_embeds=torch.cat(embeds, dim=1), **given)[0]
        last = []  # not by `output_hidden_states`, which keeps those of all layers
        hook = self.backbone.get_decoder().register_forward_hook(lambda module, given, output: last.append(output[0]))
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
    """Reads a call in segments, between memory tokens."""

    def __init__(self, config: SegmentMemoryConfig):
        super().__init__(config)
        self.memory_tokens = ScaledMemoryTokens(config.num_memory_tokens, config.embedding_width)

    def own_memories(self, backbone: nn.Module) -> LayerMemory:
        width = self.config.embedding_width
        return TokensMemory(WrittenMemory(self.config.num_memory_tokens, width), OpenSegmentMemory(width))

    def read(
        self,
        backbone: nn.Module,
        run: RunBackbone,
        inputs_embeds: torch.Tensor,
        segment_mask: torch.Tensor | None,
        document_ids: torch.Tensor | None,
        memory: ModelMemory,
        **kwargs: Any,
    ) -> ModelOutput:
        packing = memory.open(inputs_embeds, segment_mask, document_ids)
        kept = kwargs.pop("logits_to_keep", 0)
        base = BaseCall(
            cast(PreTrainedModel, backbone),
            run,
            kept if isinstance(kept, int) and kept > 0 else packing.length,
            kwargs,
        )
        reads_something = segment_mask is None or bool(segment_mask.any())
        reads_on = memory.is_cache and document_ids is None and reads_something
        fields = (self.read_on if reads_on else self.read_again)(base, inputs_embeds, packing, memory.own)
        if not isinstance(kept, int):
            fields = (slice_logits_to_keep(fields[0], kept), *fields[1:])
        return base.output(fields)

    def read_again(
        self, base: BaseCall, inputs: torch.Tensor, packing: SegmentPacking, memory: TokensMemory
    ) -> PerToken:
        """Read the open segment again, with what follows. Nothing real stands behind padding, so that nothing has to be
        masked: what a row writes behind padding is not kept."""
        segment_length = self.config.segment_length
        embeds, open_lengths = memory.open_segment.read()
        is_plain = packing.is_plain and bool((open_lengths == open_lengths[0]).all())
        if is_plain:
            embeds = keep_last(embeds, int(open_lengths[0]))
            places = place_alike(packing, embeds.shape[1], segment_length, inputs.device)
        else:
            places = place_tokens(packing, open_lengths, embeds.shape[1], segment_length)
        both = torch.cat([embeds.to(inputs), inputs], dim=1)
        placed = both if places.sources is None else gather_columns(both, places.sources)
        if self.training:
            warn_of_writing(len(places.widths), self.config.segment_length, cast(int, self.config.bptt_segments))
        rows, made = Rows(*memory.memory_tokens.read_rows()), []
        for index, width in enumerate(places.widths):
            if (len(places.widths) - index) % self.config.bptt_segments == 0:
                rows = Rows(rows.state.detach(), rows.begun)
            rows = Rows(rows.state, rows.begun & ~places.is_new[:, index])
            piece = placed[:, index * segment_length :][:, :width]
            is_asked = not is_plain or both.shape[1] - (index * segment_length + width) < base.num_said
            fields, written = self.read_segment(base, rows, [], piece, width == segment_length, is_asked=is_asked)
            made.append(fields if is_plain else tuple(pad_right(each, segment_length - width) for each in fields))
            if written is not None:
                is_full = places.lengths[:, index] == segment_length
                rows = Rows(written.where(is_full[:, None, None], rows.state), rows.begun | is_full)
        memory.memory_tokens.note(*rows)
        note_open(both, places.open_lengths(segment_length), packing, memory)
        if is_plain:
            return tuple(keep_last(each, base.num_said) for each in joined(made))
        targets = keep_last(places.targets, base.num_said)
        return tuple(gather_columns(each, targets) for each in joined(made))

    def read_on(self, base: BaseCall, inputs: torch.Tensor, packing: SegmentPacking, memory: TokensMemory) -> PerToken:
        """Read what follows the open segment, which a cache of the base's holds where it was read before."""
        embeds, lengths = memory.open_segment.read()
        rows, mask = Rows(*memory.memory_tokens.read_rows()), packing.segment_mask
        added = torch.full_like(lengths, packing.length) if mask is None else mask.sum(1)
        result: PerToken = ()
        projected = []
        for group in rows_to_read(lengths.tolist(), added.tolist(), memory.open_segment.projected):
            index = None if len(group.rows) == packing.batch else torch.tensor(group.rows, device=inputs.device)
            new, opened = (each if index is None else each[index] for each in (inputs, embeds.to(inputs)))
            new, opened = keep_last(new, group.num_new), keep_last(opened, group.num_open)
            fields, after, cache = self.extend(base, new, opened, rows.select(index), group.cache)
            rows = rows.put(index, after)
            if cache is not None and not fields[0].requires_grad:  # a cache is no part of a graph
                projected.append(OpenRows(group.rows, cache))
            fields = tuple(pad_left(keep_last(each, base.num_said), base.num_said) for each in fields)
            result = result or tuple(each.new_zeros(packing.batch, *each.shape[1:]) for each in fields)
            result = tuple(put(old, index, each) for old, each in zip(result, fields, strict=True))
        memory.memory_tokens.note(*rows)
        both = torch.cat([embeds.to(inputs), inputs], dim=1)
        note_open(both, (lengths + added) % self.config.segment_length, packing, memory)
        memory.open_segment.projected = projected
        return result

    def extend(
        self, base: BaseCall, new: torch.Tensor, opened: torch.Tensor, rows: Rows, cache: Cache | None
    ) -> tuple[PerToken, Rows, Cache | None]:
        """Read `new` `(b, t, E)` behind `opened` `(b, n, E)`, which `cache` holds if there is one; what is said of the
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

        What is said of the piece's tokens, where it `is_asked` for; and what is written behind a whole segment,
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


def pad_left(columns: torch.Tensor, length: int) -> torch.Tensor:
    """`columns` `(B, n, ..)` behind so many zeros that there are `length`."""
    return nn.functional.pad(columns, (0, 0, length - columns.shape[1], 0))


def pad_right(columns: torch.Tensor, count: int) -> torch.Tensor:
    """`columns` `(B, n, ..)` before `count` zeros."""
    return nn.functional.pad(columns, (0, 0, 0, count))


def note_open(both: torch.Tensor, lengths: torch.Tensor, packing: SegmentPacking, memory: TokensMemory) -> None:
    """Note what is open after a call: the newest `lengths` `(B,)` tokens of each row of `[open segment; call]`."""
    if packing.segment_mask is not None:  # padding stands between what was open and what follows
        num_open = both.shape[1] - packing.length
        columns = torch.arange(num_open, device=both.device)
        is_open = columns >= num_open - memory.open_segment.read()[1][:, None]
        both = gather_columns(both, right_align(torch.cat([is_open, packing.segment_mask], dim=1)))
    memory.open_segment.note(both, lengths, int(lengths.max()))


__all__ = ["ScaledMemoryTokens", "TokenReader"]
