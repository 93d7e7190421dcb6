"""Words as waves over positions: Wang et al., 2020, https://arxiv.org/abs/1912.12333.

    f(j, p)_d = amplitude[j, d] exp(i (frequency[j, d] p + phase[j, d]))        word j, position p = 1, 2, ...

A complex vector is a real one of twice the width: real parts first, then imaginary parts.
"""

import math

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_complex_order_transformer import ComplexOrderTransformerConfig
from transformers_xl.modeling.layers.adaptive_embedding import AdaptiveEmbedding
from transformers_xl.modeling.layers.embedding import ScaledEmbedding
from transformers_xl.modeling.layers.transformer_layer import Dropout


def at_positions(waves: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The values `(B, T, E)` of `waves` (B, T, 3 E / 2), amplitudes, frequencies and phases, at `positions` (B, T).

    Angles are computed in float64, where the product of a float32 frequency and a position is exact up to position 2^29:
    float32 has lost the angle long before, at position 1,000,000 its steps are 1/16 radian.
    """
    amplitude, frequency, phase = waves.chunk(3, dim=-1)
    angle = frequency.double() * positions[..., None] + phase.double()
    return torch.cat([amplitude * part.to(waves.dtype) for part in (angle.cos(), angle.sin())], dim=-1)


class Frequencies(nn.Embedding):
    """In radians per token. They start log-uniform between 1 / 10000 and 1, the range of sinusoidal positions."""

    def init_weights(self, config: ComplexOrderTransformerConfig) -> None:
        exponents = torch.empty_like(self.weight).uniform_(-1, 0)
        init.copy_(self.weight, 10000**exponents)


class Phases(nn.Embedding):
    """At position 0, in radians. They start uniform."""

    def init_weights(self, config: ComplexOrderTransformerConfig) -> None:
        init.uniform_(self.weight, -math.pi, math.pi)


class WaveEmbedding(nn.Module):
    """The waves of words, `(batch, length)` ids to `(batch, length, 3 hidden_size / 2)`: see `at_positions`. A mixin of the
    embedding that gives amplitudes `(batch, length, hidden_size / 2)`.

    Frequencies and phases have a row per word or one for all, a column per dimension or one for all.
    """

    num_embeddings: int
    embedding_dim: int

    def __init__(self, config: ComplexOrderTransformerConfig):
        super().__init__(config)
        self.frequency = Frequencies(*self.table_size(config.frequency_per))
        self.phase = None if config.phase_per == "none" else Phases(*self.table_size(config.phase_per))

    def table_size(self, sharing: str) -> tuple[int, int]:
        """Rows and columns."""
        rows = 1 if sharing == "dimension" else self.num_embeddings
        return rows, 1 if sharing == "word" else self.embedding_dim

    def word_tables(self) -> list[nn.Embedding]:
        """Those of the tables of frequencies and phases that have a row per word."""
        tables = (self.frequency, self.phase)
        return [table for table in tables if table is not None and len(table.weight) == self.num_embeddings]

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        amplitude = super().forward(input_ids)
        per_word, first_row = self.word_tables(), torch.zeros_like(input_ids[:1, :1])
        frequency_and_phase = [
            torch.zeros_like(amplitude)
            if table is None
            else table(input_ids if table in per_word else first_row).expand_as(amplitude)
            for table in (self.frequency, self.phase)
        ]
        return torch.cat([amplitude, *frequency_and_phase], dim=-1)


class ComplexOrderEmbedding(WaveEmbedding, ScaledEmbedding):
    """Waves whose amplitudes stand in one table."""


class AdaptiveComplexOrderEmbedding(WaveEmbedding, AdaptiveEmbedding):
    """Waves whose amplitudes are narrower for rare words."""


class AmplitudeDropout(Dropout):
    """Dropout of waves: it drops amplitudes, so that both parts of a number go, and no frequency or phase changes."""

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        amplitude, frequency, phase = waves.chunk(3, dim=-1)
        return torch.cat([super().forward(amplitude), frequency, phase], dim=-1)
