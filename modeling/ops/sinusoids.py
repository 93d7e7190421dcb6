"""Sinusoids of positions: Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.5."""

import torch


def sinusoids(positions: torch.Tensor, hidden_size: int, dtype: torch.dtype, base: float = 10_000.0) -> torch.Tensor:
    """Integers `(...)` to `(..., hidden_size)` in `dtype`. Sines come first; in the paper they alternate with cosines.

    [sin(p f_0), .., sin(p f_n), cos(p f_0), .., cos(p f_n)]     f_m = base^(-2m / hidden_size)
    """
    precision = torch.promote_types(dtype, torch.float32)  # float64 for float64 models, float32 below
    steps = torch.arange(0, hidden_size, 2, device=positions.device, dtype=precision)
    angles = positions[..., None] * base ** (-steps / hidden_size)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :hidden_size].to(dtype)


__all__ = ["sinusoids"]
