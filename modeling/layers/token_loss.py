"""What a prediction costs: the one loss of heads, of training and of evaluation.

Of a large vocabulary no tensor of length x vocabulary is made: logits are made, used and forgotten for a few tokens at a
time, and made again for the gradient. The slices are checkpoints of torch, around a call of the head: what the head has
beside its matrix (a bias, a scale, a soft cap, adapters, a quantized weight) stays its own affair. torch's
`linear_cross_entropy`, TRL's `fused_lm_head` and Liger's kernels take the matrix itself, and none of these but the bias;
torch has the first since 2.13 only, and Liger runs on GPUs.
"""

from collections.abc import Callable

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from transformers_xl.modeling.ops.columns import is_symbolic

# logits that are made at a time, 128 MiB of float32; fewer make a large head slow, since each slice reads all of its matrix
LOGITS_AT_A_TIME = 2**25


def cross_entropy_in_slices(
    head: Callable[[torch.Tensor], torch.Tensor],
    states: torch.Tensor,
    targets: torch.Tensor,
    vocab_size: int,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """`-log p` of each token, in nats, by the logits that `head` makes of its state.

    Args:
        head: states `(tokens, width)` to logits `(tokens, vocab_size)`.
        states: `(batch, length, width)`.
        targets: `(batch, length)`; -100: none, the loss is 0.
        vocab_size: how many logits a token has.
        label_smoothing: the share of a target that is spread over the vocabulary.

    Returns:
        Losses `(batch, length)`, computed in float32 at least.
    """

    def losses_of(states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = head(states)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits, targets.to(logits.device), reduction="none", label_smoothing=label_smoothing)

    rows, words = states.flatten(0, -2), targets.flatten()
    size = max(1, LOGITS_AT_A_TIME // vocab_size)
    is_graded = torch.is_grad_enabled()
    if (is_graded and len(rows) <= size) or is_symbolic(rows):
        return losses_of(rows, words).view(targets.shape)
    is_target = words != -100
    is_whole = bool(is_target.all())
    if not is_whole:  # the head is not asked where nothing is predicted
        rows, words = rows[is_target.to(rows.device)], words[is_target]
    slices = zip(rows.split(size), words.split(size), strict=True)
    losses = torch.cat(
        [checkpoint(losses_of, *each, use_reentrant=False) if is_graded else losses_of(*each) for each in slices]
    )
    if not is_whole:
        losses = losses.new_zeros(targets.numel()).masked_scatter(is_target.to(losses.device), losses)
    return losses.view(targets.shape)


def token_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    """`-log p` of each token, in nats, by logits that are there; float32 ones are made of a few at a time.

    Args:
        logits: `(batch, length, vocab)`.
        targets, label_smoothing: as in [`cross_entropy_in_slices`].

    Returns:
        Losses `(batch, length)`, computed in float32 at least.
    """
    return cross_entropy_in_slices(lambda logits: logits, logits, targets, logits.shape[-1], label_smoothing)


__all__ = ["cross_entropy_in_slices", "token_cross_entropy"]
