"""Large matrix products of float32 on x86 processors by oneDNN, a library that comes with torch.

Linear layers give their products to MKL, which uses half of the vector units of processors that are not Intel's: oneDNN
needs half of its time there (docs/performance.md). Sums are taken in another order, so that the last bits differ.

    with torch.backends.mkldnn.flags(enabled=False):  # as torch does it
        model(input_ids)
"""

import platform
from functools import partial

import torch
from torch import nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

# From which on it pays, since oneDNN prepares a product for some 10 us: numbers in the weight, or multiply-adds.
LARGE_WEIGHT, LARGE_PRODUCT = 2**18, 2**22
_is_x86 = platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()
_onednn_linear = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if _is_x86 else None


def linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`states @ weight.T + bias`, by oneDNN where it is faster.

    Args:
        states: `(..., inputs)`.
        weight: `(outputs, inputs)`.
        bias: `(outputs,)`.
    """
    if not _pays(states, weight):
        return nn.functional.linear(states, weight, bias)
    if torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad):
        return _OneDNNLinear.apply(states, weight, bias)
    return _product(states, weight, bias)


def use_fast_products(model: nn.Module) -> None:
    """Let the linear layers of `model` multiply by `linear`. They stay what they are, for quantization, adapters and
    hooks: only their `forward` is another one, as after `kernels.kernelize`."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.forward = partial(_forward, module)  # type: ignore[method-assign]


def _forward(layer: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    return linear(input, layer.weight, layer.bias)


def _pays(states: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        (weight.numel() >= LARGE_WEIGHT or states.numel() * weight.shape[0] >= LARGE_PRODUCT)
        and states.dtype == weight.dtype == torch.float32
        and states.device.type == weight.device.type == "cpu"
        # what something was made of (quantized, sharded, traced) knows how it is multiplied
        and type(states) in (torch.Tensor, nn.Parameter)
        and type(weight) in (torch.Tensor, nn.Parameter)
        and (weight.is_contiguous() or weight.mT.is_contiguous())
        and states.dim() > 1
        and states.numel() > 0
        and _onednn_linear is not None
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _product(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return _onednn_linear(states, weight, bias, "none", [], "")


class _OneDNNLinear(torch.autograd.Function):
    @staticmethod
    def forward(states, weight, bias) -> torch.Tensor:
        return _product(states, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: torch.Tensor) -> None:
        states, weight, bias = inputs
        ctx.save_for_backward(states, weight)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor) -> tuple:
        states, weight = ctx.saved_tensors
        rows, grad_rows = (tensor.flatten(0, -2).contiguous() for tensor in (states, grad_output))
        grad_states = linear(grad_output, weight.mT) if ctx.needs_input_grad[0] else None
        grad_weight = linear(grad_rows.mT, rows.mT) if ctx.needs_input_grad[1] else None
        return grad_states, grad_weight, grad_rows.sum(0) if ctx.has_bias else None


if _onednn_linear is not None and _onednn_linear not in flop_registry:  # code from the Hub may have been here first

    @register_flop_formula(_onednn_linear)
    def _flops(states_shape: tuple, weight_shape: tuple, *args, **kwargs) -> int:
        return 2 * torch.Size(states_shape).numel() * weight_shape[0]


__all__ = ["linear", "use_fast_products"]
