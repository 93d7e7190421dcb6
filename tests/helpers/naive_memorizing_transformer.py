"""The Memorizing Transformer in a loop over tokens, heads and keys: Wu et al., 2022, https://arxiv.org/abs/2203.08913."""

import torch
from naive_block_recurrent import Naive as NaiveLocal


class Naive(NaiveLocal):
    """Reads one row from its beginning. Attributes: `chosen`, of each token and head which keys it was given, by their
    place in the text."""

    def __init__(self, parameters: dict[str, torch.Tensor], config):
        self.chosen: list[list[list[int]]] = []
        super().__init__(parameters, config)

    def layer(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        self.reading = layer
        return super().layer(x, layer)

    def attend(self, query, keys: list, values: list, scale: str, biases: list | None = None) -> torch.Tensor:
        local = super().attend(query, keys, values, scale, biases)
        if self.reading not in self.config.memory_layers:
            return local
        gate = self[f"model.layers.{self.reading}.self_attn.memory_gate"].sigmoid()[:, None]
        found = self.retrieve(query, self[f"{scale}.weight"].abs())
        return (gate * found + (1 - gate) * local.view_as(found)).flatten()

    def retrieve(self, query: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """What the heads find, `(heads, dim)`, among the keys of the complete blocks before the token's own."""
        zeros = self.config.mem_len if self.config.initial_memory == "zeros" else 0  # they stand in the window alone
        text = range(zeros, len(self.keys[self.reading]))
        whole = (len(text) - 1) // self.config.block_length * self.config.block_length
        searched = list(text)[max(whole - self.config.num_memory_keys, 0) : whole]
        keys, values = ([each[self.reading][place] for place in searched] for each in (self.keys, self.values))
        found, chosen = [], []
        for head in range(self.heads):
            scores = [(query[head] @ key[head]).item() for key in keys]
            best = sorted(range(len(keys)), key=lambda index: -scores[index])[: self.config.num_retrieved]
            chosen.append([searched[index] - zeros for index in best])
            exponentials = [(scale[head] * (query[head] @ keys[index][head].detach())).exp() for index in best]
            divisor = sum(exponentials)
            if self.config.attend_to_empty:
                divisor = divisor + self.config.num_retrieved - len(best)
            sums = [each * values[index][head].detach() for each, index in zip(exponentials, best, strict=True)]
            found.append(sum(sums) / divisor if best else torch.zeros_like(query[head]))
        self.chosen.append(chosen)
        return torch.stack(found)
