"""Sliding windows with dilation per head: Beltagy et al., 2020, https://arxiv.org/abs/2004.05150, section 3.1."""

from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

from transformers_xl.configuration.configuration_causal_longformer import CausalLongformerConfig
from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.layers.positions import Biases
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.memory.column_memory import ColumnMemory
from transformers_xl.modeling.ops.band import Band
from transformers_xl.modeling.ops.key_mask import KeyMask
from transformers_xl.modeling.ops.window import PackedRows, visible_positions


@dataclass(frozen=True)
class BandedKeyMask(KeyMask):
    """The rows themselves, since `visible` would have T x K entries: which of the K columns are real, and their documents.

    `window` is W x the layer's largest dilation + 1.
    """

    window: int = 0
    rows: PackedRows = field(default_factory=PackedRows)

    @property
    def device(self) -> torch.device | None:
        tensor = self.rows.valid if self.rows.document_ids is None else self.rows.document_ids
        return None if tensor is None else tensor.device


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

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        memory: ColumnMemory,
        segment: SegmentContext,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        key_mask: BandedKeyMask = memory.key_mask  # type: ignore[assignment]  # the model makes no others
        projected, bias = self.relative_terms(segment, memory, key_mask.window)
        near = projected[:, :-1]
        kwargs["token_order"] = segment.token_order
        if self.config._attn_implementation == "eager":
            visible = self.visible_pairs(key_mask.rows, key_mask.window, query.shape[2], key.shape[2], query.device)
            positions = widened(near, key.shape[2])
            return self.attend_relative(query, key, value, positions, bias, KeyMask(visible), **kwargs)
        outputs = []
        for dilation, heads in self.heads.items():
            band = Band.of(query.shape[2], key.shape[2], self.slots(key_mask.window), dilation)
            near_heads = near[:, (near.shape[1] - 1) % dilation :: dilation]
            if len(self.heads) == 1:
                outputs.append(self.attend_band(band, query, key, value, near_heads, bias, key_mask.rows, **kwargs))
                continue
            some_bias = Biases(bias.content_bias[heads], bias.position_bias[heads])
            states = (query[:, heads], key[:, heads], value[:, heads])
            outputs.append(self.attend_band(band, *states, near_heads[heads], some_bias, key_mask.rows, **kwargs))
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
        states = band.cut(query, 0), band.cut(key, band.window), band.cut(value, band.window)
        key_mask = KeyMask(visible, by_distance=pieces.valid is None, window=band.window + 1)
        attn_output, _ = self.attend_relative(
            *states, widened(near, band.window + band.size), bias, key_mask, **kwargs
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


def widened(near: torch.Tensor, num_keys: int) -> torch.Tensor:
    """The positions `(H, K + 1, D)` of K keys, of the positions `(H, n, D)` n-1 .. 0 of the near ones: zeros for what is
    farther, and so never seen, and behind."""
    near = near[:, -num_keys:]
    return F.pad(near, (0, 0, num_keys - near.shape[1], 1))


__all__ = ["BandedAttention", "BandedKeyMask"]
