"""Arithmetic of relative attention: Dai et al., 2019, https://arxiv.org/abs/1901.02860, section 3.3 and appendix B.

    score[i, j] = ((q_i + u) . k_j + (q_i + v) . r_{i-j}) / sqrt(d)

The first term is ordinary attention with queries `q + u`. The second one is computed here, for all keys at once. A faster
form of both registers itself here: a backend takes the arguments of `wide_attention.wide_attention` and returns what it
returns, values and gradients. The tests in `tests/modeling/test_backends.py` run over all of them; those of a backend for
CUDA are marked `gpu`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from transformers_xl.modeling.ops.columns import computing_dtype


class Biases(NamedTuple):
    """u and v, each `(heads, head_dim)`, as layers get them."""

    content_bias: torch.Tensor
    position_bias: torch.Tensor


# B batch, T segment, S far columns, H heads, D head dim
class FarColumns(NamedTuple):
    """Columns that are no distances: what a memory holds beside the window.

    Args:
        key, value: `(B, H, S, D)`.
        visible: `(B or 1, 1, T, S)` bool, which of them each query sees; None: all.
        distance: `(B or 1, T, S)` integers, how far each column lies from each query; None: they lie directly before the
            window of one token, which sees them all.
        min_distance: no column that is seen lies nearer than this `distance`.
    """

    key: torch.Tensor
    value: torch.Tensor
    visible: torch.Tensor | None = None
    distance: torch.Tensor | None = None
    min_distance: int = 0


def sinusoids(positions: torch.Tensor, hidden_size: int, dtype: torch.dtype, base: float = 10_000.0) -> torch.Tensor:
    """Integers `(...)` to `(..., hidden_size)` in `dtype`. Sines come first; in the paper (Vaswani et
    al., 2017, https://arxiv.org/abs/1706.03762, section 3.5) they alternate with cosines.

    [sin(p f_0), .., sin(p f_n), cos(p f_0), .., cos(p f_n)]     f_m = base^(-2m / hidden_size)
    """
    precision = torch.promote_types(dtype, torch.float32)  # float64 for float64 models, float32 below
    steps = torch.arange(0, hidden_size, 2, device=positions.device, dtype=precision)
    angles = positions[..., None] * base ** (-steps / hidden_size)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :hidden_size].to(dtype)


def relative_shift(scores: torch.Tensor) -> torch.Tensor:
    """Turn scores by distance into scores by key, as a view.

    Args:
        scores (`torch.Tensor` of shape `(..., T, N + 1)`): column c is the distance K-1-c. With N = K the last column,
            distance -1, is never read where a key is visible. The last two dimensions are contiguous.

    Returns:
        `torch.Tensor` of shape `(..., T, N)`: row t, column j is the distance (K-T+t) - j of query t and key j, to the
        least one of the table. Columns of less, and from K on, hold values of other rows.
    """
    length, width = scores.shape[-2], scores.shape[-1] - 1
    # Row t wants the columns from T-1-t on. In the flat buffer they begin at t*(N+1) + T-1-t = t*N + T-1: equal strides.
    flat = scores.flatten(-2)
    return flat.narrow(-1, length - 1, length * width).unflatten(-1, (length, width))


def position_scores(query: torch.Tensor, positions: torch.Tensor, num_keys: int | None = None) -> torch.Tensor:
    """The position term `query_i . r_{i-j}` for every query and key, where the queries are the last T of K positions.

    Args:
        query (`torch.Tensor` of shape `(B, H, T, D)`): `(q + v)`, scaled.
        positions (`torch.Tensor` of shape `(H, N + 1, D)`): projected positions of the distances K-1 .. K-1-N.
        num_keys: K; N where it is not given: no query sees a key after it.

    Returns:
        `torch.Tensor` of shape `(B, H, T, K)`.
    """
    # one matrix product per head over batch x length: the positions are not repeated over the batch
    scores = relative_shift(torch.einsum("bhtd,hkd->bhtk", query, positions))
    return scores if num_keys is None else scores[..., :num_keys]


def position_scores_at(query: torch.Tensor, positions: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """The position term where columns are not distances: `query_i . r` of the `distance` of every query and key.

    Args:
        query (`torch.Tensor` of shape `(B, H, T, D)`): `(q + v)`, scaled.
        positions (`torch.Tensor` of shape `(H, N, D)`): projected positions of the distances N-2 .. -1.
        distance (`torch.Tensor` of shape `(B or 1, T, S)`): integers; what lies outside of the table must not be visible.

    Returns:
        `torch.Tensor` of shape `(B, H, T, S)`.
    """
    by_distance = torch.einsum("bhtd,hnd->bhtn", query, positions)
    index = table_rows(distance, positions.shape[1])
    return by_distance.gather(-1, index.expand(*by_distance.shape[:3], -1))


def table_rows(distance: torch.Tensor, num_positions: int) -> torch.Tensor:
    """The row `(B or 1, 1, T, S)` of each `distance` `(B or 1, T, S)` in a table of the distances num_positions-2 .. -1."""
    return (num_positions - 2 - distance).clamp(0, num_positions - 1)[:, None]


def attention_weights(
    query: torch.Tensor, key: torch.Tensor, attention_mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """The weights `(B, H, T, K)` of queries and keys, by `masked_softmax`."""
    return masked_softmax(query @ key.transpose(-1, -2) * scaling, attention_mask)


def masked_softmax(scores: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """The weights of `scores` `(B, H, T, K)` over their last dimension, in their type.

    `attention_mask` is bool (True: visible) or added to the scores. A query that sees nothing has zero weights.
    """
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, -torch.inf)
    elif attention_mask is not None:
        scores = scores + attention_mask
    # softmax over nothing is NaN, for the gradient too: such rows go through it as zeros and come out as zeros
    sees_nothing = (scores == -torch.inf).all(dim=-1, keepdim=True)
    softmax_dtype = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.masked_fill(sees_nothing, 0.0).softmax(dim=-1, dtype=softmax_dtype).to(scores.dtype)
    return weights.masked_fill(sees_nothing, 0.0)


def eager_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in plain steps: the output of shape `(B, T, H, D)`, and the weights before dropout."""
    weights = attention_weights(query, key, attention_mask, scaling)
    attended = torch.nn.functional.dropout(weights, p=dropout, training=module.training)
    return (attended @ value).transpose(1, 2).contiguous(), weights


class Backend(NamedTuple):
    """A form of relative attention, and the device type and types of numbers that it is for. `takes(head width, dtype, far
    columns)` says whether it can compute them; None: all."""

    function: Callable[..., torch.Tensor]
    device_type: str
    dtypes: tuple[torch.dtype, ...]
    takes: Callable[[int, torch.dtype, FarColumns | None], bool] | None


BACKENDS: dict[str, Backend] = {}


def register_backend(
    name: str,
    function: Callable[..., torch.Tensor],
    device_type: str,
    dtypes: tuple[torch.dtype, ...],
    takes: Callable[[int, torch.dtype, FarColumns | None], bool] | None = None,
) -> None:
    """Use `function` for relative attention on `device_type` in `dtypes`, before those that were registered earlier."""
    BACKENDS[name] = Backend(function, device_type, dtypes, takes)


def relative_backend(
    attn_implementation: str, query: torch.Tensor, far: FarColumns | None = None
) -> Callable[..., torch.Tensor] | None:
    """The newest backend for `query`, or None: then the attention function that the user chose computes the scores' sum."""
    if attn_implementation != "sdpa":
        return None
    device_type, dtype = query.device.type, computing_dtype(query)
    for backend in reversed(BACKENDS.values()):
        of_kind = backend.device_type == device_type and dtype in backend.dtypes
        if of_kind and (backend.takes is None or backend.takes(query.shape[-1], dtype, far)):
            return backend.function
    return None
