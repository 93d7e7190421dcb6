"""Adaptive attention span: Sukhbaatar et al., 2019, https://arxiv.org/abs/1905.07799, section 2.2.

A head attends to the past through a soft mask, whose length z it learns:

    m_z(x) = clamp((R + z - x) / R, 0, 1)        weight[i, j] = m_z(i-j-1) exp(score[i, j]) / sum of the same over j
    score[i, j] = q_i . (k_j + p_{i-j}) / sqrt(d)        for the S positions j before i

with a learned vector p for each distance, shared by layers and heads. The span counts from the position before the token,
which has x = 0, as in the authors' code.
"""

from typing import cast

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_adaptive_span import AdaptiveSpanConfig
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.memory.segment import LayerContext
from transformers_xl.modeling.ops.columns import keep_last
from transformers_xl.modeling.ops.relative_attention import relative_shift


class SpanMask(nn.Module):
    """m_z of every head. `span` holds z as a share of `max_span`, `(heads,)`, which is cut to 0..1 where it is read."""

    def __init__(self, config: AdaptiveSpanConfig):
        super().__init__()
        self.max_span, self.ramp = config.max_span, config.span_ramp
        self.span = nn.Parameter(torch.empty(config.num_attention_heads))

    def init_weights(self, config: AdaptiveSpanConfig) -> None:
        init.constant_(self.span, float(config.initial_span))

    def learning_rate_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"spans": [self.span]}

    def lengths(self) -> torch.Tensor:
        """z in positions, `(heads,)`, in float32 or better: bfloat16 has not the digits to count them."""
        exact = torch.promote_types(self.span.dtype, torch.float32)
        return self.span.to(exact).clamp(0.0, 1.0) * self.max_span

    def forward(self, reach: int) -> torch.Tensor:
        """m_z of the distances reach .. 1, `(heads, reach)`."""
        distances = torch.arange(reach, 0, -1, device=self.span.device)
        return ((self.lengths()[:, None] + 1 - distances) / self.ramp + 1).clamp(0.0, 1.0)

    @torch.no_grad()
    def reach(self) -> torch.Tensor:
        """How many distances have a mask above zero, `(heads,)` integers."""
        return (self.lengths().ceil().long() + self.ramp).clamp(max=self.max_span)


class SpanPositions(nn.Module):
    """The learned vectors of the distances max_span .. 1, `(max_span, head_dim)`, for all layers and heads."""

    def __init__(self, config: AdaptiveSpanConfig):
        super().__init__()
        self.table = nn.Parameter(torch.empty(config.max_span, config.head_dim))

    def init_weights(self, config: AdaptiveSpanConfig) -> None:
        init.normal_(self.table, mean=0.0, std=1.0)  # as in the authors' code

    def forward(self) -> torch.Tensor:
        return self.table


# B batch, T segment length, K = memory + T, H heads, D head dim, N distances
class AdaptiveSpanAttention(MemoryAttention):
    """Attention to the positions before each token, as far as the layer's longest span reaches.

    The mask multiplies the weights before they are normalised, so its logarithm is added to the scores: any attention
    function can do the rest, and what no head of the layer sees may be missing without a change of the result.
    """

    def __init__(self, config: AdaptiveSpanConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.span_mask = SpanMask(config)

    def score_terms(
        self, query: torch.Tensor, num_keys: int, context: LayerContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        reach = min(num_keys, self.config.layer_windows[self.layer_idx]) - 1
        mask = self.span_mask(reach)
        hidden = mask == 0
        # the logarithm is kept away from zero, or the gradient of what is hidden would be infinity times zero
        log_mask = mask.masked_fill(hidden, 1.0).log().masked_fill(hidden, -torch.inf).to(query.dtype)
        positions = keep_last(cast(torch.Tensor, context.positions), reach, dim=0)
        by_distance = query * self.scaling @ positions.T + log_mask[:, None]  # [B, H, T, N]
        # after distance 1 come 0, the token itself, and the -1 that the shift asks for
        wide = nn.functional.pad(by_distance, (num_keys - 1 - reach, 2), value=-torch.inf)
        return query, relative_shift(wide)
