"""Block-Recurrent Transformer: Hutchins et al., 2022, https://arxiv.org/abs/2203.07852. Code: google-research/meliad.

Some layers have a state of many vectors. All tokens of a block read it, and at the end of the block it is updated once, by
attention to the tokens: a recurrent network whose step is a block and whose cell is a Transformer layer.
"""

from typing import cast

import torch
from torch import nn
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_block_recurrent import BlockRecurrentConfig
from transformers_xl.modeling.actor_critic import MemoryForActorCritic
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.block_recurrence import BlockPlan, BlockState, StateReadingAttention
from transformers_xl.modeling.layers.local_attention import LocalAttention, LocalLayer
from transformers_xl.modeling.layers.transformer_layer import LayerOutput
from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.memory.segment import Call, LayerContext, Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.ops.block_ends import block_ends
from transformers_xl.modeling.ops.columns import reset_state
from transformers_xl.modeling.outputs import MemoryModelOutput
from transformers_xl.modeling.segment_parts import CallParts


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

    def new_memory(self, batch: int, num_columns: int, like: torch.Tensor) -> LayerMemory:
        """`state` is that of the last whole block, `(batch, num_states, hidden_size)`."""
        config, memory = self.self_attn.config, super().new_memory(batch, num_columns, like)
        return memory._replace(state=(like.new_zeros(batch, config.num_states, config.hidden_size),))

    def forward(self, hidden_states: torch.Tensor, past: LayerMemory, context: LayerContext, **kwargs) -> LayerOutput:
        plan, written = cast(BlockPlan, context.plan), past.state[0].to(hidden_states)
        normed = self.attention_input(hidden_states)
        columns, kept = context.extend(past.columns, hidden_states, self.self_attn.project(normed), self.project)
        own = self.state.read(written, plan.begun, context.layer_cache)
        states, written = self.state.run(written, own, columns, plan)
        if plan.blocks.ends:
            has_written = context.segment.tokens_read_after() >= self.self_attn.config.block_length
            written = reset_state(written, ~has_written)
        attn_output, _ = self.self_attn(normed, *columns, context, states=states, **kwargs)
        hidden_states = self.after_attention(hidden_states, self.dropout(attn_output), context, **kwargs)
        return LayerOutput(hidden_states, LayerMemory(kept, (written,)))


@auto_docstring(custom_intro="Base class for the Block-Recurrent Transformer: initialization and loading.")
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

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, BlockPlan, tuple[torch.Tensor, ...]]:
        config = self.config
        blocks, visible = block_ends(segment, config.block_length, config.mem_len), None
        if blocks.number is not None:
            number = torch.arange(blocks.num_read, device=blocks.number.device).repeat_interleave(config.num_states)
            visible = (blocks.number[..., None] == number)[:, None]
        return segment, BlockPlan(blocks, segment.tokens_read >= config.block_length, visible), ()

    def contexts(
        self, segment: Segment, memory: Memory, plan: BlockPlan, cache: MemoryCache | None, like: torch.Tensor
    ) -> list[LayerContext]:
        if not self.config.feedback:
            return super().contexts(segment, memory, plan, cache, like)
        last = max(self.config.recurrent_layers)
        written, state = memory.layers[last].state[0].to(like.dtype), cast(BlockState, self.layers[last].state)
        fed_back = state.read(written, plan.begun, None if cache is None else cache.layer_cache(last))
        return super().contexts(segment, memory, plan._replace(fed_back=fed_back), cache, like)

    def read(
        self, hidden_states: torch.Tensor, memory: Memory, call: Call, cache: MemoryCache | None = None, **kwargs
    ) -> MemoryModelOutput:
        """With feedback, read a call block by block: lower layers read the state that an upper layer updated."""
        if not self.config.feedback:
            return super().read(hidden_states, memory, call, cache, **kwargs)
        parts = CallParts.of(call, hidden_states.shape[1], memory.tokens_read, self.config.block_length)
        if len(parts.parts) > 1:
            self.check_parts(len(parts.parts), **kwargs)
        return parts.read(super().read, self.forget, hidden_states, memory, cache, **kwargs)

    def check_parts(self, count: int, **kwargs) -> None:
        """Raise a `ValueError` if a call of several blocks cannot be run one by one."""
        if kwargs.get("output_attentions", self.config.output_attentions):
            raise ValueError(
                f"`output_attentions`=True with `feedback`=True: this call is run as {count} blocks, whose weights have "
                "different keys. Pass one block per call."
            )
        if self.is_reentrant:
            raise ValueError(
                f"`use_reentrant`=True with `feedback`=True: this call is run as {count} blocks, and gradients from one to "
                "the one before would be lost. Checkpoint activations with `use_reentrant=False`."
            )


@auto_docstring(custom_intro="The Block-Recurrent Transformer with a language modeling head.")
class BlockRecurrentForCausalLM(BlockRecurrentPreTrainedModel, MemoryForCausalLM):
    model_class = BlockRecurrentModel


@auto_docstring(custom_intro="The Block-Recurrent Transformer with a classification head on the last real token.")
class BlockRecurrentForSequenceClassification(BlockRecurrentPreTrainedModel, MemoryForSequenceClassification):
    model_class = BlockRecurrentModel


@auto_docstring(custom_intro="The Block-Recurrent Transformer with a classification head on every token.")
class BlockRecurrentForTokenClassification(BlockRecurrentPreTrainedModel, MemoryForTokenClassification):
    model_class = BlockRecurrentModel


@auto_docstring(custom_intro="The Block-Recurrent Transformer as an agent: a policy and a value at every step.")
class BlockRecurrentForActorCritic(BlockRecurrentPreTrainedModel, MemoryForActorCritic):
    model_class = BlockRecurrentModel


__all__ = [
    "BlockRecurrentForActorCritic",
    "BlockRecurrentForCausalLM",
    "BlockRecurrentForSequenceClassification",
    "BlockRecurrentForTokenClassification",
    "BlockRecurrentModel",
    "BlockRecurrentPreTrainedModel",
]
