"""The Infini-Transformer in plain loops, from the equations of Munkhdalai et al., 2024, https://arxiv.org/abs/2404.07143.

A text is a list of positions, of which n, n + 1, .. n + N - 1 are a block if N divides n. A token attends to those of its
block, and reads the M and z that earlier blocks have left; the last token of a block writes it. What a call finds has no
gradient.
"""

import math
from dataclasses import dataclass, field

import torch
from reference import part
from torch.nn import functional as F


@dataclass
class Text:
    """What one layer has read of one text: the inputs of the block that is open, and by heads M and z, None before the
    first block was written."""

    inputs: list[torch.Tensor] = field(default_factory=list)
    matrix: list[torch.Tensor] | None = None
    normalizer: list[torch.Tensor] | None = None

    def detach(self) -> None:
        self.inputs = [each.detach() for each in self.inputs]
        if self.matrix is not None:
            self.matrix, self.normalizer = (
                [each.detach() for each in all_] for all_ in (self.matrix, self.normalizer)
            )

    def retrieve(self, head: int, vector: torch.Tensor) -> torch.Tensor | float:
        """Equation (3) for one query, or key, that is positive."""
        return 0.0 if self.matrix is None else vector @ self.matrix[head] / (vector @ self.normalizer[head])


def turned(vector: torch.Tensor, place: int, theta: float | None) -> torch.Tensor:
    """Features m and m + D/2 as a complex number, turned by `place` times its angle."""
    if theta is None:
        return vector
    width = len(vector) // 2
    angles = torch.tensor([place * theta ** (-2 * m / len(vector)) for m in range(width)], dtype=vector.dtype)
    product = torch.complex(vector[:width], vector[width:]) * torch.complex(angles.cos(), angles.sin())
    return torch.cat([product.real, product.imag])


def positive(vector: torch.Tensor) -> torch.Tensor:
    """ELU(x) + 1."""
    return torch.stack([x + 1 if x > 0 else x.exp() for x in vector])


class Naive:
    """`state` is that of an `InfiniTransformerModel`, whose gradients autograd finds."""

    def __init__(self, state: dict[str, torch.Tensor], config):
        self.state, self.config = state, config
        self.texts = [Text() for _ in range(config.num_hidden_layers)]

    def norm(self, states: torch.Tensor, prefix: str) -> torch.Tensor:
        weights = [self.state[f"{prefix}.{name}"] for name in ("weight", "bias")]
        return F.layer_norm(states, (self.config.hidden_size,), *weights, self.config.layer_norm_eps)

    def attend(self, hidden_state: torch.Tensor, text: Text, prefix: str) -> torch.Tensor:
        """A of one token, through the output projection."""
        weights, pre = part(self.state, f"{prefix}.self_attn."), self.config.norm_position == "pre"
        text.inputs.append(hidden_state)
        block = [self.norm(each, f"{prefix}.input_layernorm") if pre else each for each in text.inputs]
        queries, keys, values = (
            [(weights[f"{name}_proj.weight"] @ each).view(self.config.num_attention_heads, -1) for each in block]
            for name in "qkv"
        )
        mixed, written = [], []
        for head, beta in enumerate(weights["memory_gate"]):
            query, key, value = ([each[head] for each in all_] for all_ in (queries, keys, values))
            theta = self.config.rope_theta
            asks = turned(query[-1], len(block) - 1, theta)
            scores = [asks @ turned(each, place, theta) / math.sqrt(len(asks)) for place, each in enumerate(key)]
            weight = torch.stack(scores).softmax(0)
            local = sum(share * each for share, each in zip(weight, value, strict=True))
            retrieved = text.retrieve(head, positive(query[-1]))
            gate = 1 / (1 + (-beta).exp())
            mixed.append(gate * retrieved + (1 - gate) * local)
            written.append(self.written(head, [positive(each) for each in key], value, text))
        if len(block) == self.config.mem_len:
            text.inputs, (text.matrix, text.normalizer) = [], zip(*written, strict=True)
        return weights["o_proj.weight"] @ torch.cat(mixed)

    def written(self, head: int, keys: list, values: list, text: Text) -> tuple[torch.Tensor, torch.Tensor]:
        """Equations (4) and (5): M and z with all of a block."""
        if self.config.memory_update == "delta":
            values = [value - text.retrieve(head, key) for key, value in zip(keys, values, strict=True)]
        matrix = sum(torch.outer(key, value) for key, value in zip(keys, values, strict=True))
        before = (0.0, 0.0) if text.matrix is None else (text.matrix[head], text.normalizer[head])
        return before[0] + matrix, before[1] + sum(keys)

    def read(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The last hidden states `(length, hidden_size)` of a call."""
        pre, results = self.config.norm_position == "pre", []
        for text in self.texts:
            text.detach()
        for token in input_ids:
            x = self.state["embed_tokens.weight"][token] * math.sqrt(self.config.hidden_size)
            for index, text in enumerate(self.texts):
                prefix = f"layers.{index}"
                x = x + self.attend(x, text, prefix)
                x = x if pre else self.norm(x, f"{prefix}.input_layernorm")
                mlp = part(self.state, f"{prefix}.mlp.")
                inner = self.norm(x, f"{prefix}.post_attention_layernorm") if pre else x
                inner = (mlp["fc1.weight"] @ inner + mlp["fc1.bias"]).relu()
                x = x + mlp["fc2.weight"] @ inner + mlp["fc2.bias"]
                x = x if pre else self.norm(x, f"{prefix}.post_attention_layernorm")
            results.append(self.norm(x, "norm") if pre else x)
        return torch.stack(results)
