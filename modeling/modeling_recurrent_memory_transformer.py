"""Recurrent Memory Transformer on Transformer-XL: Bulatov et al., 2022, https://arxiv.org/abs/2207.06881.
Code: booydar/LM-RMT.

Memory tokens stand before each segment, where its tokens read them (read memory), and after it, where they attend to the
segment (write memory). The outputs of the write memory are the memory tokens of the next segment.
"""

from typing import cast

import torch
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_recurrent_memory_transformer import RecurrentMemoryTransformerConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.memory_tokens import MemoryTokens, warn_of_writing
from transformers_xl.modeling.layers.transformer_layer import MemoryLayer
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.memory.segment import Call, Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.ops.columns import gather_columns
from transformers_xl.modeling.outputs import MemoryModelOutput
from transformers_xl.modeling.segment_parts import CallParts


class RecurrentMemoryTransformerLayer(MemoryLayer):
    """A Transformer-XL layer, whose memory holds the cache and the open segment, memory tokens included.

    Differs from the original: segments are counted from the beginning of a text, and the open segment is kept for the next
    call, so that results do not depend on how a text is cut into calls. A memory token does not see the memory tokens after
    it; in the original it does, at negative distances.
    """


@auto_docstring(custom_intro="Base class for the Recurrent Memory Transformer: initialization and loading.")
class RecurrentMemoryTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: RecurrentMemoryTransformerConfig
    _no_split_modules = ["RecurrentMemoryTransformerLayer"]
    _is_stateful = True
    _can_compile_fullgraph = False  # the number of segments in a call depends on the values of its tensors


