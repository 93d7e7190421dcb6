"""Evaluation figures in which every token counts alike.

The loss in transformers is the mean over batches of their mean loss per token. A padded last segment counts like a full
one.
"""

from collections.abc import Mapping
from typing import Any, Self

import torch
from accelerate import Accelerator
from transformers import Trainer

from transformers_xl.data.score_units import bits_per, perplexity


class TokenSums:
    """The nats and tokens of an evaluation.

    Args:
        device: where they are summed.
        shared: what counts the tokens of all processes, where their losses are parts of one mean
            (`average_tokens_across_devices`).
    """

    def __init__(self, device: torch.device, shared: Accelerator | None = None):
        self.shared = shared
        self.sums = torch.zeros(2, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)

    @classmethod
    def of(cls, trainer: Trainer) -> Self:
        """Those of an evaluation by `trainer`."""
        return cls(trainer.args.device, trainer.accelerator if trainer.args.average_tokens_across_devices else None)

    def add(self, loss: torch.Tensor, targets: torch.Tensor) -> None:
        """The mean `loss` in nats over `targets`, of which -100 are none."""
        tokens = (targets != -100).sum().to(self.sums.device).float()
        if self.shared is not None:
            tokens = self.shared.reduce(tokens, "mean")
        if tokens:  # the loss of no token is nan
            self.sums += torch.stack([loss.detach() * tokens, tokens]).to(self.sums)

    def metrics(self, accelerator: Accelerator, counts: Any | None) -> Mapping[str, float]:
        """`loss` (nats per token), `perplexity`, `tokens`, and what `counts` of the text make of them: `bits_per_byte`,
        `bits_per_character`, `word_perplexity`. Nothing where nothing was added. Called on every process."""
        nats, tokens = accelerator.reduce(self.sums, "sum").tolist()
        if not tokens:
            return {}
        found = {"loss": nats / tokens, "perplexity": perplexity(nats, tokens), "tokens": int(tokens)}
        if counts is None:
            return found
        found["bits_per_byte"] = bits_per(nats, counts.bytes)
        if counts.characters:
            found["bits_per_character"] = bits_per(nats, counts.characters)
        if counts.words:
            found["word_perplexity"] = perplexity(nats, counts.words)
        return found


__all__ = ["TokenSums"]
