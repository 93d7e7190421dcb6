"""Embeddings that are narrower for rare words: Baevski & Auli, 2019, https://arxiv.org/abs/1809.10853, section 3.

Ids are sorted by frequency and cut into clusters at `config.cutoffs`. The words of cluster i have vectors of width
`embedding_size / div_val^i`, which a projection brings to the width of the model.
"""

import math
from collections.abc import Callable
from typing import TypeGuard, cast

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_adaptive_softmax import AdaptiveSoftmaxConfig
from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.embedding import ScaledEmbedding


class Projection(nn.Module):
    """`weight` `(hidden_size, width)`: from the width of a cluster up to that of the model, and back down when tied."""

    def __init__(self, width: int, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size, width))

    def init_weights(self, config: AdaptiveSoftmaxConfig) -> None:
        init.normal_(self.weight, std=config.proj_initializer_range)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(embeddings, self.weight)

    def down(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(hidden_states, self.weight.mT)


class TiedTable(nn.Module):
    """The vectors of a cluster in a model with tied words, whose `weight` `(words, width)` the output layer has too.

    It is no `nn.Embedding`: what merges adapters into such tables would change the output layer too.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None):
        super().__init__()
        self.padding_idx = padding_idx
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim))

    def init_weights(self, config: MemoryConfig) -> None:
        own = config.embedding_initializer_range
        init.normal_(self.weight, mean=0.0, std=config.initializer_range if own is None else own)
        if self.padding_idx is not None and not getattr(self.weight, "_is_hf_initialized", False):
            init.zeros_(self.weight[self.padding_idx])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(input_ids, self.weight, self.padding_idx)

    def resize(self, resized: Callable[..., nn.Embedding], size: int, mean_resizing: bool) -> "TiedTable":
        """Itself, with the weight that transformers' `resized` makes of an embedding that has its own."""
        table = nn.Embedding(self.weight.shape[0], self.weight.shape[1], device="meta")
        table.weight = self.weight
        self.weight = cast(nn.Parameter, resized(table, size, mean_resizing=mean_resizing).weight)
        return self


class NoProjection(nn.Identity):
    """In the place of a projection, where a cluster is as wide as the model."""

    def down(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states


def cluster_projections(config: AdaptiveSoftmaxConfig) -> nn.ModuleList:
    """One for each cluster; none where no cluster needs one."""
    if not config.has_projections:
        return nn.ModuleList()
    return nn.ModuleList(
        Projection(width, config.token_width) if projected else NoProjection()
        for (_, width), projected in zip(config.clusters, config.projected_clusters, strict=True)
    )


class AdaptiveEmbedding(nn.Module):
    """Ids `(batch, length)` to vectors `(batch, length, hidden_size)`, multiplied by the root of their width, unless
    `config.scale_embedding` is False.

    A table for every cluster. Clusters of the same width (`div_val` 1) share one projection, and need none where they are
    as wide as the model.
    """

    def __init__(self, config: AdaptiveSoftmaxConfig):
        super().__init__()
        self.embedding_dim, self.starts = config.token_width, [0, *config.cutoffs]
        self.embed_scale = math.sqrt(config.token_width) if config.scale_embedding else 1.0
        self.tables = nn.ModuleList()
        table = TiedTable if config.tie_word_embeddings else nn.Embedding
        for start, (size, width) in zip(self.starts, config.clusters, strict=True):
            pad = None if config.pad_token_id is None else config.pad_token_id - start
            self.tables.append(table(size, width, pad if pad is not None and 0 <= pad < size else None))
        projections = cluster_projections(config)
        self.projections = projections[:1] if config.div_val == 1 else projections

    @property
    def weights(self) -> list[torch.Tensor]:
        """The vectors of each cluster, `(words, width)`."""
        return [cast(torch.Tensor, table.weight) for table in self.tables]

    @property
    def num_embeddings(self) -> int:
        return sum(len(weight) for weight in self.weights)

    def resize_last_cluster(self, resized: Callable[..., nn.Embedding], size: int, mean_resizing: bool) -> None:
        """Let the vocabulary have `size` words, by transformers' `resized`, which resizes embeddings.

        Raises:
            ValueError: nothing would be left of the last cluster.
        """
        last, start = self.tables[-1], self.starts[-1]
        if size <= start:
            raise ValueError(
                f"`new_num_tokens`={size} leaves nothing of the last cluster, which begins at {start}: keep more words, or "
                "build a model with other `cutoffs`."
            )
        if isinstance(last, TiedTable):
            self.tables[-1] = last.resize(resized, size - start, mean_resizing)
        else:
            self.tables[-1] = resized(last, size - start, mean_resizing=mean_resizing)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        embeddings = input_ids.new_zeros((), dtype=self.weights[0].dtype)
        for index, (start, table, weight) in enumerate(zip(self.starts, self.tables, self.weights, strict=True)):
            # every cluster looks at every id, so that no shape depends on the ids: a graph is compiled once
            rows = table((input_ids - start).clamp(0, len(weight) - 1))
            if self.projections:
                rows = self.projections[min(index, len(self.projections) - 1)](rows)
            embeddings = torch.where((input_ids >= start)[..., None], rows, embeddings)
        return embeddings * self.embed_scale


def uses_adaptive_softmax(config: MemoryConfig) -> TypeGuard[AdaptiveSoftmaxConfig]:
    """Whether the model has clusters of words, or words that are narrower than the model."""
    # not by its class: of a local folder transformers loads the file of the config twice, for the config and for the model
    return getattr(config, "is_adaptive", False)


def token_embedding(config: MemoryConfig) -> nn.Module:
    """What turns ids into vectors: a table, or one for each cluster."""
    return AdaptiveEmbedding(config) if uses_adaptive_softmax(config) else ScaledEmbedding(config)
