"""Recurrent Memory Transformer on Transformer-XL: Bulatov et al., 2022, https://arxiv.org/abs/2207.06881.
Code: booydar/LM-RMT.

Memory tokens stand before each segment, where its tokens read them (read memory), and after it, where they attend to the
segment (write memory). The outputs of the write memory are the memory tokens of the next segment.
"""

from typing import Any, cast

import torch
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_recurrent_memory_transformer import RecurrentMemoryTransformerConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.layers.transformer_layer import MemoryLayer
from transformers_xl.modeling.memory.counter_memory import CounterMemory
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.memory.token_memory import (
    MemoryTokens,
    RecurrentTokens,
    WrittenMemory,
    warn_of_writing,
)
from transformers_xl.modeling.memory.window_memory import AttentionMemory, BlockWindowMemory, WindowMemory
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.ops.call_parts import CallPart, CallParts
from transformers_xl.modeling.ops.key_mask import ALL_VISIBLE, KeyMask
from transformers_xl.modeling.ops.token_order import TokenOrder
from transformers_xl.modeling.ops.window import SegmentPacking, drop_full_mask, gather_columns, reset_state
from transformers_xl.modeling.outputs import MemoryModelOutput


class RecurrentMemoryTransformerLayer(MemoryLayer):
    """A Transformer-XL layer that keeps the cache and the open segment until the segment is complete.

    Differs from the original: segments are counted from the beginning of a text, and the open segment is kept for the next
    call, so that results do not depend on how a text is cut into calls. A memory token does not see the memory tokens after
    it; in the original it does, at negative distances.
    """

    def memories(self) -> AttentionMemory:
        config = cast(RecurrentMemoryTransformerConfig, self.self_attn.config)
        return AttentionMemory(BlockWindowMemory(config, config.cache_len, config.positions_per_segment))


@auto_docstring(custom_intro="Weights, loading and the promises of the Recurrent Memory Transformer.")
class RecurrentMemoryTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: RecurrentMemoryTransformerConfig
    _no_split_modules = ["RecurrentMemoryTransformerLayer"]
    _is_stateful = True
    _can_compile_fullgraph = False  # the number of segments in a call depends on the values of its tensors


