"""Relative positions: Dai et al., 2019, https://arxiv.org/abs/1901.02860, section 3.3."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_relative_attention import RelativeAttentionConfig
from transformers_xl.modeling.ops.sinusoids import sinusoids


class Biases(NamedTuple):
    """u and v, each `(heads, head_dim)`, as layers get them."""

    content_bias: torch.Tensor
    position_bias: torch.Tensor


class RelativeBias(nn.Module):
    """The two biases that replace the query's absolute position.

    `content_bias` is u (`r_w_bias` in the original code), `position_bias` is v (`r_r_bias`), each `(heads, head_dim)`.
    """

    def __init__(self, config: RelativeAttentionConfig):
        super().__init__()
        self.content_bias = nn.Parameter(torch.empty(config.num_attention_heads, config.head_dim))
        self.position_bias = nn.Parameter(torch.empty(config.num_attention_heads, config.head_dim))

    def forward(self) -> Biases:
        # read in a call, not as attributes: weights that were offloaded are there during calls only
        return Biases(self.content_bias, self.position_bias)

    def init_weights(self, config: RelativeAttentionConfig) -> None:
        init.normal_(self.content_bias, mean=0.0, std=config.initializer_range)
        init.normal_(self.position_bias, mean=0.0, std=config.initializer_range)


class RelativePositions(nn.Module):
    """Sinusoids of relative distances, clamped to at most `clamp_len`, and the biases u, v where all layers share them.

    The table is computed when it is first asked for: a buffer would not survive loading through the meta device.
    """

    def __init__(self, config: RelativeAttentionConfig):
        super().__init__()
        self.config = config  # read at every call: a longer memory after training may want distances clamped
        self.bias = RelativeBias(config) if config.share_relative_bias else None

    def forward(self, num_keys: int, like: torch.Tensor, nearest: int = -1) -> torch.Tensor:
        """R of the distances num_keys-1 .. nearest, of shape `(num_keys - nearest, hidden_size)`, in dtype and device of
        `like`.

        The last row is never seen: it makes the relative shift a view, see `ops.relative_attention`.
        """
        size = (num_keys, nearest, self.config.hidden_size, self.config.clamp_len, like.dtype, like.device)
        if torch.compiler.is_compiling():
            return distance_table(*size)
        # most calls want the table of the call before; a tensor made in inference mode is of no use outside of it
        return kept_distance_table(*size, inference=torch.is_inference_mode_enabled())


def distance_table(
    num_keys: int, nearest: int, hidden_size: int, clamp_len: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The sinusoids `(num_keys - nearest, hidden_size)` of the distances num_keys-1 .. nearest."""
    distances = torch.arange(num_keys - 1, nearest - 1, -1, device=device)
    return sinusoids(distances.clamp(-clamp_len, clamp_len) if clamp_len > 0 else distances, hidden_size, dtype)


@lru_cache(maxsize=4)
def kept_distance_table(*size, inference: bool) -> torch.Tensor:
    """The same, kept for calls to come."""
    return distance_table(*size)
