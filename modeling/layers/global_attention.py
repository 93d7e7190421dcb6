"""A window on both sides, and global tokens: Beltagy et al., 2020, https://arxiv.org/abs/2004.05150, section 3.1."""

from typing import NamedTuple, Self

import torch
from torch import nn
from torch.nn import functional as F

from transformers_xl.configuration.configuration_longformer_encoder import LongformerEncoderConfig
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.ops.band import Band
from transformers_xl.modeling.ops.columns import gather_columns
from transformers_xl.modeling.ops.relative_attention import attention_weights


class GlobalTokens(NamedTuple):
    """The global tokens of a batch: `is_global` (B, T) bool; `places` (B, G), their columns, G being the most of a row;
    `documents` (B, G), those of these columns, 0 where a row has fewer."""

    is_global: torch.Tensor
    places: torch.Tensor
    documents: torch.Tensor

    @classmethod
    def of(cls, is_global: torch.Tensor, documents: torch.Tensor) -> Self | None:
        """Those of `is_global`; None where there are none."""
        most = int(is_global.sum(1).max())
        if most == 0:
            return None
        places = (~is_global).long().argsort(dim=1, stable=True)[:, :most]
        return cls(is_global, places, gather_columns(documents * is_global, places))


class SeenTokens(NamedTuple):
    """Who may see whom: tokens whose numbers in `documents` (B, T) are equal. Documents count from 1, and padding is
    one of its own, -1, so that every token sees something. `global_tokens`: None where there are none."""

    documents: torch.Tensor
    global_tokens: GlobalTokens | None = None


# B batch, T length, H heads, D head dim, E hidden size, G global tokens; N pieces of the band
class GlobalAttention(MemoryAttention):
    """A token attends to `attention_window` neighbours, half on each side, and to all global tokens; a global token to all
    tokens, by projections of its own:

        softmax(q_i . [k_j : |i - j| <= w/2 or j global]) v          softmax(q'_i . [k'_j : all j]) v'      i global

    The window is computed in pieces of the text (`ops.band`): no tensor has T x T entries. With
    `attn_implementation="eager"` all pairs are computed, and their weights returned.
    """

    def __init__(self, config: LongformerEncoderConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.is_causal = False
        self.reach = config.windows[layer_idx] // 2
        inner_size = config.num_attention_heads * config.head_dim
        self.global_q_proj = nn.Linear(config.hidden_size, inner_size, bias=config.attention_bias)
        self.global_k_proj = nn.Linear(config.hidden_size, inner_size, bias=config.attention_bias)
        self.global_v_proj = nn.Linear(config.hidden_size, inner_size, bias=config.attention_bias)

    def forward(self, hidden_states: torch.Tensor, seen: SeenTokens) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            hidden_states: `(B, T, E)`, normalised where the model is pre-norm.
            seen: documents and global tokens.

        Returns:
            The output `(B, T, E)`, and with eager attention the weights `(B, H, T, T)`.
        """
        if self.config._attn_implementation == "eager":
            attn_output, weights = self.attend_all_pairs(hidden_states, seen)
            return self.merge_heads(attn_output), weights
        attn_output = self.attend_window(hidden_states, seen)
        if seen.global_tokens is not None:
            attn_output = self.with_global_rows(attn_output, hidden_states, seen, seen.global_tokens)
        return self.merge_heads(attn_output), None

    def project_globally(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values that global tokens read, each `(B, H, T, D)`."""
        key, value = self.global_k_proj(hidden_states), self.global_v_proj(hidden_states)
        return self.split_heads(key), self.split_heads(value)

    def attend_window(self, hidden_states: torch.Tensor, seen: SeenTokens) -> torch.Tensor:
        """What each token reads as one that is not global, `(B, T, H, D)`."""
        query, (key, value) = self.queries(hidden_states), self.project(hidden_states)
        documents, tokens = seen.documents, seen.global_tokens
        # after `reach` empty columns, a window on both sides is one on the left
        empty = (0, 0, 0, self.reach)
        band = Band.of(query.shape[2], query.shape[2] + self.reach, 2 * self.reach, 1)
        keys, values = (band.cut(F.pad(each, empty), band.window) for each in (key, value))
        asks = band.cut(documents[:, None, :, None], 0)[:, 0]
        near = documents if tokens is None else documents * ~tokens.is_global  # which are seen once, from wherever
        near = band.cut(F.pad(near[:, None, :, None], empty), band.window)[:, 0, :, 0]
        columns = torch.arange(band.window + band.size, device=near.device)
        distance = columns[band.window :, None] - columns
        visible = (asks == near[:, None]) & (distance >= 0) & (distance <= band.window)
        if tokens is not None:
            key, value = (gather_columns(each, tokens.places, dim=2) for each in (key, value))
            key, value, far = (each.repeat_interleave(band.pieces, dim=0) for each in (key, value, tokens.documents))
            keys, values = torch.cat([key, keys], dim=2), torch.cat([value, values], dim=2)
            visible = torch.cat([asks == far[:, None], visible], dim=2)
        attn_output, _ = self.attend_with_bias(band.cut(query, 0), keys, values, None, visible[:, None])
        return band.join(attn_output)

    def with_global_rows(
        self, attn_output: torch.Tensor, hidden_states: torch.Tensor, seen: SeenTokens, tokens: GlobalTokens
    ) -> torch.Tensor:
        """The output `(B, T, H, D)`, in which global tokens have read all others."""
        query = self.global_queries(gather_columns(hidden_states, tokens.places))
        visible = gather_columns(seen.documents, tokens.places)[:, :, None] == seen.documents[:, None]
        rows, _ = self.attend_with_bias(query, *self.project_globally(hidden_states), None, visible[:, None])
        is_one = (tokens.documents > 0)[..., None, None]  # rows of the batch may have fewer
        rows = torch.where(is_one, rows, gather_columns(attn_output, tokens.places))
        return attn_output.scatter(1, tokens.places[..., None, None].expand_as(rows), rows)

    def attend_all_pairs(self, hidden_states: torch.Tensor, seen: SeenTokens) -> tuple[torch.Tensor, torch.Tensor]:
        """The output `(B, T, H, D)` and the weights `(B, H, T, T)`, in plain steps."""
        query, (key, value) = self.queries(hidden_states), self.project(hidden_states)
        documents, tokens = seen.documents, seen.global_tokens
        same = documents[:, :, None] == documents[:, None]
        columns = torch.arange(query.shape[2], device=query.device)
        near = ((columns[:, None] - columns).abs() <= self.reach)[None]
        near = near if tokens is None else near | tokens.is_global[:, None]
        weights = attention_weights(query, key, (same & near)[:, None], self.scaling)
        if tokens is not None:
            is_global = tokens.is_global[:, None, :, None]
            query, (key, global_value) = self.global_queries(hidden_states), self.project_globally(hidden_states)
            weights = torch.where(is_global, attention_weights(query, key, same[:, None], self.scaling), weights)
        attended = F.dropout(weights, self.attention_dropout, self.training)
        attn_output = attended @ value
        if tokens is not None:
            attn_output = torch.where(is_global, attended @ global_value, attn_output)
        return attn_output.transpose(1, 2), weights

    def global_queries(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Queries of global tokens, `(B, H, T, D)`."""
        return self.split_heads(self.global_q_proj(hidden_states))


__all__ = ["GlobalAttention", "GlobalTokens", "SeenTokens"]
