"""Block-Recurrent Transformer: Hutchins et al., 2022, https://arxiv.org/abs/2203.07852. Code: google-research/meliad.

Some layers have a state of many vectors. All tokens of a block read it, and at the end of the block it is updated once, by
attention to the tokens: a recurrent network whose step is a block and whose cell is a Transformer layer.
"""

from typing import cast

import torch
from torch import nn
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_block_recurrent import BlockRecurrentConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.block_recurrence import (
    BlockContext,
    BlockPosition,
    BlockRecurrentMemory,
    BlockState,
    StateReadingAttention,
)
from transformers_xl.modeling.layers.local_attention import LocalAttention, LocalLayer
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.layers.transformer_layer import LayerOutput
from transformers_xl.modeling.memory.counter_memory import CounterMemory
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.memory.token_memory import WrittenMemory
from transformers_xl.modeling.memory.window_memory import BlockWindowMemory
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.ops.block_ends import block_ends
from transformers_xl.modeling.ops.call_parts import CallParts
from transformers_xl.modeling.ops.token_order import TokenOrder
from transformers_xl.modeling.ops.window import SegmentPacking, drop_full_mask, gather_columns
from transformers_xl.modeling.outputs import MemoryModelOutput


class BlockRecurrentLayer(LocalLayer):
    """A layer without a state: local attention and a feed-forward.

    Differs from the original: a token sees itself (not with `attend_to_self=False`), and a new row has an empty memory
    (zeros with `initial_memory="zeros"`). The feed-forward has biases.
    """


class FeedbackLayer(BlockRecurrentLayer):
    """The same layer with `feedback=True`: it also reads the state of the last recurrent layer."""

    attention_class = StateReadingAttention


class RecurrentLayer(BlockRecurrentLayer):
    """A layer with a state. Section 3.1.

        y = o_proj [local attention of the tokens; attention of the tokens to the state before their block]
        c = `BlockState` of the state, and of the keys and values of the block

    Differs from the original: blocks are counted from the beginning of a text, so that results do not depend on how it is
    cut into segments.
    """

    attention_class = StateReadingAttention

    def __init__(self, config: BlockRecurrentConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.state = BlockState(config, layer_idx)

    def memories(self) -> BlockRecurrentMemory:
        config = self.self_attn.config
        window = BlockWindowMemory(config, config.sliding_window, config.block_length)
        return BlockRecurrentMemory(window, WrittenMemory(config.num_states, config.hidden_size))

    def forward(
        self, hidden_states: torch.Tensor, memory: BlockRecurrentMemory, segment: BlockContext, **kwargs
    ) -> LayerOutput:
        normed, past = self.attention_inputs(hidden_states, memory.inputs)
        projected = self.self_attn.keys_and_values(normed, past, memory.inputs)
        states = self.state.run(memory.state, projected, segment.blocks)
        attn_output, _ = self.self_attn(
            normed, None, memory.inputs, segment, states=states, projected=projected, **kwargs
        )
        return LayerOutput(self.after_attention(hidden_states, self.dropout(attn_output), segment, **kwargs))


@auto_docstring(custom_intro="Weights, loading and the promises of the Block-Recurrent Transformer.")
class BlockRecurrentPreTrainedModel(MemoryPreTrainedModel):
    config: BlockRecurrentConfig
    _no_split_modules = ["BlockRecurrentLayer", "FeedbackLayer", "RecurrentLayer"]
    _is_stateful = True
    _can_compile_fullgraph = False  # a static cache has no place for a state
    _can_record_outputs = {**MemoryPreTrainedModel._can_record_outputs, "attentions": LocalAttention}  # not of states


@auto_docstring(custom_intro="The Block-Recurrent Transformer without a head.")
class BlockRecurrentModel(BlockRecurrentPreTrainedModel, MemoryModel):
    layer_class = BlockRecurrentLayer
    norm_class = nn.RMSNorm
    positions_class = None

    def build_layers(self, config: BlockRecurrentConfig) -> nn.ModuleList:
        others = FeedbackLayer if config.feedback else BlockRecurrentLayer
        layers = range(config.num_hidden_layers)
        return nn.ModuleList([(RecurrentLayer if config.is_recurrent(i) else others)(config, i) for i in layers])

    def own_memories(self) -> BlockPosition:
        return BlockPosition(CounterMemory())

    def segment_context(
        self, hidden_states: torch.Tensor, segment: SegmentContext, memory: ModelMemory
    ) -> BlockContext:
        config, position = self.config, memory.own.block_position
        blocks, after = block_ends(
            memory.segment, memory.num_before, position.read(), config.block_length, config.mem_len
        )
        position.write(after)
        visible = fed_back = None
        if blocks.number is not None:
            number = torch.arange(blocks.num_read, device=blocks.number.device).repeat_interleave(config.num_states)
            visible = (blocks.number[..., None] == number)[:, None]
        if config.feedback:
            last = max(config.recurrent_layers)
            fed_back = cast(RecurrentLayer, self.layers[last]).state.read(memory.layers[last].state)
        return BlockContext(**vars(segment), blocks=blocks, visible_states=visible, fed_back=fed_back)

    def _run(
        self,
        hidden_states: torch.Tensor,
        segment_mask: torch.Tensor | None,
        document_ids: torch.Tensor | None,
        memory: ModelMemory,
        order: TokenOrder,
        **kwargs,
    ) -> MemoryModelOutput:
        """With feedback, run a call block by block: lower layers read the state that an upper layer updated."""
        whole = (hidden_states, segment_mask, document_ids, memory, order)
        if not self.config.feedback:
            return super()._run(*whole, **kwargs)
        batch, length = hidden_states.shape[:2]
        if memory.batch < 0:
            memory.start(batch, hidden_states)
        packing = SegmentPacking(batch, length, hidden_states.device, None, segment_mask, document_ids)
        parts = CallParts.of(packing, memory.own.block_position.read(), self.config.block_length)
        if parts.is_one:
            return super()._run(*whole, **kwargs)
        if len(parts.parts) > 1 and kwargs.get("output_attentions", self.config.output_attentions):
            raise ValueError(
                f"`output_attentions`=True with `feedback`=True: this call is run as {len(parts.parts)} blocks, whose "
                "weights have different keys. Pass one block per call."
            )
        outputs = []
        for part, here in memory.read_parts(parts.parts, hidden_states, detach=False):
            embeds, mask = gather_columns(hidden_states, part.order), drop_full_mask(part.valid)
            outputs.append(super()._run(embeds, mask, None, here, TokenOrder(), **kwargs))
        return self.joined(outputs, parts, order)


@auto_docstring(custom_intro="The Block-Recurrent Transformer with a language modeling head.")
class BlockRecurrentForCausalLM(BlockRecurrentPreTrainedModel, MemoryForCausalLM):
    model_class = BlockRecurrentModel


@auto_docstring(custom_intro="The Block-Recurrent Transformer with a classification head on the last real token.")
class BlockRecurrentForSequenceClassification(BlockRecurrentPreTrainedModel, MemoryForSequenceClassification):
    model_class = BlockRecurrentModel


@auto_docstring(custom_intro="The Block-Recurrent Transformer with a classification head on every token.")
class BlockRecurrentForTokenClassification(BlockRecurrentPreTrainedModel, MemoryForTokenClassification):
    model_class = BlockRecurrentModel


__all__ = [
    "BlockRecurrentForCausalLM",
    "BlockRecurrentForSequenceClassification",
    "BlockRecurrentForTokenClassification",
    "BlockRecurrentModel",
    "BlockRecurrentPreTrainedModel",
]