@auto_docstring(custom_intro="The Recurrent Memory Transformer without a head.")
class RecurrentMemoryTransformerModel(RecurrentMemoryTransformerPreTrainedModel, MemoryModel):
    layer_class = RecurrentMemoryTransformerLayer

    def build(self, config: RecurrentMemoryTransformerConfig) -> None:
        super().build(config)
        self.memory_tokens = MemoryTokens(config.num_memory_tokens, config.hidden_size)

    def own_memories(self) -> RecurrentTokens:
        return RecurrentTokens(WrittenMemory(self.config.num_memory_tokens, self.config.hidden_size), CounterMemory())

    def _run(
        self,
        hidden_states: torch.Tensor,
        segment_mask: torch.Tensor | None,
        document_ids: torch.Tensor | None,
        memory: ModelMemory,
        order: TokenOrder,
        **kwargs,
    ) -> MemoryModelOutput:
        """Run the segments one by one, each with the memory tokens that the previous one wrote."""
        if kwargs.get("output_attentions", self.config.output_attentions):
            raise ValueError(
                "`output_attentions`=True has no meaning here: segments are read one by one. Leave it out."
            )
        batch, length = hidden_states.shape[:2]
        if memory.batch < 0:
            memory.start(batch, hidden_states)
        packing = SegmentPacking(batch, length, hidden_states.device, None, segment_mask, document_ids)
        call = CallParts.of(packing, memory.own.place.read(), self.config.segment_length)
        num_parts = len(call.parts)
        if self.training:
            warn_of_writing(num_parts, self.config.segment_length, self.config.bptt_segments)
        outputs: list[MemoryModelOutput] = []
        written = memory.own.memory_tokens.read_rows()
        for part, here in memory.read_parts(call.parts, hidden_states, detach=True):
            state, begun = written
            state = state.detach() if (num_parts - len(outputs)) % self.config.bptt_segments == 0 else state
            embeds = gather_columns(hidden_states, part.order)
            output, written = self.read_part(embeds, part, here, (state, begun & ~part.begins), **kwargs)
            outputs.append(output)
        return self.joined(outputs, call, order)

    def read_part(
        self,
        embeds: torch.Tensor,
        part: CallPart,
        memory: ModelMemory,
        written: tuple[torch.Tensor, torch.Tensor],
        **kwargs,
    ) -> tuple[MemoryModelOutput, tuple[torch.Tensor, torch.Tensor]]:
        """The output for the tokens of a part `(B, n, E)`, and `written` after it: the memory tokens of each row, and which
        rows have begun to write."""
        (state, begun), config = written, self.config
        place, counts = memory.own.place.read(), part.valid.sum(1)
        reads, place = (place == 0) & (counts > 0), place + counts
        writes, tokens = place == config.segment_length, self.memory_tokens(state, begun)
        has_written = bool(writes.any())
        inputs, masks, start = [embeds], [part.valid], 0
        if bool(reads.any()):
            start = config.num_memory_tokens
            inputs, masks = [tokens, *inputs], [reads[:, None].expand(-1, start), *masks]
        if has_written:
            inputs, masks = [*inputs, tokens], [*masks, writes[:, None].expand(-1, config.num_memory_tokens)]
        mask = drop_full_mask(torch.cat(masks, dim=1))
        order = TokenOrder.of(mask)
        mask = None if mask is None else gather_columns(mask, order.pack)
        packed = gather_columns(torch.cat(inputs, dim=1), order.pack)
        output = super()._run(packed, mask, None, memory, order, **kwargs)
        if has_written:
            new = output.last_hidden_state[:, -config.num_memory_tokens :]
            state, begun = torch.where(writes[:, None, None], new, state), begun | writes
        memory.own.memory_tokens.note(reset_state(state, ~begun), begun)
        memory.own.place.write(place % config.segment_length)
        return self.narrowed(output, start, embeds.shape[1]), (state, begun)

    def narrowed(self, output: MemoryModelOutput, start: int, length: int) -> MemoryModelOutput:
        """The output, restricted to `length` positions from `start`: without those of memory tokens."""
        output.last_hidden_state = output.last_hidden_state.narrow(1, start, length)
        if output.hidden_states is not None:
            shown: Any = tuple(
                None if each is None else each.narrow(1, start, length) for each in output.hidden_states
            )
            output.hidden_states = shown
        return output

    def key_mask(self, window: WindowMemory, packing: SegmentPacking) -> KeyMask:
        return ALL_VISIBLE  # until `segment_context` says how the segment stands in that of the text

    def segment_context(
        self, hidden_states: torch.Tensor, segment: SegmentContext, memory: ModelMemory
    ) -> SegmentContext:
        """Set the mask of the windows, and the columns that they keep after this part."""
        packing = memory.segment
        rows, place, config = packing.rows(memory.num_before), memory.own.place.read(), self.config
        num_tokens = packing.length if segment.segment_mask is None else segment.segment_mask.sum(1)
        opened = torch.where(place > 0, config.num_memory_tokens + place, 0) + num_tokens
        num_columns = memory.num_before + packing.length
        # of each column, its position in the segment; negative ones are those of the cache
        position = torch.arange(num_columns, device=packing.device) - (num_columns - opened)[:, None]
        is_near, is_cache = position >= 0, (position < 0) & (position >= -config.cache_len)
        asks = position[:, -packing.length :]
        is_text = (asks >= config.num_memory_tokens) & (asks < config.num_memory_tokens + config.segment_length)
        sees_cache = torch.ones_like(is_text) if config.memory_reads_cache else is_text
        visible = (position[:, None] <= asks[..., None]) & (
            is_near[:, None] | (is_cache[:, None] & sees_cache[..., None])
        )
        visible = visible if rows.valid is None else visible & rows.valid[:, None]
        key_mask = KeyMask(visible[:, None], order=rows.order)
        for each in memory.windows:
            each.key_mask = key_mask
        is_whole = opened == config.positions_per_segment
        kept = config.cache_len + opened.where(~is_whole, 0)
        packing.wanted = position >= (opened - kept)[:, None]
        if packing.is_plain and bool((kept == kept[0]).all()):
            packing.limit, packing.wanted = int(kept[0]), None
        return segment


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
