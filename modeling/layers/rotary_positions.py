"""Rotary positions: Su et al., 2021, https://arxiv.org/abs/2104.09864. What a query scores depends on distances alone."""

import math
from functools import lru_cache
from typing import NamedTuple, Self

import torch

from transformers_xl.modeling.ops.columns import is_symbolic

TURN = 2**32  # parts of a turn in which angles are counted


# B batch, T segment length, H heads, D head dim
class Rotation(NamedTuple):
    """How the features of each token turn: feature m and D / 2 + m are a pair. `cos` and `sin` are `(B or 1, 1, T, D)`;
    `sin` has the opposite sign for the first of a pair."""

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, places: torch.Tensor, head_dim: int, base: float, dtype: torch.dtype) -> Self:
        """That of tokens at these `places` `(B or 1, T)` of their texts, for features of this type.

        Angles are whole parts of a turn and wrap around: two tokens are turned by the angle of their distance, exactly,
        however far they stand in their text.
        """
        size = (head_dim, float(base), places.device)
        steps = steps_per_position(*size) if is_symbolic(places) else kept_steps(*size)
        parts = places[:, None, :, None] * steps & TURN - 1
        angles = parts.to(torch.promote_types(dtype, torch.float32)) * (2 * math.pi / TURN)
        return cls(angles.cos(), angles.sin())

    def turn(self, features: torch.Tensor) -> torch.Tensor:
        """`features` `(B, H, T, D)`, turned."""
        swapped = features.roll(features.shape[-1] // 2, dims=-1)
        return torch.addcmul(features * self.cos, swapped, self.sin).to(features.dtype)


def steps_per_position(head_dim: int, base: float, device: torch.device) -> torch.Tensor:
    """Parts of a turn for each position, `(head_dim,)` integers; negative for the first feature of each pair."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim
    steps = (base**-exponents * (TURN / (2 * math.pi))).round().long()
    return torch.cat([-steps, steps]).to(device)


kept_steps = lru_cache(maxsize=16)(steps_per_position)  # asked for in every call


__all__ = ["Rotation", "steps_per_position"]