@auto_docstring(custom_intro="The Recurrent Memory Transformer without a head.")
class RecurrentMemoryTransformerModel(RecurrentMemoryTransformerPreTrainedModel, MemoryModel):
    """It remembers `state`: what the write memory became at the end of the last whole segment, `(batch, tokens,
    hidden_size)`."""

    layer_class = RecurrentMemoryTransformerLayer

    def build(self, config: RecurrentMemoryTransformerConfig) -> None:
        super().build(config)
        self.memory_tokens = MemoryTokens(config.num_memory_tokens, config.hidden_size)

    def new_state(self, batch: int, like: torch.Tensor) -> tuple[torch.Tensor]:
        return (like.new_zeros(batch, self.config.num_memory_tokens, self.config.hidden_size),)

    def read(
        self, hidden_states: torch.Tensor, memory: Memory, call: Call, cache: MemoryCache | None = None, **kwargs
    ) -> MemoryModelOutput:
        """Read the segments one by one, each with the memory tokens that the previous one wrote."""
        if kwargs.get("output_attentions", self.config.output_attentions):
            raise ValueError(
                "`output_attentions`=True has no meaning here: segments are read one by one. Leave it out."
            )
        config = self.config
        parts = CallParts.of(call, hidden_states.shape[1], memory.tokens_read, config.segment_length)
        if self.training:
            warn_of_writing(len(parts.parts), config.segment_length, config.bptt_segments)
        outputs: list[MemoryModelOutput] = []
        for left, part in zip(range(len(parts.parts), 0, -1), parts.parts, strict=True):
            memory = memory if part.begins is None else self.forget(memory, part.begins)
            if left % config.bptt_segments == 0:
                memory = memory._replace(state=tuple(each.detach() for each in memory.state))
            embeds = gather_columns(hidden_states, part.order)
            outputs.append(self.read_part(embeds, memory, part.call, cache, **kwargs))
            memory = cast(Memory, outputs[-1].mems)
            memory = memory._replace(layers=memory.detach().layers)  # gradients pass through memory tokens alone
        return parts.join(outputs)

    def read_part(
        self, embeds: torch.Tensor, memory: Memory, call: Call, cache: MemoryCache | None, **kwargs
    ) -> MemoryModelOutput:
        """The output for tokens `(B, n, E)` of one segment, between memory tokens where it begins and where it ends."""
        config, (batch, length), count = self.config, embeds.shape[:2], self.config.num_memory_tokens
        num = torch.full_like(memory.tokens_read, length) if call.num_tokens is None else call.num_tokens
        place, written = memory.tokens_read % config.segment_length, memory.state[0].to(embeds)
        reads, writes = (place == 0) & (num > 0), place + num == config.segment_length
        tokens = self.memory_tokens(written, memory.tokens_read >= config.segment_length)
        inputs, masks = [embeds], [torch.arange(length, device=num.device) < num[:, None]]
        start, has_written = count if bool(reads.any()) else 0, bool(writes.any())
        if start:
            inputs, masks = [tokens, *inputs], [reads[:, None].expand(batch, count), *masks]
        if has_written:
            inputs, masks = [*inputs, tokens], [*masks, writes[:, None].expand(batch, count)]
        both = Call.of(torch.cat(masks, dim=1), None, None)
        packed = gather_columns(torch.cat(inputs, dim=1), both.pack)
        output = self.in_order(super().read(packed, memory, both, cache, **kwargs), both)
        if has_written:
            written = torch.where(writes[:, None, None], output.last_hidden_state[:, -count:], written)
        output.mems = self.trimmed(cast(Memory, output.mems))._replace(
            tokens_read=memory.tokens_read + num, state=(written,)
        )
        return self.narrowed(output, start, length)

    def narrowed(self, output: MemoryModelOutput, start: int, length: int) -> MemoryModelOutput:
        """The output, restricted to `length` positions from `start`: without those of memory tokens."""
        output.last_hidden_state = output.last_hidden_state.narrow(1, start, length)
        if output.hidden_states is not None:
            output.hidden_states = tuple(
                None if each is None else each.narrow(1, start, length) for each in output.hidden_states
            )
        return output

    def trimmed(self, memory: Memory) -> Memory:
        """The memory without columns that no row uses: after a whole segment the cache is all that rows need."""
        return memory.newest([int(memory.lengths.max())] * len(memory.layers))

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, None, tuple[torch.Tensor, ...]]:
        """Text sees the cache and its segment, memory tokens the segment, and the cache if they may. A whole segment goes
        into the cache."""
        config, place = self.config, memory.tokens_read % self.config.segment_length
        opened = segment.num_before - torch.where(place > 0, config.num_memory_tokens + place, 0)
        text = segment.columns - (opened + config.num_memory_tokens)[:, None]
        sees_cache = ((text >= 0) & (text < config.segment_length)) | config.memory_reads_cache
        first = torch.where(sees_cache, (opened - config.cache_len)[:, None], opened[:, None]).maximum(segment.start)
        is_whole = segment.end - opened == config.positions_per_segment
        start = torch.where(is_whole, segment.end, opened) - config.cache_len
        start = segment.start.maximum(start[:, None])
        return segment._replace(start=start, first=first, is_plain=False), None, memory.state


@auto_docstring(custom_intro="The Recurrent Memory Transformer with a language modeling head.")
class RecurrentMemoryTransformerForCausalLM(RecurrentMemoryTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = RecurrentMemoryTransformerModel


@auto_docstring(custom_intro="The Recurrent Memory Transformer with a classification head on the last real token.")
class RecurrentMemoryTransformerForSequenceClassification(
    RecurrentMemoryTransformerPreTrainedModel, MemoryForSequenceClassification
):
    model_class = RecurrentMemoryTransformerModel


@auto_docstring(custom_intro="The Recurrent Memory Transformer with a classification head on every token.")
class RecurrentMemoryTransformerForTokenClassification(
    RecurrentMemoryTransformerPreTrainedModel, MemoryForTokenClassification
):
    model_class = RecurrentMemoryTransformerModel


__all__ = [
    "RecurrentMemoryTransformerForCausalLM",
    "RecurrentMemoryTransformerForSequenceClassification",
    "RecurrentMemoryTransformerForTokenClassification",
    "RecurrentMemoryTransformerModel",
    "RecurrentMemoryTransformerPreTrainedModel",
]
