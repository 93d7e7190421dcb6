"""Optimizers of papers that transformers' `optim` lacks."""

from typing import Any

import torch
from transformers import TrainingArguments

from transformers_xl.hub.installing import pip_install


def check_optimizer(args: TrainingArguments) -> None:
    """Raise a `ValueError` where `args.optimizer` is not known, or what it comes from is not installed."""
    name = getattr(args, "optimizer", None)
    if name is None:
        return
    if name != "lamb":
        raise ValueError(f"`optimizer`={name!r} is not known: 'lamb' is; others are chosen by `optim`.")
    _lamb()


def lamb_and_kwargs(args: TrainingArguments) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """LAMB (You et al., 2020, https://arxiv.org/abs/1904.00962) as NVIDIA's Transformer-XL has it: without bias correction,
    norms of weights up to 10. Weight decay is a part of the update, as in the paper."""
    return _lamb(), {
        "lr": args.learning_rate,
        "betas": (args.adam_beta1, args.adam_beta2),
        "eps": args.adam_epsilon,
        "weight_decouple": False,
        "adam_debias": True,  # else the package divides the step by 1 - beta1^t
    }


def _lamb() -> type[torch.optim.Optimizer]:
    try:
        from pytorch_optimizer import Lamb
    except ImportError as error:
        raise ValueError(f"`optimizer`='lamb' needs the package pytorch_optimizer: {pip_install('lamb')}.") from error
    return Lamb


__all__ = ["check_optimizer", "lamb_and_kwargs"]
