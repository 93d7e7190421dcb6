"""Token embeddings scaled by the square root of their width: Vaswani et al., 2017, section 3.4."""

import math

import torch
from torch import nn

from transformers_xl.configuration.configuration_memory import MemoryConfig


def padding_of(config: MemoryConfig) -> int | None:
    """The token of padding; None: there is none, as -1 says in older configs, where torch would take the last token.

    Raises:
        ValueError: it is no token.
    """
    pad = config.pad_token_id
    if pad is not None and pad >= config.vocab_size:
        raise ValueError(
            f"`pad_token_id`={pad} must be below `vocab_size`={config.vocab_size}: set a larger vocabulary, or another "
            "token."
        )
    return None if pad is None or pad < 0 else pad


class ScaledEmbedding(nn.Embedding):
    """An embedding whose output is multiplied by the root of its width, unless `config.scale_embedding` is False.

    The scale is part of the module, so that `model(inputs_embeds=model.get_input_embeddings()(ids))` is `model(ids)`.
    """

    def __init__(self, config: MemoryConfig):
        super().__init__(config.vocab_size, config.token_width, padding_of(config))
        # PEFT scales what an adapter adds to the rows by this name
        self.embed_scale = math.sqrt(self.embedding_dim) if config.scale_embedding else 1.0

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids) * self.embed_scale
