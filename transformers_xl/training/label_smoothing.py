"""Label smoothing (Szegedy et al., 2016, https://arxiv.org/abs/1512.00567, section 7) of targets that are shifted already.

The smoother of transformers shifts `labels` inside the segment, and replaces the model's loss with all its further terms.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from transformers_xl.modeling.adapters import without_adapters


@contextmanager
def smoothed_labels(model: nn.Module, smoothing: float) -> Iterator[None]:
    """Inside, the cross-entropy of `model`, or of the one that adapters stand in, is smoothed while it trains; its further
    terms are not."""
    language_model = without_adapters(model)
    if not smoothing or not model.training:
        yield
        return
    language_model.label_smoothing = smoothing
    try:
        yield
    finally:
        del language_model.label_smoothing


def check_smoothing(model: nn.Module | None, smoothing: float) -> None:
    """Refuse smoothing where the loss is not the cross-entropy over one softmax.

    Raises:
        ValueError: `model` is no language model, or has an adaptive softmax.
    """
    if not smoothing or model is None:
        return
    if getattr(model, "loss_type", None) not in ("ForCausalLM", "ForMaskedLM"):
        reason = f"{type(model).__name__} is no language model"
    elif getattr(model.config, "cutoffs", None):
        reason = "an adaptive softmax (`cutoffs`) does not form all probabilities"
    else:
        return
    raise ValueError(
        f"`label_smoothing_factor`={smoothing} smooths the targets of a full softmax over the vocabulary; {reason}: set "
        "`label_smoothing_factor=0`, or give a `compute_loss_func`."
    )


__all__ = ["check_smoothing", "smoothed_labels"]
