"""Sliding windows with dilation per head: Beltagy et al., 2020, https://arxiv.org/abs/2004.05150, section 3.1."""

import torch
from torch.nn import functional as F

from transformers_xl.configuration.configuration_causal_longformer import CausalLongformerConfig
from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.layers.positions import Biases
from transformers_xl.modeling.ops.band import Band
from transformers_xl.modeling.ops.window import PackedRows, visible_positions


# B batch, T segment length, K = memory + T, H heads, D head dim, W window, d dilation of a head
class BandedAttention(RelativeAttention):
    """Relative attention of query i to the keys i - m d, m = 0..W, with a dilation d of each head.

    Heads of one dilation are computed together, in pieces of the text (`ops.band`), each by relative attention as it is: no
    tensor has T x K entries. With `attn_implementation="eager"` all pairs are computed, and their weights returned.
    """

    def __init__(self, config: CausalLongformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.dilations = config.dilations[layer_idx]
        self.heads = {
            dilation: [head for head, other in enumerate(self.dilations) if other == dilation]
            for dilation in sorted(set(self.dilations))
        }
        in_turn = [head for heads in self.heads.values() for head in heads]
        self.place_of_head = [in_turn.index(head) for head in range(self.num_heads)]

    def relative_terms(self, num_keys: int, near: torch.Tensor, bias: Biases) -> tuple[torch.Tensor, Biases]:
        """`near` `(H, n, D)`, the positions n-1 .. 0, with zeros for what is farther and so never seen, and behind."""
        near = near[:, -num_keys:]
        return F.pad(near, (0, 0, num_keys - near.shape[1], 1)), bias

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        visible: torch.Tensor | None,
        by_distance: bool,
        positions: dict,
        *,
        rows: PackedRows,
        window: int,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Output `(B, T, H, D)` and weights, without `visible`, which would have T x K entries.

        Args:
            rows: which of the K columns are real, and their episodes.
            window: positions that the layer sees at most, itself included: W x its largest dilation + 1.
        """
        projected, bias = super().relative_terms(window, **positions)
        near = projected[:, :-1]
        if self.config._attn_implementation == "eager":
            visible = self.visible_pairs(rows, window, query.shape[2], key.shape[2], query.device)
            return super().attend(query, key, value, visible, False, {"near": near, "bias": bias}, **kwargs)
        outputs = []
        for dilation, heads in self.heads.items():
            band = Band.of(query.shape[2], key.shape[2], self.slots(window), dilation)
            near_heads = near[:, (near.shape[1] - 1) % dilation :: dilation]
            if len(self.heads) == 1:
                outputs.append(self.attend_band(band, query, key, value, near_heads, bias, rows, **kwargs))
                continue
            some_bias = Biases(bias.content_bias[heads], bias.position_bias[heads])
            states = (query[:, heads], key[:, heads], value[:, heads])
            outputs.append(self.attend_band(band, *states, near_heads[heads], some_bias, rows, **kwargs))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)[:, :, self.place_of_head], None

    def attend_band(
        self,
        band: Band,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        near: torch.Tensor,
        bias: Biases,
        rows: PackedRows,
        **kwargs,
    ) -> torch.Tensor:
        """The output `(B, T, heads, D)` of the heads of one dilation."""
        pieces = band.cut_rows(rows, len(query), key.shape[2], query.device)
        visible = visible_positions(pieces, band.size, band.window + band.size, band.window + 1, query.device)
        attn_output, _ = super().attend(
            band.cut(query, 0),
            band.cut(key, band.window),
            band.cut(value, band.window),
            visible,
            pieces.valid is None,
            {"near": near, "bias": bias},
            window=band.window + 1,
            **kwargs,
        )
        return band.join(attn_output)

    def slots(self, window: int) -> int:
        """W, of the positions that the layer sees."""
        return (window - 1) // max(self.dilations)

    def visible_pairs(
        self, rows: PackedRows, window: int, length: int, num_keys: int, device: torch.device
    ) -> torch.Tensor:
        """Which keys each query sees, `(B or 1, H, T, K)` bool."""
        columns = torch.arange(num_keys, device=device)
        distance = columns[num_keys - length :, None] - columns
        dilations = torch.tensor(self.dilations, device=device)[:, None, None]
        in_window = (distance % dilations == 0) & (distance <= self.slots(window) * dilations)
        visible = visible_positions(rows, length, num_keys, None, device)
        return in_window[None] if visible is None else visible & in_window


__all__ = ["BandedAttention"]
