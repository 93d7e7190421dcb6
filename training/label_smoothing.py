"""Label smoothing (Szegedy et al., 2016, https://arxiv.org/abs/1512.00567, section 7) of targets that are shifted already.

The smoother of transformers shifts `labels` inside the segment, and replaces the model's loss with all its further terms.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from transformers_xl.modeling.layers.adaptive_softmax import mean_loss
from transformers_xl.modeling.layers.token_loss import token_cross_entropy


def smoothed_loss(
    logits: torch.Tensor,
    labels: None,
    vocab_size: int,
    shift_labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    smoothing: float = 0.0,
    **kwargs: Any,
) -> torch.Tensor:
    """The loss of a language model in nats, for targets of which `smoothing` is spread over the vocabulary."""
    targets = shift_labels.to(logits.device)
    return mean_loss(token_cross_entropy(logits, targets, smoothing), targets, num_items_in_batch)


@contextmanager
def smoothed_labels(model: nn.Module, smoothing: float) -> Iterator[None]:
    """Inside, the losses that `model` takes of its logits are smoothed, while it trains; its further terms are not."""
    if not smoothing or not model.training:
        yield
        return
    loss: Any = partial(smoothed_loss, smoothing=smoothing)
    model.loss_function = loss
    try:
        yield
    finally:
        del model._loss_function


def check_smoothing(model: nn.Module | None, smoothing: float) -> None:
    """Refuse smoothing where the loss is not the cross-entropy over one softmax.

    Raises:
        ValueError: `model` is no language model, or has an adaptive softmax.
    """
    if not smoothing or model is None:
        return
    if getattr(model, "loss_type", None) != "ForCausalLM":
        reason = f"{type(model).__name__} is no language model"
    elif getattr(model.config, "cutoffs", None):
        reason = "an adaptive softmax (`cutoffs`) does not form all probabilities"
    else:
        return
    raise ValueError(
        f"`label_smoothing_factor`={smoothing} smooths the targets of a full softmax over the vocabulary; {reason}: set "
        "`label_smoothing_factor=0`, or give a `compute_loss_func`."
    )


__all__ = ["check_smoothing", "smoothed_labels", "smoothed_loss"]
