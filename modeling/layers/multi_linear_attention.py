"""Multi-linear attention: Ma et al., 2019, https://arxiv.org/abs/1906.09777, section 4.

Code: szhangtju/The-compression-of-Transformer. A query meets pairs of positions, one as key and one as value, in a product
of three factors without softmax, and a map reads the products of all pairs:

    F[i, j, l] = mean over cores g of sum_d g_d q_(i,d) k_(j,d) v_(l,d)        y_i = W_o F[i]

F is a tensor in block-term form: diagonal cores g on the same three factors.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import initialization as init

from transformers_xl.configuration.configuration_tensorized_transformer import TensorizedTransformerConfig
from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.ops.columns import keep_last
from transformers_xl.modeling.ops.relative_attention import Biases

# numbers of the largest tensor of a piece: tokens are worked on together as long as their windows are no larger
PIECE_SIZE = 2**22


# B batch, T segment length, K = memory + T, H heads, D head dim, W attention window, E hidden size
class MultiLinearAttention(RelativeAttention):
    """The causal form, over pairs of distances a, b in 0..W-1:

        F[i, a, b] = mean over cores g of sum_d g_d ((q_i + u)_d k_(i-a),d + (q_i + w)_d r_(a,d)) v_(i-b),d

    zero where i-a or i-b does not exist, is padding or of another document; then one map of all pairs, `[E, H * W^2]`, b
    fastest. u and w are `content_bias` and `position_bias`. The mean of the cores is taken first: F is linear in them.

    F has W^2 numbers per token and head. It is made for a few tokens at a time and goes through the map at once; with
    `recompute_attention` the backward pass makes it once more instead of keeping it.

    Differs from the original: it is causal, by distances (that code's mask is computed and not applied, and its map belongs
    to positions in the segment); heads, where that code works with one; `attention_dropout`, which it has and does not
    use, falls on F; cores start as softmax of normal numbers (of memory that nothing was written to, there).
    """

    def __init__(self, config: TensorizedTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.window = config.attention_window
        self.cores = nn.Parameter(torch.empty(self.num_heads, config.num_cores, self.head_dim))
        self.o_proj = nn.Linear(self.num_heads * self.window**2, config.hidden_size, bias=config.attention_bias)

    def init_weights(self, config: TensorizedTransformerConfig) -> None:
        init.copy_(self.cores, torch.randn_like(self.cores).softmax(dim=-1))

    def attend(self, query, key, value, context, **kwargs):
        projected, bias = self.relative_terms(context)
        relative = (
            keep_last(projected, self.window + 1)[:, :-1].flip(1).transpose(0, 1)
        )  # [W, H, D], of the distances 0 .. W-1
        query, key, value = (states.transpose(1, 2) for states in (query, key, value))
        (batch, length, heads, width), num_keys = query.shape, key.shape[1]
        content_query, position_query = self.weighted_queries(query, bias)
        columns = window_columns(length, num_keys, self.window, key.device)
        is_full = context.segment.is_plain and num_keys - length >= self.window - 1
        seen = None if is_full else columns >= context.segment.first[..., None]  # (B or 1, T, W)

        size = max(1, PIECE_SIZE // (batch * heads * self.window * max(self.window, width)))
        outputs = []
        for start in range(0, length, size):
            here = slice(start, start + size)
            seen_here = None if seen is None else seen[:, here]
            piece = (content_query[:, here], position_query[:, here], key, value, relative, columns[here], seen_here)
            if self.config.recompute_attention and torch.is_grad_enabled():
                outputs.append(checkpoint(self.attend_piece, *piece, use_reentrant=False))
            else:
                outputs.append(self.attend_piece(*piece))
        return torch.cat(outputs, dim=1), None

    def attend_piece(
        self,
        content_query: torch.Tensor,
        position_query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        relative: torch.Tensor,
        columns: torch.Tensor,
        seen: torch.Tensor | None,
    ) -> torch.Tensor:
        """Output `(B, t, E)` of t queries, whose windows are the `columns` (t, W) of the keys and values."""
        chosen = columns.clamp(min=0).flatten()  # what does not exist is not `seen`
        key, value = (each.index_select(1, chosen).unflatten(1, columns.shape) for each in (key, value))
        pairs = pair_features(content_query, position_query, key, value, relative)
        if seen is not None:
            pairs = pairs * (seen[..., :, None] & seen[..., None, :])[:, :, None]
        return self.map_pairs(pairs)

    def weighted_queries(self, query: torch.Tensor, bias: Biases) -> tuple[torch.Tensor, torch.Tensor]:
        """`(q + u) g` and `(q + w) g` of queries `(B, T, H, D)`, g being the mean of the cores."""
        core = self.cores.mean(dim=1)
        return (query + bias.content_bias) * core, (query + bias.position_bias) * core

    def map_pairs(self, pairs: torch.Tensor) -> torch.Tensor:
        """The output `(B, T, E)` of F, `(B, T, H, W, W)`."""
        pairs = nn.functional.dropout(pairs, p=self.attention_dropout, training=self.training)
        return self.o_proj(pairs.flatten(2))

    def merge_heads(self, attn_output: torch.Tensor) -> torch.Tensor:
        return attn_output  # the pieces have been through the map


class NonCausalMultiLinearAttention(MultiLinearAttention):
    """The form of the released code, for comparison: every query meets all pairs of keys, those after it too.

        F[i, j, l] = mean over cores g of sum_d g_d ((q_i + u)_d k_(j,d) + (q_i + w)_d r_(j,d)) v_(l,d)

    The j-th key meets the j-th row of the positions, not that of its distance, and the map belongs to places in
    `[memory; segment]`, which is always `attention_window` long.
    """

    def forward(
        self,
        hidden_states: torch.Tensor,
        positions: torch.Tensor,
        bias: Biases,
        memory: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Args:
            hidden_states: the segment, `(B, T, E)`.
            positions: a vector for each key, `(K, E)`.
            bias: u and w.
            memory: `(B, K - T, E)`, when there is one.

        Returns:
            `(B, T, E)`.
        """
        inputs = hidden_states if memory is None else torch.cat([memory, hidden_states], dim=1)
        if not inputs.shape[1] == len(positions) == self.window:
            raise ValueError(
                f"`memory` and `hidden_states` have {inputs.shape[1]} positions and `positions` {len(positions)}: the "
                f"output map needs `attention_window`={self.window} of both."
            )
        query = self.split_heads(self.q_proj(hidden_states)).transpose(1, 2)
        key, value = (states.transpose(1, 2)[:, None] for states in self.project(inputs))
        relative = self.split_heads(self.r_proj(positions)).transpose(0, 1)
        return self.map_pairs(pair_features(*self.weighted_queries(query, bias), key, value, relative))


def pair_features(
    content_query: torch.Tensor,
    position_query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    relative: torch.Tensor,
) -> torch.Tensor:
    """F of every pair of N positions, a key and a value, `(B, T, H, N, N)`.

    The queries `(B, T, H, D)` have met the core; keys and values are `(B, T or 1, N, H, D)`; `relative`, `(N, H, D)`, is
    what is added to each key for where it stands.
    """
    factors = content_query[:, :, None] * key + position_query[:, :, None] * relative
    return torch.einsum("btahd,btzhd->bthaz", factors, value)


def window_columns(length: int, num_keys: int, window: int, device: torch.device) -> torch.Tensor:
    """The key column at each distance 0 .. W-1 from each of the last T of K positions, `(T, W)`; negative: none."""
    queries = torch.arange(num_keys - length, num_keys, device=device)
    return queries[:, None] - torch.arange(window, device=device)
