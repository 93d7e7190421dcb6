"""Optimizers of papers that transformers' `optim` lacks, and the weights that an optimizer can step."""

from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments

from transformers_xl.hub.installing import pip_install
from transformers_xl.training.muon import MuonAndAdamW


def check_optimizer(args: TrainingArguments) -> None:
    """Raise a `ValueError` where `args.optimizer` is not known, or what it comes from is not installed."""
    name = getattr(args, "optimizer", None)
    if name is None:
        return
    if name not in ("lamb", "muon"):
        raise ValueError(f"`optimizer`={name!r} is not known: 'lamb' and 'muon' are; others are chosen by `optim`.")
    if name == "lamb":
        _lamb()
    elif not hasattr(torch.optim, "Muon"):
        raise ValueError(f"`optimizer`='muon' needs torch 2.9, and this is {torch.__version__}: install a newer one.")
    elif args.fsdp:
        raise ValueError(
            f"`optimizer`='muon' needs whole matrices, which `fsdp`={args.fsdp!r} shards: leave `fsdp` out (DDP), or "
            "choose another optimizer."
        )


def check_precision(model: nn.Module | None) -> None:
    """Check that the weights that are trained are float32 at least. In half precision a weight has 8 (bfloat16) or 11
    significant bits: most steps are less than half of the last one, and change nothing.

    Raises:
        ValueError: some are not.
    """
    weights = [] if model is None else [each for each in model.named_parameters() if each[1].requires_grad]
    coarse = [(name, weight.dtype) for name, weight in weights if weight.dtype.itemsize < 4]
    if coarse:
        name, dtype = coarse[0]
        raise ValueError(
            f"`model` would be trained in {dtype} ({len(coarse)} of {len(weights)} weights, such as {name!r}), which "
            "rounds most steps of an optimizer to nothing: load it with `from_pretrained(..., dtype=torch.float32)`, or "
            "call `model.float()`. `bf16=True` computes in bfloat16 with these weights. To keep a large base in half "
            "precision, train adapters (LoRA), whose weights are float32."
        )


def optimizer_and_kwargs(args: TrainingArguments) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The class that `args.optimizer` names, and what it is made with."""
    if getattr(args, "optimizer", None) == "lamb":
        return lamb_and_kwargs(args)
    betas = args.adam_beta1, args.adam_beta2
    return MuonAndAdamW, {"lr": args.learning_rate, "betas": betas, "eps": args.adam_epsilon}


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


__all__ = ["check_optimizer", "check_precision", "optimizer_and_kwargs"]
