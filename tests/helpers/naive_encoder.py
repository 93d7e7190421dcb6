"""The attentions of encoders by their papers' equations, one query and one key at a time, whatever comes before or after.

It takes the place of `attend`: everything around it is the model's own. It knows neither padding nor documents, and is
held against one text alone.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from transformers_xl.modeling.layers.attention import MemoryAttention, RelativeAttention
from transformers_xl.modeling.layers.complex_layers import ComplexAttention
from transformers_xl.modeling.layers.shaw_attention import ShawAttention


@contextmanager
def by_pairs() -> Iterator[None]:
    """All attentions are computed so."""
    with pytest.MonkeyPatch.context() as patch:
        for attention_class in (MemoryAttention, RelativeAttention):
            patch.setattr(attention_class, "attend", attend_by_pairs)
        yield


def attend_by_pairs(attention, query, key, value, context, **kwargs) -> tuple[torch.Tensor, None]:
    """`query`, `key`, `value` `(1, H, T, D)` of a whole text; the output as the attention's `merge_heads` takes it."""
    assert query.shape[:3] == key.shape[:3]
    assert len(query) == 1
    outputs = []
    for i, q in enumerate(query[0].unbind(1)):
        scores = [score(attention, q, k, i - j, context) for j, k in enumerate(key[0].unbind(1))]
        weights = torch.stack(scores).softmax(0)
        seen = [seen_value(attention, v, i - j) for j, v in enumerate(value[0].unbind(1))]
        outputs.append(sum(weight[:, None] * each for weight, each in zip(weights, seen, strict=True)))
    states = torch.stack(outputs)[None]  # (1, T, H, D)
    if isinstance(attention, ComplexAttention):  # each part with its heads side by side
        states = torch.stack([part.flatten(-2) for part in states.chunk(2, dim=-1)], dim=2)
    return states, None


def score(attention, q: torch.Tensor, k: torch.Tensor, distance: int, context) -> torch.Tensor:
    """Of one query and one key, each `(H, D)`; `distance` is negative where the key comes after the query."""
    width = q.shape[-1]
    if isinstance(attention, ComplexAttention):
        q, k = (torch.complex(*each.chunk(2, dim=-1)) for each in (q, k))
        return (q * k.conj()).sum(-1).abs() / math.sqrt(width // 2)
    if isinstance(attention, ShawAttention):
        return (q * (k + relative_vector(attention, attention.key_table, distance))).sum(-1) / math.sqrt(width)
    if not isinstance(attention, RelativeAttention):
        return (q * k).sum(-1) / math.sqrt(width)
    u, v = context.bias if attention.bias is None else attention.bias()
    clamp = attention.config.clamp_len
    distance = max(-clamp, min(clamp, distance)) if clamp > 0 else distance
    size = attention.config.hidden_size
    angles = [distance * 10_000 ** (-2 * m / size) for m in range(size // 2)]
    sinusoid = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=q.dtype)
    r = attention.r_proj(sinusoid).view_as(q)
    return ((q + u) * k + (q + v) * r).sum(-1) / math.sqrt(width)


def seen_value(attention, v: torch.Tensor, distance: int) -> torch.Tensor:
    """What a query sees of the value `(H, D)` of a key at this distance."""
    if not isinstance(attention, ShawAttention):
        return v
    return v + relative_vector(attention, attention.value_table, distance)


def relative_vector(attention: ShawAttention, table: torch.Tensor, distance: int) -> torch.Tensor:
    """That of key minus query, clipped to -k..k."""
    k = attention.config.max_relative_distance
    return table[:, max(-k, min(k, -distance)) + k]


__all__ = ["by_pairs"]
