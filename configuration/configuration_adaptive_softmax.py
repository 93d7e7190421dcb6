"""The fields of models that predict words: Grave et al., 2017, https://arxiv.org/abs/1609.04309 and Baevski & Auli, 2019,
https://arxiv.org/abs/1809.10853."""

import itertools
from typing import Any

from huggingface_hub.dataclasses import strict

from transformers_xl.configuration.configuration_memory import MemoryConfig


@strict
class AdaptiveSoftmaxConfig(MemoryConfig):
    r"""
    Base configuration of the models with a language modeling head, whose input and softmax may be adaptive. Further
    fields are those of [`MemoryConfig`].

    Args:
        cutoffs (`list[int]`, *optional*, defaults to `[]`):
            Adaptive input and softmax (https://arxiv.org/abs/1809.10853, https://arxiv.org/abs/1609.04309): the first id of
            each cluster of rarer words; ids must be sorted by frequency. Rarer clusters cost less. Empty: a plain softmax.
        div_val (`int`, *optional*, defaults to 1):
            Cluster i has vectors of width `embedding_size // div_val**i`.
        embedding_size (`int`, *optional*):
            Width of the vectors of the most frequent words (`d_embed`); a projection maps them to the width of the model.
            `hidden_size` when not given.
        tie_projs (`bool` or `list[bool]`, *optional*, defaults to `True`):
            Whether the projections of the head are those of the embedding, for all clusters or for each.
        proj_same_dim (`bool`, *optional*, defaults to `True`):
            Whether, with `div_val` above 1, a cluster as wide as the model has a projection too.
        proj_initializer_range (`float`, *optional*, defaults to 0.01):
            Standard deviation of the normal distribution from which the projections of an adaptive input and softmax are
            initialized.
    """

    attribute_map = MemoryConfig.attribute_map | {
        "d_embed": "embedding_size",
        "proj_init_std": "proj_initializer_range",
    }

    cutoffs: list[int] | tuple[int, ...] = ()
    div_val: int = 1
    embedding_size: int | None = None
    tie_projs: bool | list[bool] = True
    proj_same_dim: bool = True
    proj_initializer_range: float | int = 0.01

    def __post_init__(self, **kwargs: Any):
        self.cutoffs = list(self.cutoffs)
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if self.proj_initializer_range < 0:
            raise ValueError(f"`proj_initializer_range`={self.proj_initializer_range} must not be negative.")
        ends = [0, *self.cutoffs, self.vocab_size]
        if any(end <= start for start, end in itertools.pairwise(ends)):
            raise ValueError(
                f"`cutoffs`={self.cutoffs} must rise from above 0 to below `vocab_size`={self.vocab_size}: leave out 0 and "
                "the size itself."
            )
        if self.div_val < 1:
            raise ValueError(f"`div_val`={self.div_val} must be at least 1, which gives all clusters the same width.")
        if self.embedding_size is not None and self.embedding_size < 1:
            raise ValueError(f"`embedding_size`={self.embedding_size} must be at least 1.")
        if self.clusters[-1][1] < 1:
            raise ValueError(
                f"`div_val`={self.div_val} leaves words of the last of {len(self.clusters)} clusters a width of 0: take a "
                "smaller one, or a larger `embedding_size`."
            )
        if isinstance(self.tie_projs, list) and len(self.tie_projs) != len(self.clusters):
            raise ValueError(
                f"`tie_projs`={self.tie_projs} must have one value for each of the {len(self.clusters)} clusters."
            )

    @property
    def clusters(self) -> list[tuple[int, int]]:
        """Number of words of each cluster, and the width of their vectors."""
        ends = [0, *self.cutoffs, self.vocab_size]
        width = self.embedding_size or self.token_width
        return [(end - start, width // self.div_val**i) for i, (start, end) in enumerate(itertools.pairwise(ends))]

    @property
    def has_projections(self) -> bool:
        """Whether vectors of words are brought to the width of the model by a projection."""
        return self.div_val > 1 or self.embedding_size not in (None, self.token_width)

    @property
    def projected_clusters(self) -> list[bool]:
        """Whether each cluster has a projection."""
        all_widths = self.has_projections and self.proj_same_dim
        return [all_widths or width != self.token_width for _, width in self.clusters]

    @property
    def is_adaptive(self) -> bool:
        """Whether words come in clusters, or through a projection."""
        return bool(self.cutoffs) or self.has_projections


__all__ = ["AdaptiveSoftmaxConfig"]
