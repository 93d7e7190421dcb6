"""Memorizing Transformer: Wu et al., 2022, https://arxiv.org/abs/2203.08913. Code: google-research/meliad.

Some layers remember the keys and values of very many tokens. Each head looks up the few that are nearest to its query, and
mixes what it finds with local attention.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.utils import auto_docstring

from transformers_xl.configuration.configuration_memorizing_transformer import MemorizingTransformerConfig
from transformers_xl.modeling.actor_critic import MemoryForActorCritic
from transformers_xl.modeling.heads import (
    MemoryForCausalLM,
    MemoryForSequenceClassification,
    MemoryForTokenClassification,
)
from transformers_xl.modeling.layers.local_attention import LocalAttention, LocalLayer
from transformers_xl.modeling.layers.retrieval_attention import KeySearch, Lookups, RetrievalAttention
from transformers_xl.modeling.layers.transformer_layer import LayerOutput
from transformers_xl.modeling.memory.memory_cache import LayerCache, Tensors
from transformers_xl.modeling.memory.memory_value import LayerMemory, Memory
from transformers_xl.modeling.memory.segment import LayerContext, Segment
from transformers_xl.modeling.modeling_memory import MemoryModel, MemoryPreTrainedModel


class MemorizingTransformerLayer(LocalLayer):
    """A layer without retrieval: local attention and a feed-forward.

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
    key_search: Callable[[], KeySearch] = KeySearch  # how a cache finds keys: `layers.key_index` has another way

    def new_memory(self, batch: int, num_columns: int, like: torch.Tensor) -> LayerMemory:
        """`older` is keys and values of very many tokens, `(batch, heads, tokens, head_dim)`, those of the window too."""
        none = like.new_zeros(batch, self.self_attn.num_heads, 0, self.self_attn.head_dim)
        return super().new_memory(batch, num_columns, like)._replace(older=(none, none))

    def forward(self, hidden_states: torch.Tensor, past: LayerMemory, context: LayerContext, **kwargs) -> LayerOutput:
        normed, lookups, layer_cache = self.attention_input(hidden_states), context.plan, context.layer_cache
        new = self.self_attn.project(normed)
        columns, kept = context.extend(past.columns, hidden_states, new, self.project)
        search = None if layer_cache is None else self.search_of(layer_cache)
        older_cache = None if layer_cache is None else layer_cache.older_cache()
        beside = context._replace(segment=lookups.segment, keep=lookups.keep, layer_cache=older_cache)
        new = tuple(each.detach() for each in new)
        older, kept_older = beside.extend(past.older, hidden_states, new, self.project)
        if search is not None:
            search.begin(past.older)
            kwargs["search"] = search
        attn_output, _ = self.self_attn(normed, *columns, context, older=older, **kwargs)
        if search is not None:
            search.finish(kept_older, lookups.segment.end)
        hidden_states = self.after_attention(hidden_states, self.dropout(attn_output), context)
        return LayerOutput(hidden_states, LayerMemory(kept, older=kept_older))

    def search_of(self, layer_cache: LayerCache) -> KeySearch:
        """How a cache finds keys."""
        if layer_cache.derived is None:
            layer_cache.derived = self.key_search()
        return layer_cache.derived


@auto_docstring(custom_intro="Base class for the Memorizing Transformer: initialization and loading.")
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
            RetrievalLayer if config.has_retrieval(layer_idx) else MemorizingTransformerLayer
            for layer_idx in range(config.num_hidden_layers)
        ]
        return nn.ModuleList([layer_class(config, layer_idx) for layer_idx, layer_class in enumerate(classes)])

    def plan(self, segment: Segment, memory: Memory) -> tuple[Segment, Any, Tensors]:
        keys, _ = memory.layers[min(self.config.memory_layers)].older
        return segment, Lookups.of(segment, keys.shape[-2], self.config), ()


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


@auto_docstring(custom_intro="The Memorizing Transformer as an agent: a policy and a value at every step.")
class MemorizingTransformerForActorCritic(MemorizingTransformerPreTrainedModel, MemoryForActorCritic):
    model_class = MemorizingTransformerModel


__all__ = [
    "MemorizingTransformerForActorCritic",
    "MemorizingTransformerForCausalLM",
    "MemorizingTransformerForSequenceClassification",
    "MemorizingTransformerForTokenClassification",
    "MemorizingTransformerModel",
    "MemorizingTransformerPreTrainedModel",
]
