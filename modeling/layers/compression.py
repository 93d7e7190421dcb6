"""Compression of old memories: Rae et al., 2019, https://arxiv.org/abs/1911.05507, section 3."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call

from transformers_xl.configuration.configuration_compressive_transformer import CompressiveTransformerConfig
from transformers_xl.modeling.layers.attention import RelativeAttention
from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.memory.compressed_memory import CompressionPlan
from transformers_xl.modeling.ops.relative_attention import attention_weights


@dataclass(frozen=True, kw_only=True)
class CompressiveContext(SegmentContext):
    """`plan`: what the segment compresses."""

    plan: CompressionPlan


# B batch, T segment, N blocks of c positions, E hidden size
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


def without_learning(module: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """`module(states)`, whose gradient goes to `states` alone."""
    return functional_call(module, {name: weight.detach() for name, weight in module.named_parameters()}, (states,))


def reconstruction_loss(
    attention: RelativeAttention,
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
    blocks = segment.plan.blocks
    if blocks.is_block is None:
        return None
    visible = blocks.is_block[:, None]
    if segment.document_ids is not None and blocks.text is not None:
        visible = visible & (blocks.text[:, None] == segment.document_ids[..., None])
    if segment.segment_mask is not None:
        visible = visible & segment.segment_mask[..., None]
    return visible[:, None]


__all__ = ["Compression", "CompressiveContext", "reconstruction_loss", "without_learning"]
