"""Attention with rotary positions, and norms of queries and keys: Su et al., 2021, https://arxiv.org/abs/2104.09864; Henry
et al., 2020, https://arxiv.org/abs/2010.04245, in the form of Dehghani et al., 2023, https://arxiv.org/abs/2302.05442."""

import torch
from torch import nn

from transformers_xl.configuration.configuration_memory import MemoryConfig
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.layers.rotary_positions import Rotation
from transformers_xl.modeling.memory.memory_cache import Tensors
from transformers_xl.modeling.memory.segment import LayerContext


# B batch, T segment length, K = columns of the memory + T, H heads, D head dim, E hidden size
class RotaryAttention(MemoryAttention):
    """Queries and keys are normalised in each head, have a gain for each feature, and are turned by the places of their
    tokens. Keys are turned when they are made: those that are remembered never move.
    """

    def __init__(self, config: MemoryConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.q_norm = nn.LayerNorm(config.head_dim, eps=config.layer_norm_eps, bias=False)
        self.k_norm = nn.LayerNorm(config.head_dim, eps=config.layer_norm_eps, bias=False)

    def queries(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.q_norm(super().queries(hidden_states))

    def project(self, hidden_states: torch.Tensor) -> Tensors:
        """Keys and values, each `(B, H, n, D)`; the keys not yet turned."""
        key, value = super().project(hidden_states)
        return self.k_norm(key), value

    def attend_to_past(
        self, hidden_states: torch.Tensor, past: Tensors, rotation: Rotation, context: LayerContext, **kwargs
    ) -> tuple[torch.Tensor, Tensors]:
        """What the segment `(B, T, E)` attends to in `[past; segment]`, `(B, T, E)`; and the keys and values that are
        remembered."""
        key, value = self.project(hidden_states)
        columns, kept = context.append(past, (rotation.turn(key), value))
        attn_output, _ = self(hidden_states, *columns, context, rotation=rotation, **kwargs)
        return attn_output, kept

    def attend(self, query, key, value, context, rotation: Rotation, **kwargs):
        """`rotation`: of the queries; the keys are turned."""
        return super().attend(rotation.turn(query), key, value, context, **kwargs)


__all__ = ["RotaryAttention"]
