"""The attention of SHA-RNN: Merity, 2019, https://arxiv.org/abs/1911.11423 (`Attention` and `Overparam` in the code)."""

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_sha_rnn import ShaRNNConfig
from transformers_xl.modeling.layers.activations import activation
from transformers_xl.modeling.layers.attention import MemoryAttention


class Overparameterization(nn.Module):
    """`sigmoid(f) * tanh(c)` with `[c, f] = W z + b`: a vector z by way of a matrix."""

    def __init__(self, width: int):
        super().__init__()
        self.proj = nn.Linear(width, 2 * width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        content, gate = self.proj(states).chunk(2, dim=-1)
        return gate.sigmoid() * content.tanh()


# B batch, T segment length, M memory length, E hidden size
class SingleHeadAttention(MemoryAttention):
    """Attention with one projection, that of the queries. Keys and values are the memory times a learned vector each:

        q = sigmoid(g_q) * norm(W_q x)        k = sigmoid(g_k) * m        v = G(sigmoid(g_v)) * m

    G is `Overparameterization`: it makes one vector for all tokens, so after the training that vector takes its place
    (`collapse`). There is no output projection.
    """

    def __init__(self, config: ShaRNNConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width = config.hidden_size
        self.q_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.query_gate, self.key_gate, self.value_gate = (nn.Parameter(torch.empty(width)) for _ in range(3))
        self.overparameterization = None if config.collapsed_gate else Overparameterization(width)
        if not config.project_keys:
            self.k_proj = nn.Identity()
        if not config.project_values:
            self.v_proj = nn.Identity()
        self.o_proj = nn.Identity()
        self.mix_proj = nn.Linear(2 * width, width, bias=config.attention_bias) if config.mix_query else None
        self.mix_gate = nn.Parameter(torch.empty(width)) if config.mix_query else None
        self.act_fn = activation(config.hidden_act)

    def init_weights(self, config: ShaRNNConfig) -> None:
        for gate in (self.query_gate, self.key_gate, self.value_gate):
            init.zeros_(gate)
        if self.mix_gate is not None:
            init.ones_(self.mix_gate)

    def gate_of_values(self) -> torch.Tensor:
        if self.overparameterization is None:
            return self.value_gate
        # as a row: quantized linear layers take no vectors
        return self.overparameterization(self.value_gate.sigmoid()[None])[0]

    @torch.no_grad()
    def collapse(self) -> None:
        """Keep the gate of the values itself, and drop the matrix that made it."""
        self.value_gate.copy_(self.gate_of_values())
        self.overparameterization = None

    def queries(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.split_heads(self.query_gate.sigmoid() * self.q_norm(self.q_proj(hidden_states)))

    def attend(self, query: torch.Tensor, *args, **kwargs) -> tuple[torch.Tensor, torch.Tensor | None]:
        # the gates of keys and values, on the few queries and outputs that meet them
        key_gate, value_gate = (
            each.view(-1, self.head_dim) for each in (self.key_gate.sigmoid(), self.gate_of_values())
        )
        attn_output, attn_weights = super().attend(query * key_gate[:, None], *args, **kwargs)
        attn_output = attn_output * value_gate
        if self.mix_proj is None or self.mix_gate is None:
            return attn_output, attn_weights
        mixed = attn_output.flatten(-2)
        added = self.mix_proj(torch.cat([mixed, query.transpose(1, 2).flatten(-2)], dim=-1))
        mixed = self.mix_gate.sigmoid() * mixed + self.act_fn(added)
        return mixed.view_as(attn_output), attn_weights
