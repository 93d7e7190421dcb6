"""The two attentions of a star: Guo et al., 2019, https://arxiv.org/abs/1902.09113, section 3.1. Code: fastnlp/fastNLP.

A satellite stands for each token and one relay for all of them. Satellites read their neighbours on a ring and the relay;
the relay reads all satellites. Any two tokens are two steps apart, and the cost grows with the length, not its square.
"""

import torch
from torch import nn

from transformers_xl.configuration.configuration_star_transformer import StarTransformerConfig
from transformers_xl.modeling.layers.attention import MemoryAttention


# B batch, T segment length, H heads, D head dim, E hidden size
def ends(length: int, num: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """Where each row ends, (B or 1, T) bool, of `num` (B,) tokens; None: all."""
    last = torch.full((1, 1), length - 1, device=device) if num is None else num[:, None] - 1
    return torch.arange(length, device=device) == last


class RingAttention(MemoryAttention):
    """Each satellite attends to the one on its left, itself, the one on its right, its token's embedding and the relay.

        h_i = attention(h_i, [h_{i-1}, h_i, h_{i+1}, e_i, s])

    Five keys per query: they are computed in plain steps, whatever `attn_implementation` says.

    Differs from the original: padding is nobody's neighbour.
    """

    def __init__(self, config: StarTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.is_cyclic = config.ring == "cyclic"

    def neighbours(self, states: torch.Tensor, is_last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What stands on the left and on the right of each token in `states` (B, H, T, D)."""
        is_last = is_last[:, None, :, None]
        if self.is_cyclic:
            first, last = states[:, :, :1], (states * is_last).sum(dim=2, keepdim=True)
        else:
            first = last = torch.zeros_like(states[:, :, :1])
        return torch.cat([last, states[:, :, :-1]], dim=2), torch.where(is_last, first, states.roll(-1, dims=2))

    def forward(
        self,
        satellites: torch.Tensor,
        relay: torch.Tensor,
        embeddings: torch.Tensor,
        is_last: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            satellites: `(B, T, E)`, normalised where the model is pre-norm; padding after the tokens.
            relay: `(B, E)`.
            embeddings: `(B, T, E)`, those of the tokens.
            is_last: `(B or 1, T)` bool, where the rows end.

        Returns:
            The output `(B, T, E)`, and the weights `(B, H, T, 5)`.
        """
        query = self.split_heads(self.q_proj(satellites))
        contexts = []
        for own, embedded, shared in zip(*map(self.project, (satellites, embeddings, relay[:, None])), strict=True):
            left, right = self.neighbours(own, is_last)
            contexts.append((left, own, right, embedded, shared))
        keys, values = contexts
        scores = torch.stack([(query * key).sum(-1) for key in keys], dim=-1) * self.scaling
        weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
        attended = nn.functional.dropout(weights, p=self.attention_dropout, training=self.training)
        attn_output = sum(weight[..., None] * value for weight, value in zip(attended.unbind(-1), values, strict=True))
        return self.o_proj(attn_output.transpose(1, 2).flatten(-2)), weights


class RelayAttention(MemoryAttention):
    """The relay attends to itself and to all satellites: `s = attention(s, [s, h_1, .., h_n])`."""

    def forward(self, relay: torch.Tensor, satellites: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """`relay` (B, E), `satellites` (B, T, E), `mask` (B, T) bool, real tokens (None: all); returns (B, E)."""
        query = self.split_heads(self.q_proj(relay[:, None]))
        key, value = self.project(torch.cat([relay[:, None], satellites], dim=1))
        visible = None if mask is None else nn.functional.pad(mask, (1, 0), value=True)[:, None, None]
        attn_output, _ = self.attend_with_bias(query, key, value, None, visible)
        return self.o_proj(attn_output.flatten(-2)).squeeze(1)
