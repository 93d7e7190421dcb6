"""A convolution over the last few tokens: "Canon layers", Allen-Zhu, 2025, https://arxiv.org/abs/2512.17351.

Other names and places of it: the short convolutions of H3 (Fu et al., 2023, https://arxiv.org/abs/2212.14052) and of Mamba
(Gu and Dao, 2023, https://arxiv.org/abs/2312.00752).
"""

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.memory.segment import Segment


# B batch, T segment length, K tokens that are read, E features
class ShortConvolution(nn.Module):
    """`y_t = x_t + sum_k w_k * x_{t-k}`, k from 0 to K - 1: each feature for itself, of tokens of one document.

    `weight` `(K, E)` has the newest token last. What comes before a text is zero. `tail` is what a segment sees of earlier
    ones.
    """

    def __init__(self, width: int, kernel_size: int):
        super().__init__()
        self.num_before = kernel_size - 1
        self.weight = nn.Parameter(torch.empty(kernel_size, width))

    def init_weights(self, config: MemoryConfig) -> None:
        init.uniform_(self.weight, -(len(self.weight) ** -0.5), len(self.weight) ** -0.5)  # as torch does

    def new_tail(self, batch: int, like: torch.Tensor) -> torch.Tensor:
        """That of new rows, `(batch, K - 1, E)`."""
        return like.new_zeros(batch, *self.weight[1:].shape)

    def forward(self, inputs: torch.Tensor, tail: torch.Tensor, segment: Segment) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            inputs: `(B, T, E)`, padding after the tokens.
            tail: `(B, K - 1, E)`, the inputs before the segment.
            segment: where the tokens stand.

        Returns:
            The output `(B, T, E)`, and the tail of the next segment.
        """
        weight, columns = self.weight, torch.cat([tail.to(inputs), inputs], dim=1)
        kept = segment.tail(columns, self.num_before)
        if segment.length == 1 and segment.document_ids is None:  # few operations
            return inputs + (columns * weight).sum(1, keepdim=True), kept
        outputs = torch.addcmul(inputs, inputs, weight[-1])
        for each, of_feature in zip(segment.earlier(columns, self.num_before), weight, strict=False):
            outputs = torch.addcmul(outputs, each, of_feature)
        return outputs, kept


__all__ = ["ShortConvolution"]
