"""Large matrix products of float32 on x86 processors by oneDNN, a library that comes with torch.

Linear layers give their products to MKL, which uses half of the vector units of processors that are not Intel's: oneDNN
needs half of its time there (docs/performance.md). Sums are taken in another order, so that the last bits differ.

    with torch.backends.mkldnn.flags(enabled=False):  # as torch does it
        model(input_ids)
"""

import platform
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry, register_flop_formula

# Multiply-adds from which on it pays: oneDNN prepares a product for some 10 us.
WORTH = 2**22
_plain_linear = nn.functional.linear
_is_x86 = platform.machine() in ("x86_64", "AMD64")
_onednn_linear = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if _is_x86 else None


def linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`states @ weight.T + bias`, by oneDNN where it is faster.

    Args:
        states: `(..., inputs)`.
        weight: `(outputs, inputs)`.
        bias: `(outputs,)`.
    """
    if not _pays(states, weight):
        return _plain_linear(states, weight, bias)
    if torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad):
        return _OneDNNLinear.apply(states, weight, bias)
    return _product(states, weight, bias)


def _pays(states: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        states.numel() * weight.shape[0] >= WORTH
        and states.dtype == weight.dtype == torch.float32
        and states.device.type == weight.device.type == "cpu"
        # what something was made of (quantized, sharded, traced) knows how it is multiplied
        and {type(states), type(weight)} <= {torch.Tensor, nn.Parameter}
        and (weight.is_contiguous() or weight.mT.is_contiguous())
        and not torch.is_autocast_enabled("cpu")
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


class _FastProducts(TorchFunctionMode):
    """Linear layers of any kind come to `linear`: hooks, adapters and quantization see the layers that they know."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is _plain_linear:
            function = linear
        return function(*args, **(kwargs or {}))


def fast_products(states: torch.Tensor) -> AbstractContextManager:
    """Where linear layers read `states` `(..., width)`: their products are made by `linear` if it can pay for them."""
    width = 4 * states.shape[-1]  # of the widest layer that is usual
    pays = (
        states.numel() * width >= WORTH
        and states.dtype == torch.float32
        and states.device.type == "cpu"
        and _onednn_linear is not None
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and not torch.compiler.is_compiling()
    )
    return _FastProducts() if pays else nullcontext()


class FastProducts(nn.Module):
    """A module whose linear layers use `fast_products`. It stands behind `GradientCheckpointingLayer`, so that what is
    computed again is computed alike."""

    def __call__(self, states: torch.Tensor, *args, **kwargs):
        with fast_products(states):
            return super().__call__(states, *args, **kwargs)


if _onednn_linear is not None and _onednn_linear not in flop_registry:  # code from the Hub may have been here first

    @register_flop_formula(_onednn_linear)
    def _flops(states_shape: tuple, weight_shape: tuple, *args, out_shape: tuple, **kwargs) -> int:
        *rows, inputs = states_shape
        return 2 * torch.Size(rows).numel() * inputs * weight_shape[0]


__all__ = ["FastProducts", "fast_products", "linear"]
