"""Memorizing Transformer: Wu et al., 2022, https://arxiv.org/abs/2203.08913. Code: google-research/meliad.

Some layers remember the keys and values of very many tokens. Each head looks up the few that are nearest to its query, and
mixes what it finds with local attention.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_memorizing_transformer import MemorizingTransformerConfig
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.local_attention import LocalAttention, LocalLayer
from transformers_xl.modeling.layers.retrieval_attention import LookupContext, MemorizingMemory, RetrievalAttention
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.layers.transformer_layer import LayerOutput
from transformers_xl.modeling.memory.counter_memory import CounterMemory
from transformers_xl.modeling.memory.key_value_memory import KeyValueShape
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.memory.retrieval_memory import KeyCounts, KeySearch, RetrievalMemory
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel


class MemorizingTransformerLayer(LocalLayer):
    """A layer that remembers no keys: local attention and a feed-forward.

    Differs from the original: a token sees itself (not with `attend_to_self=False`), and a new row has an empty memory
    (zeros with `initial_memory="zeros"`). The feed-forward has biases.
    """


class RetrievalLayer(MemorizingTransformerLayer):
    """The same with attention to the nearest of the keys that the layer remembers. Section 3.

    Differs from the original: the search is exact; blocks are counted from the beginning of a text, so that results do not
    depend on how it is cut into segments; while there are fewer than `num_retrieved` keys, nothing stands for the others
    (zeros with `attend_to_empty=True`).
    """

    attention_class = RetrievalAttention
    key_search: Callable[[], KeySearch] = KeySearch  # how a cache finds keys: `cpu.key_index` has another way

    def memories(self) -> MemorizingMemory:
        config, (window,) = self.self_attn.config, super().memories()
        shape = KeyValueShape(*(config.num_attention_heads, config.head_dim) * 2)
        external_memory = RetrievalMemory(config.num_memory_keys, config.block_length, shape, self.key_search())
        return MemorizingMemory(window, external_memory)

    def forward(
        self, hidden_states: torch.Tensor, memory: MemorizingMemory, segment: LookupContext, **kwargs
    ) -> LayerOutput:
        return super().forward(hidden_states, memory, segment, external_memory=memory.external_memory, **kwargs)


@auto_docstring(custom_intro="Weights, loading and the promises of the Memorizing Transformer.")
class MemorizingTransformerPreTrainedModel(MemoryPreTrainedModel):
    config: MemorizingTransformerConfig
    _no_split_modules = ["MemorizingTransformerLayer", "RetrievalLayer"]
    _is_stateful = True
    _can_compile_fullgraph = False  # a static cache has no place for what is remembered
    _can_record_outputs = {**MemoryPreTrainedModel._can_record_outputs, "attentions": LocalAttention}


@auto_docstring(custom_intro="The Memorizing Transformer without a head.")
class MemorizingTransformerModel(MemorizingTransformerPreTrainedModel, MemoryModel):
    norm_class = nn.RMSNorm
    positions_class = None

    def build_layers(self, config: MemorizingTransformerConfig) -> nn.ModuleList:
        classes = [
            RetrievalLayer if config.remembers_keys(layer_idx) else MemorizingTransformerLayer
            for layer_idx in range(config.num_hidden_layers)
        ]
        return nn.ModuleList([layer_class(config, layer_idx) for layer_idx, layer_class in enumerate(classes)])

    def own_memories(self) -> KeyCounts:
        return KeyCounts(CounterMemory(), CounterMemory())

    def segment_context(
        self, hidden_states: torch.Tensor, segment: SegmentContext, memory: ModelMemory
    ) -> LookupContext:
        external_memory = memory.layers[min(self.config.memory_layers)].external_memory
        return LookupContext(**vars(segment), lookups=external_memory.plan(memory.segment, memory.own))


@auto_docstring(custom_intro="The Memorizing Transformer with a language modeling head.")
class MemorizingTransformerForCausalLM(MemorizingTransformerPreTrainedModel, MemoryForCausalLM):
    model_class = MemorizingTransformerModel


@auto_docstring(custom_intro="The Memorizing Transformer with a classification head on the last real token.")
class MemorizingTransformerForSequenceClassification(
    MemorizingTransformerPreTrainedModel, MemoryForSequenceClassification
):
    model_class = MemorizingTransformerModel


@auto_docstring(custom_intro="The Memorizing Transformer with a classification head on every token.")
class MemorizingTransformerForTokenClassification(MemorizingTransformerPreTrainedModel, MemoryForTokenClassification):
    model_class = MemorizingTransformerModel


__all__ = [
    "MemorizingTransformerForCausalLM",
    "MemorizingTransformerForSequenceClassification",
    "MemorizingTransformerForTokenClassification",
    "MemorizingTransformerModel",
    "MemorizingTransformerPreTrainedModel",
]
