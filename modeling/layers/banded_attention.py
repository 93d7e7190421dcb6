"""Sliding windows with dilation per head: Beltagy et al., 2020, https://arxiv.org/abs/2004.05150, section 3.1."""

from typing import NamedTuple

import torch
from torch.nn import functional as F

from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.ops.band import Band
from transformers_xl.modeling.ops.window import PackedRows, visible_positions


class _Bias(NamedTuple):
    content_bias: torch.Tensor
    position_bias: torch.Tensor


# B batch, T segment length, K = memory + T, H heads, D head dim, W window, d dilation of a head
class BandedAttention(RelativeAttention):
    """Relative attention of query i to the keys i - m d, m = 0..W, with a dilation d of each head.

    Heads of one dilation are computed together, in pieces of the text (`ops.band`), each by relative attention as it is: no
    tensor has T x K entries. With `attn_implementation="eager"` all pairs are computed, and their weights returned.
    """

    @property
    def window(self) -> int:
        return self.config.windows[self.layer_idx]

    @property
    def dilations(self) -> list[int]:
        return self.config.dilations[self.layer_idx]

    def relative_terms(self, num_keys: int, near: torch.Tensor, bias: _Bias) -> tuple[torch.Tensor, _Bias]:
        """`near` `(H, n, D)`, the positions n-1 .. 0, with zeros for what is farther and so never seen, and behind."""
        near = near[:, -num_keys:]
        return F.pad(near, (0, 0, num_keys - near.shape[1], 1)), bias

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        visible: None,
        by_distance: bool,
        positions: dict,
        *,
        rows: PackedRows,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`rows` says which of the K columns are real, and their episodes: `visible` would have T x K entries."""
        window, dilations = self.window, self.dilations
        projected, bias = super().relative_terms(window * max(dilations) + 1, **positions)
        projected = projected[:, :-1]
        if self.config._attn_implementation == "eager":
            visible = self.visible_pairs(rows, query.shape[2], key.shape[2], query.device)
            return super().attend(query, key, value, visible, False, {"near": projected, "bias": bias}, **kwargs)
        attn_output = torch.empty_like(query).transpose(1, 2)
        for dilation in sorted(set(dilations)):
            heads = [head for head, other in enumerate(dilations) if other == dilation]
            heads = slice(None) if len(heads) == self.num_heads else heads
            part = {
                "near": projected[heads, (projected.shape[1] - 1) % dilation :: dilation],
                "bias": _Bias(bias.content_bias[heads], bias.position_bias[heads]),
            }
            attn_output[:, :, heads] = self.attend_band(
                query[:, heads], key[:, heads], value[:, heads], dilation, part, rows, **kwargs
            )
        return attn_output, None

    def attend_band(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dilation: int,
        positions: dict,
        rows: PackedRows,
        **kwargs,
    ) -> torch.Tensor:
        """The output `(B, T, heads, D)` of some heads, all of one dilation."""
        num_keys = key.shape[2]
        band = Band.of(query.shape[2], num_keys, self.window, dilation)
        pieces = band.cut_rows(rows, len(query), num_keys, query.device)
        visible = visible_positions(pieces, band.size, band.window + band.size, band.window + 1, query.device)
        attn_output, _ = super().attend(
            band.cut(query, 0),
            band.cut(key, band.window),
            band.cut(value, band.window),
            visible,
            pieces.valid is None,
            positions,
            window=band.window + 1,
            **kwargs,
        )
        return band.join(attn_output)

    def visible_pairs(self, rows: PackedRows, length: int, num_keys: int, device: torch.device) -> torch.Tensor:
        """Which keys each query sees, `(B or 1, H, T, K)` bool."""
        columns = torch.arange(num_keys, device=device)
        distance = columns[num_keys - length :, None] - columns
        dilations = torch.tensor(self.dilations, device=device)[:, None, None]
        in_window = (distance % dilations == 0) & (distance <= self.window * dilations)
        visible = visible_positions(rows, length, num_keys, None, device)
        return in_window[None] if visible is None else visible & in_window


__all__ = ["BandedAttention"]
