"""Token embeddings scaled by the square root of their width: Vaswani et al., 2017, section 3.4."""

import math

import torch
from torch import nn

from transformers_xl.configuration.configuration_memory import MemoryConfig


class ScaledEmbedding(nn.Embedding):
    """An embedding whose output is multiplied by the root of its width, unless `config.scale_embedding` is False.

    The scale is part of the module, so that `model(inputs_embeds=model.get_input_embeddings()(ids))` is `model(ids)`.
    """

    def __init__(self, config: MemoryConfig):
        super().__init__(config.vocab_size, config.token_width, config.pad_token_id)
        # PEFT scales what an adapter adds to the rows by this name
        self.embed_scale = math.sqrt(self.embedding_dim) if config.scale_embedding else 1.0

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids) * self.embed_scale
