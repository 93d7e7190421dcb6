"""The order of the tensors in `mems`: the one place that knows it.

    mems = (windows of layer 0, .., L-1,    other memories of layer 0, .., L-1,    those of the model)

Every tensor has the batch first. A window is `(batch, <=mem_len, hidden_size)`, newest last.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from transformers_xl.modeling.memory.layer_memory import LayerMemory, Memory, Shape
from transformers_xl.modeling.memory.window_memory import WindowMemory
from transformers_xl.modeling.ops.rolling_buffer import Tensors


class MemoryPart(NamedTuple):
    """One memory: of which layer (None: of the model), and its name there."""

    layer: int | None
    name: str
    memory: Memory


class MemoryTensor(NamedTuple):
    """What one tensor of `mems` is: `shape` is without the batch, None for columns up to the memory's length."""

    layer: int | None
    name: str
    shape: Shape

    def __str__(self) -> str:
        return f"`{self.name}` of " + ("the model" if self.layer is None else f"layer {self.layer}")


class SplitMemory(NamedTuple):
    """The tensors of `mems` by name: of every layer, and of the model itself."""

    layers: list[dict[str, torch.Tensor]]
    model: dict[str, torch.Tensor]


class MemoryLayout:
    """Names the tensors of `mems`.

    ```python
    for layer, memory in enumerate(model.layout.split(output.mems).layers):
        print(layer, {name: tuple(tensor.shape) for name, tensor in memory.items()})
    ```
    """

    def __init__(self, layers: Sequence[LayerMemory], own: LayerMemory = ()):
        of_layers = [part for layer_idx, layer in enumerate(layers) for part in _parts(layer, layer_idx)]
        windows = [part for part in of_layers if isinstance(part.memory, WindowMemory)]
        others = [part for part in of_layers if not isinstance(part.memory, WindowMemory)]
        self.parts: list[MemoryPart] = [*windows, *others, *_parts(own, None)]
        self.num_layers, self.num_windows = len(layers), len(windows)

    @property
    def tensors(self) -> list[MemoryTensor]:
        """What each tensor of `mems` is, in their order."""
        return [
            MemoryTensor(part.layer, part.name + ending, shape)
            for part in self.parts
            for ending, shape in part.memory.shapes.items()
        ]

    def windows(self, mems: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The tensors `(B, <=mem_len, width)` that `mems_mask` speaks of."""
        return tuple(mems[: self.num_windows])

    def grouped(self, mems: Sequence[torch.Tensor]) -> Iterator[Tensors]:
        """The tensors of each memory."""
        tensors = iter(mems)
        return (tuple(next(tensors) for _ in part.memory.shapes) for part in self.parts)

    def join(self, groups: Sequence[Tensors]) -> tuple[torch.Tensor, ...]:
        """`mems` of the tensors of each memory."""
        return tuple(tensor for group in groups for tensor in group)

    def split(self, mems: Sequence[torch.Tensor]) -> SplitMemory:
        """The tensors of every layer by name.

        Raises:
            ValueError: `mems` has another number of tensors.
        """
        self.check(mems)
        split = SplitMemory([{} for _ in range(self.num_layers)], {})
        for (layer, name, _), tensor in zip(self.tensors, mems, strict=True):
            (split.model if layer is None else split.layers[layer])[name] = tensor
        return split

    def check(self, mems: Sequence[torch.Tensor]) -> None:
        """Refuse what is no tuple of this layout's tensors."""
        tensors = self.tensors
        if isinstance(mems, (tuple, list)) and len(mems) == len(tensors):
            return
        given = f"a {type(mems).__name__}" + (f" of length {len(mems)}" if hasattr(mems, "__len__") else "")
        names = ", ".join(dict.fromkeys(tensor.name for tensor in tensors))
        raise ValueError(
            f"`mems` is {given}: it must be a tuple of {len(tensors)} tensors ({names}), as `model.layout.tensors` names "
            "them."
        )


def _parts(memories: LayerMemory, layer: int | None) -> list[MemoryPart]:
    names = getattr(memories, "_fields", ())
    return [MemoryPart(layer, name, memory) for name, memory in zip(names, memories, strict=True)]


__all__ = ["MemoryLayout", "MemoryTensor", "SplitMemory"]
