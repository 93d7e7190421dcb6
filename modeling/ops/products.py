"""Large matrix products of float32 on x86 processors by oneDNN, a library that comes with torch.

Linear layers give their products to MKL; on the AMD processor of docs/performance.md oneDNN needs half of its time. Sums
are taken in another order, so that the last bits differ.

    with torch.backends.mkldnn.flags(enabled=False):  # as torch does it
        model(input_ids)
"""

import platform
from typing import TypeGuard

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module
from torch.utils.flop_counter import flop_registry, register_flop_formula

# From which on it pays, since oneDNN prepares every product: numbers in the weight, or multiply-adds.
LARGE_WEIGHT, LARGE_PRODUCT = 2**18, 2**22
_is_x86 = platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()
_onednn_linear = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if _is_x86 else None
# Private names of torch, which not every release has: without one, products stay torch's own.
_peek_interpreter_stack = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", object)
_LAYER_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _LAYER_HOOKS)


def linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`states @ weight.T + bias`, by oneDNN where it is faster.

    Args:
        states: `(..., inputs)`.
        weight: `(outputs, inputs)`.
        bias: `(outputs,)`.
    """
    if not _pays(states, weight, bias):
        return nn.functional.linear(states, weight, bias)
    has_bias = bias is not None
    if torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad or (has_bias and bias.requires_grad)):
        return _OneDNNLinear.apply(states, weight, bias)
    return _product(states, weight, bias)


def through(layer: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """`layer(states)`, by `linear` where the layer is an ordinary linear one that nobody watches or has changed."""
    return linear(states, layer.weight, layer.bias) if is_plain(layer) else layer(states)


def is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether calling `layer` is what `nn.Linear` does and nothing else: no adapter, quantization, offloading or hook."""
    return (
        type(layer) is nn.Linear
        and "forward" not in layer.__dict__
        and not any(getattr(layer, name, True) for name in _LAYER_HOOKS)
        and not any(getattr(torch_module, name, True) for name in _GLOBAL_HOOKS)
    )


def _pays(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return (
        # what something was made of (quantized, sharded, traced) knows how it is multiplied
        type(states) in (torch.Tensor, nn.Parameter)
        and type(weight) in (torch.Tensor, nn.Parameter)
        and (weight.numel() >= LARGE_WEIGHT or states.numel() * weight.shape[0] >= LARGE_PRODUCT)
        and (bias is None or type(bias) in (torch.Tensor, nn.Parameter))
        and states.dtype == weight.dtype == torch.float32
        and states.device.type == weight.device.type == "cpu"
        and (weight.is_contiguous() or weight.mT.is_contiguous())
        and (bias is None or (bias.is_contiguous() and bias.dtype == torch.float32 and bias.device.type == "cpu"))
        and states.dim() > 1
        and states.numel() > 0
        and _onednn_linear is not None
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        # tangents, and transformations of functions, know torch's own operations
        and getattr(forward_ad, "_current_level", 0) < 0
        and _peek_interpreter_stack() is None
    )


def _product(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return _onednn_linear(states, weight, bias, "none", [], "")


class _OneDNNLinear(torch.autograd.Function):
    @staticmethod
    def forward(states, weight, bias) -> torch.Tensor:
        return _product(states, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: torch.Tensor) -> None:
        states, weight, _ = inputs
        learns_states, learns_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(states if learns_weight else None, weight if learns_states else None)

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor) -> tuple:
        states, weight = ctx.saved_tensors
        learns_states, learns_weight, learns_bias = ctx.needs_input_grad
        grad_rows = grad_output.flatten(0, -2).contiguous()
        return (
            linear(grad_output, weight.mT) if learns_states else None,
            linear(grad_rows.mT, states.flatten(0, -2).contiguous().mT) if learns_weight else None,
            grad_rows.sum(0) if learns_bias else None,
        )


if _onednn_linear is not None and _onednn_linear not in flop_registry:  # code from the Hub may have been here first

    @register_flop_formula(_onednn_linear)
    def _flops(states_shape: tuple, weight_shape: tuple, *args, **kwargs) -> int:
        return 2 * torch.Size(states_shape).numel() * weight_shape[0]


__all__ = ["is_plain", "linear", "through"]
