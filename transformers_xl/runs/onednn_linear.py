"""Linear layers of float32 by oneDNN, a library of torch, where MKL is the slower one: on AMD's processors since Zen 5.

    accelerate_linear_layers(model)  # on these; as it is elsewhere
    use_onednn_linear(model)         # on any x86 processor
    use_torch_linear(model)          # back again

It is the same model: its layers are of a subclass of `nn.Linear`, with the parameters and hooks that they had. What is
saved, pickled or copied is plain. Sums are taken in another order, so that the last bits differ.
"""

import platform
from typing import Any, TypeVar

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import flop_registry, register_flop_formula

from transformers_xl.files.processor import processor

Model = TypeVar("Model", bound=nn.Module)

# From which on it pays, since oneDNN prepares every product: numbers in the weight, or multiply-adds.
LARGE_WEIGHT, LARGE_PRODUCT = 2**18, 2**22
ZEN_5 = 26  # the family that a processor names
_is_x86 = platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()
# Private names of torch, which not every release has: without one, products stay torch's own.
_onednn_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if _is_x86 else None
_peek_interpreter_stack = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", object)


class OneDNNLinear(nn.Linear):
    """An `nn.Linear` whose large products of float32 go to oneDNN."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(input, self.weight, self.bias)

    def __reduce_ex__(self, protocol) -> tuple:
        """Copies and pickles are plain: they need no class of this package, and `quantize_dynamic` knows no other."""
        return object.__new__, (nn.Linear,), self.__getstate__()


def accelerate_linear_layers(model: Model) -> Model:
    """`use_onednn_linear` where that pays on this processor; returns `model`.

    It asks what processor it is instead of measuring: runs of one training, and its processes, must agree to the last bit.
    """
    return use_onednn_linear(model) if gains_by_onednn() else model


def use_onednn_linear(model: Model) -> Model:
    """Let every plain `nn.Linear` in `model` multiply by oneDNN, in place; returns `model`.

    Other classes (adapters, quantized or parametrized layers) stay what they are.
    """
    return _with_class(model, nn.Linear, OneDNNLinear)


def use_torch_linear(model: Model) -> Model:
    """Undo `use_onednn_linear`, in place; returns `model`."""
    return _with_class(model, OneDNNLinear, nn.Linear)


def _with_class(model: Model, old: type[nn.Linear], new: type[nn.Linear]) -> Model:
    for module in model.modules():
        if type(module) is old:
            module.__class__ = new  # as parametrizations do it: whoever holds the layer holds it still
    return model


def gains_by_onednn() -> bool:
    """Whether the processor is AMD's and of Zen 5 or newer. There oneDNN was up to twice as fast as MKL; on Zen 4, whose
    AVX-512 units are half as wide, both were level, and one token was slower by oneDNN (docs/performance.md).
    """
    _, vendor, family, _ = processor()
    return vendor == "AuthenticAMD" and family is not None and family >= ZEN_5


def linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`states @ weight.T + bias`, by oneDNN where the product is large enough.

    Args:
        states: `(..., inputs)`.
        weight: `(outputs, inputs)`.
        bias: `(outputs,)`.
    """
    if not _pays(states, weight, bias):
        return nn.functional.linear(states, weight, bias)
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (states, weight, bias)):
        return _OneDNNFunction.apply(states, weight, bias)
    return _product(states, weight, bias)


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


class _OneDNNFunction(torch.autograd.Function):
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


if _onednn_linear is not None and _onednn_linear not in flop_registry:

    @register_flop_formula(_onednn_linear)
    def _flops(states_shape: tuple, weight_shape: tuple, *args, **kwargs) -> int:
        return 2 * torch.Size(states_shape).numel() * weight_shape[0]


__all__ = ["accelerate_linear_layers", "gains_by_onednn", "linear", "use_onednn_linear", "use_torch_linear"]
