"""Compressive Transformer: Rae et al., 2019, https://arxiv.org/abs/1911.05507. No code of the authors is public.

The oldest memories of a Transformer-XL are not forgotten: `compression_rate` of them become one of a second memory.
"""

from dataclasses import dataclass
from typing import cast

import torch
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_compressive_transformer import CompressiveTransformerConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.layers.compression import (
    Compression,
    CompressiveContext,
    reconstruction_loss,
    without_learning,
)
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.layers.transformer_layer import LayerOutput, MemoryLayer
from transformers_xl.modeling.memory.compressed_memory import (
    CompressedCount,
    CompressiveMemory,
    plan_compression,
)
from transformers_xl.modeling.memory.counter_memory import CounterMemory
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel
from transformers_xl.modeling.ops.backends import relative_backend
from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.outputs import MemoryHeadOutput, MemoryModelOutput


@dataclass
class CompressiveTransformerModelOutput(MemoryModelOutput):
    """
    Args:
        compression_loss (`torch.Tensor` of shape `(batch, length)`, *optional*):
            In training mode: the attention-reconstruction loss of each token, summed over layers.
        attentions (`tuple[torch.Tensor]`, *optional*):
            Weights of each layer, `(batch, heads, length, keys)`, the keys being those of `[compressed; memory; segment]`.
    """

    compression_loss: torch.Tensor | None = None


@dataclass
class CompressiveTransformerHeadOutput(MemoryHeadOutput):
    """`compression_loss` and `attentions` as in [`CompressiveTransformerModelOutput`]."""

    compression_loss: torch.Tensor | None = None


class CompressiveTransformerLayer(MemoryLayer):
    """Attention over `[compressed memory; memory; segment]` and a feed-forward. Algorithm 1.

    Differs from the original: blocks are counted from the beginning of a text and seen when all of a block lies behind
    the window, so that the cut into segments changes nothing (`same_length=False`: as in the paper); the memory of a new
    row is empty (`initial_memory="zeros"`: as in the paper). A compressed vector stands for one step of distance, which the
    paper leaves open.
    """

    self_attn: RelativeAttention

    def __init__(self, config: CompressiveTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.compression = Compression(config)

    def memories(self) -> CompressiveMemory:
        return CompressiveMemory.of(cast(CompressiveTransformerConfig, self.self_attn.config))

    def project(self, states: torch.Tensor) -> Tensors:
        return self.self_attn.project(self.attention_input(states))

    def forward(
        self, hidden_states: torch.Tensor, memory: CompressiveMemory, segment: CompressiveContext, **kwargs
    ) -> LayerOutput:
        normed, past = self.attention_input(hidden_states), memory.inputs.unprojected()
        memory.inputs.write(hidden_states)
        before = None if past is None else (*self.project(past), past.unsqueeze(1))
        new = (*self.self_attn.project(normed), hidden_states.unsqueeze(1))
        key, value, inputs = memory.inputs.extend(new, before)

        blocks, columns = segment.plan.blocks, memory.compressed.projected
        if self.training or blocks.count > 0 or not columns:
            old = blocks.gather(inputs[:, 0].detach())
            compressed = self.compression(old)
            past = memory.compressed.unprojected()
            memory.compressed.write(compressed.detach())
            columns = memory.compressed.extend(
                self.project(compressed.detach()), None if past is None else self.project(past)
            )

        far = memory.compressed.far(segment.plan.key_mask, *columns)
        attn_output, _ = self.self_attn(
            normed, None, memory.inputs, segment, projected=(key, value), far=far, **kwargs
        )
        hidden_states = self.after_attention(hidden_states, self.dropout(attn_output), segment, **kwargs)
        if not self.training:
            return LayerOutput(hidden_states)
        if self.input_layernorm.norm_position == "pre":
            old, compressed = (without_learning(self.input_layernorm, each) for each in (old, compressed))
        return LayerOutput(hidden_states, reconstruction_loss(self.self_attn, normed, old, compressed, segment))


@auto_docstring(custom_intro="Weights, loading and the promises of the Compressive Transformer.")
class CompressiveTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: CompressiveTransformerConfig
    _no_split_modules = ["CompressiveTransformerLayer"]
    _is_stateful = True
    _can_compile_fullgraph = False  # a static cache has no place for what is compressed


@auto_docstring(custom_intro="The Compressive Transformer without a head.")
class CompressiveTransformerModel(CompressiveTransformerPreTrainedModel, MemoryModel):
    layer_class = CompressiveTransformerLayer
    output_class = CompressiveTransformerModelOutput
    token_outputs = ("last_hidden_state", "compression_loss")
    auxiliary_loss_coef = "reconstruction_loss_coef"

    def auxiliary_loss(self, outputs: MemoryModelOutput) -> torch.Tensor:
        return outputs["compression_loss"]

    def own_memories(self) -> CompressedCount:
        zeros = self.config.initial_memory == "zeros"
        return CompressedCount(CounterMemory(self.config.compressed_mem_len if zeros else 0))

    def num_distances(self, num_keys: int) -> int:
        """Compressed vectors lie behind the window."""
        window = self.config.mem_len if self.config.same_length else num_keys
        return max(num_keys, window + self.config.compressed_mem_len)

    def segment_context(
        self, hidden_states: torch.Tensor, segment: SegmentContext, memory: ModelMemory
    ) -> CompressiveContext:
        in_one_piece = (
            not self.training and relative_backend(self.config._attn_implementation, hidden_states) is not None
        )
        plan = plan_compression(
            self.config,
            memory.segment,
            memory.num_before,
            memory.layers[0].compressed.num_seen,
            memory.own.num_compressed,
            in_one_piece,
        )
        for layer in memory.layers:
            layer.compressed.key_mask, layer.compressed.packing = plan.key_mask, plan.packing
        return CompressiveContext(**vars(segment), plan=plan)

    def output_of_layers(
        self, hidden_states: torch.Tensor, auxiliary_loss: torch.Tensor | None
    ) -> CompressiveTransformerModelOutput:
        return CompressiveTransformerModelOutput(last_hidden_state=hidden_states, compression_loss=auxiliary_loss)


@auto_docstring(
    custom_intro="""
    The Compressive Transformer with a language modeling head. In training mode its loss has the attention-reconstruction
    loss, from which the compression learns; in evaluation it is nats per token alone.
    """
)
class CompressiveTransformerForCausalLM(CompressiveTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = CompressiveTransformerModel
    output_class = CompressiveTransformerHeadOutput


@auto_docstring(custom_intro="The Compressive Transformer with a classification head on the last real token.")
class CompressiveTransformerForSequenceClassification(
    CompressiveTransformerPreTrainedModel, MemoryForSequenceClassification
):
    model_class = CompressiveTransformerModel
    output_class = CompressiveTransformerHeadOutput


@auto_docstring(custom_intro="The Compressive Transformer with a classification head on every token.")
class CompressiveTransformerForTokenClassification(
    CompressiveTransformerPreTrainedModel, MemoryForTokenClassification
):
    model_class = CompressiveTransformerModel
    output_class = CompressiveTransformerHeadOutput


__all__ = [
    "CompressiveTransformerForCausalLM",
    "CompressiveTransformerForSequenceClassification",
    "CompressiveTransformerForTokenClassification",
    "CompressiveTransformerModel",
    "CompressiveTransformerPreTrainedModel",
]
