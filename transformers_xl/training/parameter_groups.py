"""Parameters that learn at a rate of their own: any module may name some.

A module declares them in a method `learning_rate_groups() -> dict[str, list[nn.Parameter]]`; groups of one name from all
modules are one group. `MemoryTrainingArguments(group_learning_rates={"values": 1e-3})` gives them rates.
"""

from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments


def learning_rate_groups(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The groups that the modules of `model` declare, without parameters that are frozen."""
    groups: dict[str, list[nn.Parameter]] = {}
    for module in model.modules():
        for name, parameters in getattr(module, "learning_rate_groups", dict)().items():
            groups.setdefault(name, []).extend(parameter for parameter in parameters if parameter.requires_grad)
    return {name: list(dict.fromkeys(parameters)) for name, parameters in groups.items() if parameters}


def check_groups(model: nn.Module | None, args: TrainingArguments) -> None:
    """Raise a `ValueError` where a rate cannot be meant, or where a group's gradients are not for the Trainer.

    Without `model` (it is made later, for a search of hyper-parameters) only the rates are looked at.
    """
    rates = getattr(args, "group_learning_rates", None) or {}
    if not isinstance(rates, dict):
        raise ValueError(f"`group_learning_rates`={rates!r} must be a dictionary of rates by group, or JSON of one.")
    for name, rate in rates.items():
        if not isinstance(rate, (int, float)) or rate <= 0:
            raise ValueError(
                f"`group_learning_rates`[{name!r}]={rate!r} must be a number above 0; leave the group out for "
                "`learning_rate`."
            )
    if model is None:
        return
    groups = learning_rate_groups(model)
    unknown = rates.keys() - groups.keys()
    if unknown:
        known = ", ".join(map(repr, sorted(groups))) or "none"
        raise ValueError(
            f"`group_learning_rates` names {', '.join(map(repr, sorted(unknown)))}: the groups that this model can learn "
            f"are {known}."
        )
    if any(getattr(module, "sparse", False) for module in model.modules()):
        raise ValueError(
            "`sparse_values`=True makes sparse gradients, which the Trainer's optimizers and its gradient clipping refuse: "
            "set `sparse_values=False`, or train in your own loop with `torch.optim.SparseAdam`."
        )


def decayed_names(model: nn.Module, names: list[str]) -> list[str]:
    """Those of the parameters `names` that weight decay is for: matrices. Spans and gates are vectors, as biases and gains
    of norms are, and not the smaller the better."""
    dims = {name: parameter.dim() for name, parameter in model.named_parameters(remove_duplicate=False)}
    return [name for name in names if dims[name] > 1]


def move_groups(optimizer: torch.optim.Optimizer, model: nn.Module | None, args: TrainingArguments) -> None:
    """Give the groups of `args.group_learning_rates` parameter groups of their own, whose peak rates they are. Schedules
    are those of all parameters."""
    check_groups(model, args)
    groups = {} if model is None else learning_rate_groups(model)
    for name, rate in (getattr(args, "group_learning_rates", None) or {}).items():
        members, split = set(groups[name]), []
        for group in list(optimizer.param_groups):
            moved = [parameter for parameter in group["params"] if parameter in members]
            if moved:
                group["params"] = [parameter for parameter in group["params"] if parameter not in members]
                split.append({**group, "params": moved, "lr": rate})
        if not split:
            raise ValueError(
                f"`group_learning_rates` names {name!r}, which `optim`={str(args.optim)!r} keeps elsewhere or which is "
                "part of another group: leave it out, or choose another optimizer."
            )
        _replace(optimizer, split)


def _replace(optimizer: torch.optim.Optimizer, split: list[dict[str, Any]]) -> None:
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
    for group in split:
        optimizer.add_param_group(group)


__all__ = ["check_groups", "decayed_names", "learning_rate_groups", "move_groups"]
