"""Linear maps, norm, feed-forward and attention of complex vectors: Wang et al., 2020, https://arxiv.org/abs/1912.12333.

A complex vector is a real one of twice the width: real parts first, then imaginary parts.
"""

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_complex_order_transformer import ComplexOrderTransformerConfig
from transformers_xl.modeling.layers.attention import MemoryAttention
from transformers_xl.modeling.layers.transformer_layer import FeedForward, SublayerLayerNorm
from transformers_xl.modeling.layers.uniform_start import start_uniform
from transformers_xl.modeling.ops.relative_attention import masked_softmax


def times_i(states: torch.Tensor) -> torch.Tensor:
    """i z: the real parts become the imaginary ones, the imaginary parts minus the real ones."""
    real, imaginary = states.chunk(2, dim=-1)
    return torch.cat([-imaginary, real], dim=-1)


def modulus(real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
    """|x + i y|. Its gradient at 0 is 0: what is clamped has none, where that of the root alone is infinite."""
    squared = real.square() + imaginary.square()
    return squared.clamp(min=torch.finfo(squared.dtype).tiny).sqrt()


class ComplexLinear(nn.Module):
    """`W z + b` with a complex matrix W, whose real parts are the first half of the rows of `weight`.

    W (x + i y) = W x + i W y, so that it is one real product with both parts.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features // 2))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def init_weights(self, config: ComplexOrderTransformerConfig) -> None:
        if config.linear_initializer == "uniform":
            start_uniform(self.parameters(), self.weight.shape[1])
            return
        init.normal_(self.weight, mean=0.0, std=config.initializer_range)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        of_real, of_imaginary = nn.functional.linear(states.unflatten(-1, (2, -1)), self.weight).unbind(-2)
        mapped = of_real + times_i(of_imaginary)
        return mapped if self.bias is None else mapped + self.bias


class ComplexLayerNorm(SublayerLayerNorm):
    """One layer norm, for the real parts and for the imaginary parts."""

    def __init__(self, config: ComplexOrderTransformerConfig):
        super().__init__(config, size=config.hidden_size // 2)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return super().forward(states.unflatten(-1, (2, -1))).flatten(-2)


class ComplexFeedForward(FeedForward):
    """`fc2(act(fc1(z)))` with complex maps; the activation acts on each part."""

    def __init__(self, config: ComplexOrderTransformerConfig):
        super().__init__(config)
        self.fc1 = ComplexLinear(config.hidden_size, config.intermediate_size)
        self.fc2 = ComplexLinear(config.intermediate_size, config.hidden_size)


# B batch, T segment length, K = memory + T, H heads, D head dim: D / 2 real parts, then D / 2 imaginary parts
class ComplexAttention(MemoryAttention):
    """Attention by the modulus of the complex product of query and key.

        score[i, j] = |sum_d q_i[d] conj(k_j[d])| / sqrt(D / 2)        z_i = sum_j weight[i, j] v_j

    Its real part is the product of the real vectors, its imaginary part that with i q. The weights are real. It is computed
    in plain steps whatever `attn_implementation` says.

    Differs from the original: the key is conjugated, so that a common turn of query and key does not move the score, and
    that the score of two waves hangs on the difference of their positions. The language model of the released code counts
    one product twice in the imaginary part, where q_im . k_re is missing.
    """

    def __init__(self, config: ComplexOrderTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        inner_size = config.num_attention_heads * config.head_dim
        self.scaling = (config.head_dim // 2) ** -0.5
        self.q_proj = ComplexLinear(config.hidden_size, inner_size, bias=config.attention_bias)
        self.k_proj = ComplexLinear(config.hidden_size, inner_size, bias=config.attention_bias)
        self.v_proj = ComplexLinear(config.hidden_size, inner_size, bias=config.attention_bias)
        self.o_proj = ComplexLinear(inner_size, config.hidden_size, bias=config.attention_bias)

    def split_heads(self, states: torch.Tensor) -> torch.Tensor:
        return states.unflatten(-1, (2, self.num_heads, -1)).movedim(-2, 1).flatten(-2)  # [B, H, K, D]

    def attend_with_bias(self, query, key, value, bias, visible, **kwargs):
        """Output `(B, T, 2, H D / 2)`, the two parts with the heads of each side by side, and weights `(B, H, T, K)`."""
        query = query * self.scaling
        real, imaginary = (part @ key.transpose(-1, -2) for part in (query, times_i(query)))
        weights = masked_softmax(modulus(real, imaginary), visible)
        attended = nn.functional.dropout(weights, p=self.attention_dropout, training=self.training) @ value
        return attended.unflatten(-1, (2, -1)).permute(0, 2, 3, 1, 4).flatten(-2), weights
