"""Compression of old memories, and attention to both: Rae et al., 2019, https://arxiv.org/abs/1911.05507, section 3."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call

from transformers_xl.configuration.configuration_compressive_transformer import CompressiveTransformerConfig
from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.layers.positions import Biases
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.memory.column_memory import ColumnMemory
from transformers_xl.modeling.memory.compressed_memory import Blocks
from transformers_xl.modeling.ops.relative_attention import (
    attention_weights,
    masked_softmax,
    position_scores,
    position_scores_at,
)
from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.token_order import unpack_tokens
from transformers_xl.modeling.ops.wide_attention import one_token_attention
from transformers_xl.modeling.ops.window import keep_last


@dataclass(frozen=True, kw_only=True)
class CompressiveContext(SegmentContext):
    """`blocks`: what the segment compresses."""

    blocks: Blocks


# B batch, T segment, N blocks of c positions, K uncompressed and S compressed columns, H heads, D head dim, E hidden size
class Compression(nn.Module):
    """f_c: `c` positions become one. Section 3.2.

    A convolution whose kernel is its stride is one linear map of `c` vectors side by side: `conv`.
    """

    def __init__(self, config: CompressiveTransformerConfig):
        super().__init__()
        self.rate, self.function = config.compression_rate, config.compression_function
        width = config.hidden_size
        self.conv = nn.Linear(self.rate * width, width) if self.function == "conv" else None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """`(B, N c, E)` -> `(B, N, E)`."""
        blocks = states.unflatten(1, (states.shape[1] // self.rate, self.rate))
        if self.conv is not None:
            return self.conv(blocks.flatten(2))
        return blocks.mean(dim=2) if self.function == "mean" else blocks.amax(dim=2)


class CompressiveAttention(RelativeAttention):
    """Relative attention to `[compressed; uncompressed; segment]`.

    The scores of both parts are computed apart and meet in the softmax: no keys are copied. In plain steps whatever
    `attn_implementation` says, one token of generation excepted.
    """

    def forward(
        self,
        hidden_states: torch.Tensor,
        keys: Tensors,
        values: Tensors,
        memories: tuple[ColumnMemory, ColumnMemory],
        segment: CompressiveContext,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            hidden_states: the segment `(B, T, E)`, normalised where the model is pre-norm.
            keys, values: of what is compressed `(B, H, S, D)`, and of the rest `(B, H, K, D)`.
            memories: those that the two parts came from, which say what the queries see.

        Returns:
            The output `(B, T, E)` and the weights `(B, H, T, S + K)`; None of one token that is read in one piece.
        """
        query, nearest = self.queries(hidden_states), segment.blocks.nearest
        positions, bias = self.relative_terms(None, segment, memories[1])
        if nearest is not None:
            keys, values = (
                [keep_last(part, count, dim=-2) for part, count in zip(parts, nearest, strict=True)]
                for parts in (keys, values)
            )
            positions = keep_last(positions, sum(nearest) + 1)
            attn_output = one_token_attention(query, keys, values, positions, *bias, self.scaling)
            return self.merge_heads(attn_output), None
        weights = self.weights(query, keys, positions, bias, memories)
        weights, attended = unpack_tokens(weights, segment.token_order, dim=2)
        attended = nn.functional.dropout(attended, p=self.attention_dropout, training=self.training)
        parts = attended.split([key.shape[-2] for key in keys], dim=-1)
        attn_output = sum(part @ value for part, value in zip(parts, values, strict=True))
        return self.merge_heads(attn_output.transpose(1, 2)), weights

    def weights(
        self,
        query: torch.Tensor,
        keys: Tensors,
        positions: torch.Tensor,
        bias: Biases,
        memories: tuple[ColumnMemory, ColumnMemory],
    ) -> torch.Tensor:
        """Those of both parts, `(B, H, T, S + K)`."""
        content_query = query + bias.content_bias[:, None]
        position_query = (query + bias.position_bias[:, None]) * self.scaling
        by_position = (
            position_scores_at(position_query, positions, memories[0].key_mask.distance),
            position_scores(position_query, keep_last(positions, keys[1].shape[-2] + 1)),
        )
        scores = [
            visible_scores(content_query @ key.transpose(-1, -2) * self.scaling + added, part.key_mask.visible)
            for key, added, part in zip(keys, by_position, memories, strict=True)
        ]
        return masked_softmax(torch.cat(scores, dim=-1), None)


def visible_scores(scores: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
    """Scores `(B, H, T, K)`, -inf where a query does not see a column."""
    return scores if visible is None else scores.masked_fill(~visible, -torch.inf)


def without_learning(module: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """`module(states)`, whose gradient goes to `states` alone."""
    return functional_call(module, {name: weight.detach() for name, weight in module.named_parameters()}, (states,))


def reconstruction_loss(
    attention: CompressiveAttention,
    inputs: torch.Tensor,
    old: torch.Tensor,
    compressed: torch.Tensor,
    segment: CompressiveContext,
) -> torch.Tensor:
    """Squared difference `(B, T)` of what each token attends to in old memories and in what these were compressed to, by
    content alone; the mean over heads and width. Algorithm 2: only what was compressed gets a gradient.

    Args:
        attention: gives the projections.
        inputs: those of the segment's tokens `(B, T, E)`.
        old, compressed: `(B, N c, E)` and `(B, N, E)`, normalised like the inputs.

    Differs from the original: the mean square, where the paper writes a norm.
    """
    query = attention.split_heads(without_learning(attention.q_proj, inputs.detach()))

    def attend(memory: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        key, value = (attention.split_heads(without_learning(m, memory)) for m in (attention.k_proj, attention.v_proj))
        return attention_weights(query, key, visible, attention.scaling) @ value

    visible, rate = visible_blocks(segment), attention.config.compression_rate
    with torch.no_grad():
        target = attend(old, None if visible is None else visible.repeat_interleave(rate, dim=-1))
    return (attend(compressed, visible) - target).square().mean(dim=(1, 3))


def visible_blocks(segment: CompressiveContext) -> torch.Tensor | None:
    """The blocks of each real token's own document, `(B, 1, 1 or T, N)` bool; None: all."""
    blocks = segment.blocks
    if blocks.is_block is None:
        return None
    visible = blocks.is_block[:, None]
    if segment.document_ids is not None:
        visible = visible & (blocks.packing.document_ids[:, None] == segment.document_ids[..., None])
    if segment.segment_mask is not None:
        visible = visible & segment.segment_mask[..., None]
    return visible[:, None]


__all__ = ["Compression", "CompressiveAttention", "CompressiveContext", "reconstruction_loss", "without_learning"]
