"""Embeddings of the n-grams that end with a token, in tables that they share by a hash.

Hashed n-grams: Joulin et al., 2017, https://arxiv.org/abs/1607.01759 (fastText), for the bytes of a language model Pagnoni
et al., 2024, https://arxiv.org/abs/2412.09871 (BLT), section 3.2.1.
"""

import math

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_streaming_transformer import StreamingTransformerConfig
from transformers_xl.modeling.memory.segment import Segment

PRIME, MULTIPLIER = 2**31 - 1, 742_938_285  # products of two numbers below fit into 63 bits


# B batch, T segment length, N the longest n-gram, G lengths of n-grams, E hidden size
class NgramEmbedding(nn.Module):
    """The sum of the vectors of the n-grams that end with a token, one for each of `config.ngram_orders`.

        row = (sum_k factor_k (id_{t-k} + 1) mod p) mod rows          https://doi.org/10.1016/0022-0000(79)90044-8

    An n-gram that would begin before its text has zeros there. What is remembered are the last N - 1 `id + 1`.
    """

    def __init__(self, config: StreamingTransformerConfig):
        super().__init__()
        self.orders, self.rows = list(config.ngram_orders), config.ngram_table_size
        self.num_before = self.orders[-1] - 1
        self.factors = [pow(MULTIPLIER, power, PRIME) for power in range(1, self.orders[-1] + 1)]
        self.weight = nn.Parameter(torch.empty(len(self.orders) * self.rows, config.hidden_size))
        self.embed_scale = math.sqrt(config.hidden_size) if config.scale_embedding else 1.0

    def init_weights(self, config: StreamingTransformerConfig) -> None:
        own = config.embedding_initializer_range
        init.normal_(self.weight, mean=0.0, std=0.5 * (config.initializer_range if own is None else own))

    def find(
        self, input_ids: torch.Tensor | None, last: torch.Tensor, segment: Segment
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """
        Args:
            input_ids: `(B, T)`, padding after the tokens; None: the tokens have none.
            last: `(B, N - 1)` integers, those before the segment as `id + 1`; 0: none.
            segment: where the tokens stand.

        Returns:
            The rows of the table of each token, `(B, T, G)`, None without ids; and `last` of the next segment.
        """
        # codes do not fit into int32
        ids = last.new_zeros(len(last), segment.length) if input_ids is None else input_ids.long() + 1
        columns = torch.cat([last, ids], dim=1)[..., None]
        tail = segment.tail(columns, self.num_before)[..., 0]
        if input_ids is None:
            return None, tail
        code = ids * self.factors[0]
        found: list[torch.Tensor] = []
        for number, each in enumerate(reversed(segment.earlier(columns, self.num_before)), 1):
            code = (code + each[..., 0] * self.factors[number]) % PRIME
            if number + 1 in self.orders:
                found.append(code % self.rows + len(found) * self.rows)
        return torch.stack(found, dim=-1), tail

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """`(B, T, G)` to `(B, T, E)`."""
        return nn.functional.embedding(rows, self.weight).sum(-2) * self.embed_scale


__all__ = ["NgramEmbedding"]
