"""What a prediction costs: the one loss of heads, of training and of evaluation."""

import torch
from torch.nn import functional as F


def token_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """`-log p` of each token, in nats.

    Args:
        logits: `(batch, length, vocab)`; computed in float32 at least.
        targets: `(batch, length)`; -100: none, the loss is 0.
        label_smoothing: the share of a target that is spread over the vocabulary.

    Returns:
        Losses `(batch, length)`.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none", label_smoothing=label_smoothing)


__all__ = ["token_cross_entropy"]
