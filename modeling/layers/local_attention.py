"""The local attention of Google's meliad, on which Block-Recurrent (https://arxiv.org/abs/2203.07852) and Memorizing
Transformers (https://arxiv.org/abs/2203.08913) are built: queries and keys of length one, and T5's position bias."""

import math

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_local_attention import LocalAttentionConfig
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.layers.transformer_layer import MemoryLayer, SublayerRMSNorm
from transformers_xl.modeling.memory.memory_cache import Tensors
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.ops.relative_attention import relative_shift


# B batch, T segment length, K = memory + T, H heads, D head dim
class HeadScale(nn.Module):
    """A learned scale per head, initialised to 1, whose absolute value multiplies `(..., H, length, width)`."""

    def __init__(self, config: LocalAttentionConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_attention_heads))

    def init_weights(self, config: LocalAttentionConfig) -> None:
        init.ones_(self.weight)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states * self.weight.abs().to(states.dtype)[:, None, None]


class CosineAttention(MemoryAttention):
    """Attention by the cosine of query and key: Henry et al., 2020, https://arxiv.org/abs/2010.04245.

    score[i, j] = |s| (q_i . k_j) / (|q_i| |k_j|)        s: a number per head
    """

    def __init__(self, config: LocalAttentionConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.scaling = 1.0
        self.attention_scale = HeadScale(config)

    def queries(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.attention_scale(unit_vectors(super().queries(hidden_states)))

    def project(self, hidden_states: torch.Tensor) -> Tensors:
        key, value = super().project(hidden_states)
        return unit_vectors(key), value


class LocalAttention(CosineAttention):
    """Cosine attention with T5's learned bias of the distance, which is scaled too: Raffel et al., 2019,
    https://arxiv.org/abs/1910.10683, section 2.1.

        score[i, j] = |s| (cos(q_i, k_j) + b[bucket(i - j)])

    With `attend_to_self=False` a token does not see itself.
    """

    def __init__(self, config: LocalAttentionConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.num_buckets = config.relative_attention_num_buckets
        self.max_distance = config.relative_attention_max_distance
        self.attend_to_self = config.attend_to_self
        self.relative_attention_bias = nn.Embedding(self.num_buckets, config.num_attention_heads)

    def score_terms(
        self, query: torch.Tensor, num_keys: int, context: LayerContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        distance = torch.arange(num_keys - 1, -2, -1, device=query.device)  # -1 is never seen
        bias = self.relative_attention_bias(distance_buckets(distance, self.num_buckets, self.max_distance))
        bias = self.attention_scale(bias.T[:, None]).to(query.dtype)
        if not self.attend_to_self:
            bias = bias.masked_fill(distance == 0, -torch.inf)
        return query, relative_shift(bias.expand(-1, query.shape[-2], -1))[None]


class LocalLayer(MemoryLayer):
    """Local attention and a feed-forward, each after an RMS norm. The window slides."""

    attention_class: type[MemoryAttention] = LocalAttention
    norm_class = SublayerRMSNorm


def unit_vectors(states: torch.Tensor) -> torch.Tensor:
    """`states` `(..., D)` divided by their lengths; zeros stay zeros."""
    precise = states.to(torch.promote_types(states.dtype, torch.float32))  # float16 holds no square above 65504
    return (precise * (precise.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).to(states.dtype)


def distance_buckets(distance: torch.Tensor, num_buckets: int, max_distance: int) -> torch.Tensor:
    """The bucket of each `distance` (integers). The first half of the buckets hold one distance each; the others divide the
    rest up to `max_distance` evenly on a logarithmic scale. Negative distances are in bucket 0."""
    exact, distance = num_buckets // 2, distance.clamp(min=0)
    share = (distance.clamp(min=1) / exact).log() / math.log(max_distance / exact)
    far = exact + (share * (num_buckets - exact)).long()
    return torch.where(distance < exact, distance, far.clamp(max=num_buckets - 1))


__all__ = ["CosineAttention", "HeadScale", "LocalAttention", "LocalLayer", "unit_vectors"]
