"""The Compressive Transformer in plain loops, from the equations of Rae et al., 2019, https://arxiv.org/abs/1911.05507.

A text is a list of positions. Position i has left the window of token j when i <= j - mem_len. Block n is the positions
n c .. n c + c - 1. Token j sees its window, and of the blocks whose positions all have left it the newest ones, the newest
at distance `mem_len`, each block before it one further. Without `same_length` a token sees what its call began with, and
the earlier tokens of the call.
"""

import math
from dataclasses import dataclass, field

import torch
from reference import part, sinusoid
from torch.nn import functional as F


@dataclass
class Text:
    """What one layer has read of one text: its inputs, and the compressed vectors by the number of their block."""

    inputs: list[torch.Tensor] = field(default_factory=list)
    blocks: dict[int, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def fresh(cls, config, dtype: torch.dtype) -> "Text":
        if config.initial_memory == "empty":
            return cls()
        zeros = torch.zeros(config.hidden_size, dtype=dtype)
        return cls([zeros] * config.mem_len, dict.fromkeys(range(-config.compressed_mem_len, 0), zeros))


class Naive:
    """`state` is that of a `CompressiveTransformerForCausalLM`, whose gradients autograd finds."""

    def __init__(self, state: dict[str, torch.Tensor], config):
        self.state, self.config = state, config
        self.bias = part(state, "model.positions.bias.")
        dtype = self.bias["content_bias"].dtype
        self.texts = [Text.fresh(config, dtype) for _ in range(config.num_hidden_layers)]

    def norm(self, states: torch.Tensor, prefix: str, learns: bool = True) -> torch.Tensor:
        weights = [self.state[f"{prefix}.{name}"] for name in ("weight", "bias")]
        weights = weights if learns else [weight.detach() for weight in weights]
        return F.layer_norm(states, (self.config.hidden_size,), *weights, self.config.layer_norm_eps)

    def compress(self, states: torch.Tensor, prefix: str) -> torch.Tensor:
        """`(c, hidden_size)` -> `(hidden_size,)`."""
        if self.config.compression_function == "mean":
            return states.sum(0) / len(states)
        if self.config.compression_function == "max":
            return states.max(0).values
        weight, bias = self.state[f"{prefix}.conv.weight"], self.state[f"{prefix}.conv.bias"]
        return weight @ states.flatten() + bias

    def what_is_seen(self, text: Text, start: int, query: int) -> list[tuple[torch.Tensor, int]]:
        """The vectors that token `query` of a call that began at `start` sees, each with its distance."""
        rate, mem_len = self.config.compression_rate, self.config.mem_len
        if self.config.same_length:
            first, blocks, window = max(query - mem_len + 1, 0), (query + 1 - mem_len) // rate, mem_len
        else:
            blocks = max(start - mem_len, 0) // rate
            first = blocks * rate
            window = query - first + 1
        seen = [(text.inputs[i], query - i) for i in range(first, query + 1)]
        for rank in range(self.config.compressed_mem_len):
            if blocks - 1 - rank in text.blocks:
                seen.append((text.blocks[blocks - 1 - rank].detach(), window + rank))
        return seen

    def attend(self, weights: dict, query_input: torch.Tensor, seen: list[tuple[torch.Tensor, int]]) -> torch.Tensor:
        heads, width = self.config.num_attention_heads, self.config.head_dim
        query = (weights["q_proj.weight"] @ query_input).view(heads, width)
        scores = []
        for states, distance in seen:
            key = (weights["k_proj.weight"] @ states).view(heads, width)
            relative = sinusoid(distance, self.config.hidden_size, self.config.clamp_len, key.dtype)
            relative = (weights["r_proj.weight"] @ relative).view(heads, width)
            by_content = ((query + self.bias["content_bias"]) * key).sum(-1)
            scores.append((by_content + ((query + self.bias["position_bias"]) * relative).sum(-1)) / math.sqrt(width))
        probabilities = torch.stack(scores).softmax(dim=0)
        values = torch.stack([(weights["v_proj.weight"] @ states).view(heads, width) for states, _ in seen])
        return weights["o_proj.weight"] @ (probabilities[..., None] * values).sum(0).flatten()

    def read_by_content(self, weights: dict, query_inputs: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """What each token takes from a memory `(n, hidden_size)`, without positions, biases and output projection."""
        heads, width = self.config.num_attention_heads, self.config.head_dim
        taken = []
        for states in query_inputs.detach():
            query = (weights["q_proj.weight"].detach() @ states).view(heads, width)
            keys = (memory @ weights["k_proj.weight"].detach().T).view(-1, heads, width)
            values = (memory @ weights["v_proj.weight"].detach().T).view(-1, heads, width)
            probabilities = ((query * keys).sum(-1) / math.sqrt(width)).softmax(dim=0)
            taken.append((probabilities[..., None] * values).sum(0))
        return torch.stack(taken)

    def layer(self, index: int, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Output of a layer for the tokens of a call `(T, hidden_size)`, and its reconstruction loss."""
        config, text, name = self.config, self.texts[index], f"model.layers.{index}"
        first_norm, second_norm = f"{name}.input_layernorm", f"{name}.post_attention_layernorm"
        weights, is_pre = part(self.state, f"{name}.self_attn."), config.norm_position == "pre"
        start = len(text.inputs)
        text.inputs = [each.detach() for each in text.inputs] + list(hidden)

        old, compressed = [], []
        done, left = (max(count - config.mem_len, 0) // config.compression_rate for count in (start, len(text.inputs)))
        for number in range(done, left):
            here = slice(number * config.compression_rate, (number + 1) * config.compression_rate)
            old += [states.detach() for states in text.inputs[here]]
            compressed.append(self.compress(torch.stack(text.inputs[here]).detach(), f"{name}.compression"))
            text.blocks[number] = compressed[-1]

        outputs = []
        for t in range(len(hidden)):
            seen = self.what_is_seen(text, start, start + t)
            seen = [(self.norm(states, first_norm) if is_pre else states, distance) for states, distance in seen]
            outputs.append(self.attend(weights, self.norm(hidden[t], first_norm) if is_pre else hidden[t], seen))
        loss = self.reconstruction(weights, first_norm, hidden, old, compressed)

        hidden = hidden + torch.stack(outputs)
        hidden = hidden if is_pre else self.norm(hidden, first_norm)
        feed_forward = part(self.state, f"{name}.mlp.")
        inner = self.norm(hidden, second_norm) if is_pre else hidden
        inner = F.relu(inner @ feed_forward["fc1.weight"].T + feed_forward["fc1.bias"])
        hidden = hidden + inner @ feed_forward["fc2.weight"].T + feed_forward["fc2.bias"]
        return hidden if is_pre else self.norm(hidden, second_norm), loss

    def reconstruction(
        self, weights: dict, norm: str, hidden: torch.Tensor, old: list[torch.Tensor], compressed: list[torch.Tensor]
    ) -> torch.Tensor:
        if not compressed:
            return hidden.new_zeros(())
        queries, target, made = hidden, torch.stack(old), torch.stack(compressed)
        if self.config.norm_position == "pre":
            queries, target, made = (self.norm(each, norm, learns=False) for each in (queries, target, made))
        difference = self.read_by_content(weights, queries, made) - self.read_by_content(weights, queries, target)
        return difference.square().mean()

    def read(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One call: logits `(T, vocab)` of ids `(T,)`, and the reconstruction loss, the sum of all layers."""
        embedding = self.state["model.embed_tokens.weight"]
        hidden, losses = embedding[input_ids] * math.sqrt(self.config.hidden_size), []
        for index in range(self.config.num_hidden_layers):
            hidden, loss = self.layer(index, hidden)
            losses.append(loss)
        if self.config.use_final_norm:
            hidden = self.norm(hidden, "model.norm")
        return hidden @ embedding.T + self.state["lm_head.bias"], sum(losses)
