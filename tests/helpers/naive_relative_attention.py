"""Relative attention by its definition, query by query, and what its backends are called with to be held against it."""

import torch
from tiny import EXACT, FLOAT32

# batch, heads, segment, memory, head width
SHAPES = [(1, 1, 1, 0, 1), (2, 3, 1, 6, 4), (3, 2, 5, 0, 4), (2, 3, 5, 2, 4), (2, 1, 4, 9, 3), (4, 2, 7, 7, 2)]
TOLERANCE = {
    torch.float64: EXACT,
    torch.float32: FLOAT32,
    torch.float16: {"atol": 2e-2, "rtol": 2e-2},
    torch.bfloat16: {"atol": 1e-1, "rtol": 1e-1},
}


def by_definition(query, key, value, positions, content_bias, position_bias, seen, distance, scaling) -> torch.Tensor:
    """One query at a time; `seen` (B, T, K) bool, `distance` (B or 1, T, K)."""
    batch, _, length, _ = query.shape
    distance = distance.expand(batch, -1, -1)
    rows = []
    for row in range(batch):
        outputs = []
        for i in range(length):
            keys = seen[row, i].nonzero().flatten()
            if not len(keys):
                outputs.append(torch.zeros_like(value[row, :, 0]))
                continue
            content = ((query[row, :, i] + content_bias)[:, None] * key[row][:, keys]).sum(-1)
            relative = positions[:, positions.shape[1] - 2 - distance[row, i, keys]]
            position = ((query[row, :, i] + position_bias)[:, None] * relative).sum(-1)
            weights = ((content + position) * scaling).softmax(dim=-1)
            outputs.append((weights[..., None] * value[row][:, keys]).sum(1))
        rows.append(torch.stack(outputs))
    return torch.stack(rows)


def arguments(shape: tuple, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    batch, heads, length, memory, width = shape
    keys = (batch, heads, memory + length, width)
    sizes = [(batch, heads, length, width), keys, keys, (heads, memory + length + 1, width), *[(heads, width)] * 2]
    return [torch.randn(size, dtype=dtype, device=device).requires_grad_() for size in sizes]


def by_column(length: int, num_keys: int) -> torch.Tensor:
    """Distances of the last queries and their keys, `(1, T, K)`."""
    return (torch.arange(num_keys - length, num_keys)[:, None] - torch.arange(num_keys))[None]


def by_window(length: int, num_keys: int, window: int | None) -> torch.Tensor:
    distance = by_column(length, num_keys)[0]
    return (distance >= 0) & (distance < (window or num_keys))
