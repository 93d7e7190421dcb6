"""The Boom layer: Merity, 2019, https://arxiv.org/abs/1911.11423 (`Boom` in the code)."""

import torch
from torch import nn

from transformers_xl.configuration.configuration_sha_rnn import ShaRNNConfig
from transformers_xl.modeling.layers.transformer_layer import FeedForward


class ChunkSum(nn.Module):
    """The sum of the chunks of `width` features; what is left after the last whole chunk is dropped."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        chunks = states.shape[-1] // self.width
        return states[..., : chunks * self.width].unflatten(-1, (chunks, self.width)).sum(dim=-2)


class Boom(FeedForward):
    """A feed-forward whose wide inner vector is summed in chunks: the way down has no matrix."""

    def __init__(self, config: ShaRNNConfig):
        super().__init__(config)
        if config.boom_shortcut:
            self.fc2 = ChunkSum(config.hidden_size)
