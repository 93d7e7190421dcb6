"""The next token of every row of a batch, each with its own settings and random numbers.

What a row gets follows from its logits and its own numbers alone: rows are computed together only where each of them would
be computed in the same way by itself.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch

from transformers_xl.serve.text_request import TextRequest, TokenLogprob

GREEDY = -1
MIN_TEMPERATURE = 1e-4  # below it logits that are divided may be infinite: the most likely token alone is left


# B rows of a batch, b rows of a group, V words
class SamplingGroup(NamedTuple):
    """Rows that are sampled in the same way.

    Args:
        width: how many of the most likely tokens may be chosen, in order; 0: all, in no order; `GREEDY`: the first.
        rows: which rows; None: all of the batch.
        temperature, top_p: `(b, 1)`.
        random: draws the numbers of each row.
    """

    width: int
    rows: torch.Tensor | None
    temperature: torch.Tensor
    top_p: torch.Tensor
    random: list[Random]

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """The tokens `(b,)` of `logits` `(b, V)`."""
        if self.width == GREEDY:
            return logits.argmax(-1)
        scores, order = logits / self.temperature, None
        if self.width > 0:
            scores, order = scores.topk(self.width)
        probs = scores.softmax(-1)
        if order is not None:
            before = probs.cumsum(-1) - probs
            before[:, 0] = -1.0
            probs = probs.masked_fill(before >= self.top_p, 0.0)
        sums = probs.cumsum(-1)
        drawn = torch.tensor([[each.random()] for each in self.random], dtype=sums.dtype, device=sums.device)
        # below the sum, so that no token without probability is chosen
        total = sums[:, -1:]
        below = (drawn * total).minimum(total.nextafter(torch.zeros_like(total)))
        index = torch.searchsorted(sums, below, right=True)
        return (index if order is None else order.gather(-1, index))[:, 0]


class RowSampling:
    """How the rows of a batch are sampled: made again when a row enters or leaves.

    Args:
        requests: of each row.
        random: draws the numbers of each row.
        like: logits `(B, V)`.
    """

    def __init__(self, requests: Sequence[TextRequest], random: Sequence[Random], like: torch.Tensor):
        widths: dict[int, list[int]] = {}
        for row, request in enumerate(requests):
            widths.setdefault(_width(request, like.shape[-1]), []).append(row)
        dtype = torch.promote_types(like.dtype, torch.float32)

        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=like.device)[:, None]

        self.groups = [
            SamplingGroup(
                width,
                None if len(widths) == 1 else torch.tensor(rows, device=like.device),
                column([requests[row].temperature for row in rows]),
                column([requests[row].top_p for row in rows]),
                [random[row] for row in rows],
            )
            for width, rows in widths.items()
        ]

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """The tokens `(B,)` of `logits` `(B, V)`."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if len(self.groups) == 1:
            return self.groups[0].choose(logits)
        tokens = torch.empty(len(logits), dtype=torch.long, device=logits.device)
        for group in self.groups:
            tokens[group.rows] = group.choose(logits[group.rows])
        return tokens


def _width(request: TextRequest, vocab_size: int) -> int:
    if request.temperature < MIN_TEMPERATURE:
        return GREEDY
    if 0 < request.top_k < vocab_size:
        return request.top_k
    return vocab_size if request.top_p < 1 else 0


def logprobs_of(logits: torch.Tensor, token_ids: torch.Tensor, counts: Sequence[int]) -> list[TokenLogprob]:
    """Log-probabilities of tokens `(b,)` by `logits` `(b, V)`, each with so many of the most likely ones."""
    logprobs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    own = logprobs.gather(-1, token_ids[:, None])[:, 0].tolist()
    values, ids = (each.tolist() for each in logprobs.topk(min(max(counts), logits.shape[-1])))
    return [
        TokenLogprob(token_id, logprob, tuple(zip(some_ids[:count], some_values[:count], strict=True)))
        for token_id, logprob, count, some_ids, some_values in zip(
            token_ids.tolist(), own, counts, ids, values, strict=True
        )
    ]


__all__ = ["RowSampling", "SamplingGroup", "logprobs_of"]
