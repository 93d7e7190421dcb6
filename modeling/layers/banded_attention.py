"""Sliding windows with dilation per head: Beltagy et al., 2020, https://arxiv.org/abs/2004.05150, section 3.1."""

from typing import cast

import torch
from torch.nn import functional as F

from transformers_xl.configuration.configuration_causal_longformer import CausalLongformerConfig
from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.ops.band import Band
from transformers_xl.modeling.ops.columns import keep_last
from transformers_xl.modeling.ops.relative_attention import Biases


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

    def attend(self, query, key, value, context, **kwargs):
        projected, bias = self.relative_terms(context)
        window = cast(int, context.window)  # the model gives one to every layer
        near = keep_last(projected, window + 1)[:, :-1]
        if self.config._attn_implementation == "eager":
            context = context._replace(mask=self.visible_pairs(context, self.slots(window)))
            return self.attend_relative(query, key, value, widened(near, key.shape[2]), bias, context, **kwargs)
        outputs = []
        for dilation, heads in self.heads.items():
            band = Band.of(query.shape[2], key.shape[2], self.slots(window), dilation)
            near_heads = near[:, (near.shape[1] - 1) % dilation :: dilation]
            if len(self.heads) == 1:
                outputs.append(self.attend_band(band, query, key, value, near_heads, bias, context, **kwargs))
                continue
            some_bias = Biases(bias.content_bias[heads], bias.position_bias[heads])
            states = (query[:, heads], key[:, heads], value[:, heads])
            outputs.append(self.attend_band(band, *states, near_heads[heads], some_bias, context, **kwargs))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)[:, :, self.place_of_head], None

    def attend_band(
        self,
        band: Band,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        near: torch.Tensor,
        bias: Biases,
        context: LayerContext,
        **kwargs,
    ) -> torch.Tensor:
        """The output `(B, T, heads, D)` of the heads of one dilation."""
        context = context._replace(segment=band.cut_segment(context.segment), window=band.window + 1, mask=None)
        states = band.cut(query, 0), band.cut(key, band.window), band.cut(value, band.window)
        positions = widened(near, context.segment.num_keys)
        attn_output, _ = self.attend_relative(*states, positions, bias, context, **kwargs)
        return band.join(attn_output)

    def slots(self, window: int) -> int:
        """W, of the positions that the layer sees."""
        return (window - 1) // max(self.dilations)

    def visible_pairs(self, context: LayerContext, slots: int) -> torch.Tensor:
        """Which keys each query sees, `(B or 1, H, T, K)` bool."""
        segment = context.segment
        distance = segment.columns[:, None] - torch.arange(segment.num_keys, device=segment.columns.device)
        dilations = torch.tensor(self.dilations, device=distance.device)[:, None, None]
        in_window = (distance % dilations == 0) & (distance <= slots * dilations)
        visible = context.visible
        return in_window[None] if visible is None else visible & in_window


def widened(near: torch.Tensor, num_keys: int) -> torch.Tensor:
    """The positions `(H, K + 1, D)` of K keys, of the positions `(H, n, D)` n-1 .. 0 of the near ones: zeros for what is
    farther, and so never seen, and for the distance -1."""
    near = near[:, -num_keys:]
    return F.pad(near, (0, 0, num_keys - near.shape[1], 1))


__all__ = ["BandedAttention"]
