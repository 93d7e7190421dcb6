"""Muon for the matrices of layers and AdamW for the rest, as one optimizer: one to schedule, to save and to resume.

Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/; the rate that fits both: Liu et al., 2025,
https://arxiv.org/abs/2502.16982, section 2.2. Both updates are torch's.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from transformers_xl.modeling.adapters import without_adapters


class MuonAndAdamW(torch.optim.Optimizer):
    """AdamW, and Muon for what `use_muon` names. A step of Muon is as long as one of AdamW is: they share rate and decay.

    Args:
        params: parameters or groups of them, as torch's optimizers take them.
        lr, betas, eps: of AdamW; `lr` of both.
        momentum: of Muon.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
    ):
        none = [torch.zeros(1, 1)]  # their parameters are given to them for each step
        self.adamw = torch.optim.AdamW(none, lr, betas, eps, weight_decay)
        self.muon = torch.optim.Muon(none, lr, weight_decay, momentum, adjust_lr_fn="match_rms_adamw")
        super().__init__(params, self.adamw.defaults | {"is_muon": False})

    def use_muon(self, matrices: Iterable[torch.Tensor]) -> None:
        """Let Muon step these `matrices`, in groups of their own, which keep their decay and rate.

        Raises:
            ValueError: one is no matrix.
        """
        chosen = set(matrices)
        if wrong := [tuple(each.shape) for each in chosen if each.dim() != 2]:
            raise ValueError(f"`matrices` has a parameter of shape {wrong[0]}: Muon steps matrices alone.")
        for group in list(self.param_groups):
            moved = [each for each in group["params"] if each in chosen]
            if moved:
                group["params"] = [each for each in group["params"] if each not in chosen]
                kept = {name: value for name, value in group.items() if name in ("lr", "weight_decay")}
                self.add_param_group(self.muon.defaults | kept | {"params": moved, "is_muon": True})
        self.param_groups[:] = [group for group in self.param_groups if group["params"]]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in (self.adamw, self.muon):
            part.param_groups = [group for group in self.param_groups if group["is_muon"] == (part is self.muon)]
            part.state = self.state
            part.step()
        return loss


def matrices_of_layers(model: nn.Module) -> list[torch.Tensor]:
    """The weights of the linear maps inside of a model that are trained, adapters among them: not those of a head, of an
    embedding, of a convolution or of a recurrent network, nor the words of an output layer."""
    model = without_adapters(model)
    body = getattr(model, "base_model", model)
    outputs = getattr(model, "get_output_embeddings", lambda: None)()
    words = {id(each) for each in (() if outputs is None else outputs.parameters())}
    weights = [module.weight for module in body.modules() if isinstance(module, nn.Linear)]
    return [
        each for each in dict.fromkeys(weights) if each.requires_grad and each.dim() == 2 and id(each) not in words
    ]


__all__ = ["MuonAndAdamW", "matrices_of_layers"]
