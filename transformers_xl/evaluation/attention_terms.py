"""Where the attention of Transformer-XL comes from, term by term: Dai et al., 2019, appendix D, of equation (a) - (d).

    score[i, j] = q_i . k_j + q_i . r_{i-j} + u . k_j + v . r_{i-j}        (a), (b), (c), (d), over sqrt(head_dim)

For each term alone the softmax over what a token sees is taken, and averaged by distance, as the whole is for the atlas.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from transformers_xl.evaluation.attention_maps import AttentionAtlas, DistanceSums, attention_rows
from transformers_xl.evaluation.reading import read_in_segments
from transformers_xl.modeling.layers.attention import RelativeAttention, masked_scores
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.ops.columns import keep_last
from transformers_xl.modeling.ops.relative_attention import position_scores

TERMS = {
    "a": "(a) content: query . key",
    "b": "(b) position by content: query . distance",
    "c": "(c) content bias: u . key",
    "d": "(d) position bias: v . distance",
}


def attention_terms(
    model: PreTrainedModel,
    ids: np.ndarray | torch.Tensor,
    segment_length: int | None = None,
    skip: int = 0,
    progress: bool = False,
) -> dict[str, AttentionAtlas]:
    """An atlas of each of the four terms of relative attention, by the letters of `TERMS`.

    Args:
        model: a model of this package whose layers have Transformer-XL's relative attention, each its own.
        ids, segment_length, skip, progress: as for `attention_maps.attention_atlas`.

    Raises:
        ValueError: the model's attention has no such terms.
    """
    rows = attention_rows(model)
    # exactly this class: what derives from it sees other keys, or asks at some positions only
    has_terms = all(type(module) is RelativeAttention for module in rows.values())
    base: Any = model.base_model
    if not has_terms or any(layer.older for layer in base.new_memory(0, torch.empty(0)).layers):  # it reads these too
        raise ValueError(
            f"`model` is a {model.config.model_type!r}: its scores are not the four terms of Transformer-XL's relative "
            "attention over all that a token sees."
        )
    sums = {term: DistanceSums(list(rows), skip) for term in TERMS}
    with _tapped_terms(list(rows.values()), sums):
        for start, _ in read_in_segments(model, ids, segment_length, progress):
            for each in sums.values():
                each.start = start + (segment_length or model.config.segment_length)
    return {term: each.atlas() for term, each in sums.items()}


@contextmanager
def _tapped_terms(modules: list[nn.Module], sums: dict[str, DistanceSums]) -> Iterator[None]:
    def hook(row: int):
        def look(module: RelativeAttention, args: tuple, kwargs: dict, output: tuple) -> None:
            for term, weights in term_weights(module, *args, **kwargs):
                sums[term](row, weights[0])

        return look

    handles = [module.register_forward_hook(hook(row), with_kwargs=True) for row, module in enumerate(modules)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def term_weights(
    attention: RelativeAttention,
    hidden_states: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    context: LayerContext,
    **kwargs,
) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights that each term would give on its own, `(batch, heads, length, keys)`, one after the other; the arguments
    are those of the attention."""
    query = attention.queries(hidden_states) * attention.scaling
    positions, bias = attention.relative_terms(context)
    positions = keep_last(positions, key.shape[-2] + 1)
    u, v = ((each[:, None] * attention.scaling).expand_as(query) for each in (bias.content_bias, bias.position_bias))
    scores = {
        "a": lambda: query @ key.mT,
        "b": lambda: position_scores(query, positions),
        "c": lambda: u @ key.mT,
        "d": lambda: position_scores(v, positions),
    }
    for term, score in scores.items():
        yield term, masked_scores(score(), context.visible).softmax(-1)


__all__ = ["TERMS", "attention_terms", "term_weights"]
