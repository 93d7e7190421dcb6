"""Token embeddings scaled by the square root of their width: Vaswani et al., 2017, section 3.4."""

import math

import torch
from torch import nn

from transformers_xl.configuration.configuration_memory import MemoryConfig


class ScaledEmbedding(nn.Embedding):
    """An embedding whose output is multiplied by the root of its width.

    The scale is part of the module, so that `model(inputs_embeds=model.get_input_embeddings()(ids))` is `model(ids)`.
    """

    def __init__(self, config: MemoryConfig):
        super().__init__(config.vocab_size, config.token_width, config.pad_token_id)

    @property
    def embed_scale(self) -> float:
        """The root of the width, under the name by which PEFT scales what an adapter adds to the rows."""
        return math.sqrt(self.embedding_dim)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids) * self.embed_scale
