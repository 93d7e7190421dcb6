"""The largest tensor that a computation makes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """The largest result of any operation, in numbers: `numel`, also of gradients. `dtype`, `width`: of tensors of this
    type, or of this size in their last dimension, alone."""

    def __init__(self, dtype: torch.dtype | None = None, width: int | None = None):
        super().__init__()
        self.dtype, self.width, self.numel = dtype, width, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if not isinstance(tensor, torch.Tensor) or self.dtype not in (None, tensor.dtype):
                continue
            if self.width is None or (tensor.dim() and tensor.shape[-1] == self.width):
                self.numel = max(self.numel, tensor.numel())
        return result
