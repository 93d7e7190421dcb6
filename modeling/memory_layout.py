"""The order of the tensors in `mems`: the one place that knows it.

    mems = (inputs of layer 0, .., inputs of layer L-1,  states of layer 0, .., states of layer L-1)

`inputs` are the last positions that the attention of a layer read, `(batch, <=mem_len, hidden_size)`, newest last. States
are those of `config.layer_states`, `(batch, ...)`, in its order. A model may have only one of the two.
"""

from typing import NamedTuple

import torch

from transformers_xl.configuration.configuration_memory import MemoryConfig


class MemoryTensor(NamedTuple):
    """What one tensor of `mems` is: `shape` is without the batch, None for a number of positions up to the memory's."""

    layer: int
    name: str
    shape: tuple[int | None, ...]


class MemoryLayout:
    """Names the tensors of `mems`.

    ```python
    for layer, memory in enumerate(model.layout.split(output.mems)):
        print(layer, {name: tuple(tensor.shape) for name, tensor in memory.items()})
    ```
    """

    def __init__(self, config: MemoryConfig):
        self.num_inputs = len(config.layer_mem_lens)
        self.num_layers = len(config.layer_windows)
        self.state_shapes = config.layer_states
        self.hidden_size = config.hidden_size

    @property
    def tensors(self) -> list[MemoryTensor]:
        """What each tensor of `mems` is, in their order."""
        inputs = [MemoryTensor(layer, "inputs", (None, self.hidden_size)) for layer in range(self.num_inputs)]
        states = [
            MemoryTensor(layer, name, shape)
            for layer in range(self.num_layers)
            for name, shape in self.state_shapes.items()
        ]
        return inputs + states

    def inputs(self, mems: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The inputs of every layer."""
        return tuple(mems[: self.num_inputs])

    def states(self, mems: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, ...]]:
        """The states of every layer, in the order of `config.layer_states`."""
        states, count = mems[self.num_inputs :], len(self.state_shapes)
        return [tuple(states[count * layer : count * (layer + 1)]) for layer in range(self.num_layers)]

    def join(
        self, inputs: tuple[torch.Tensor, ...], states: list[tuple[torch.Tensor, ...]]
    ) -> tuple[torch.Tensor, ...]:
        """`mems` of the inputs and the states of every layer."""
        return (*inputs, *(state for layer in states for state in layer))

    def split(self, mems: tuple[torch.Tensor, ...]) -> list[dict[str, torch.Tensor]]:
        """The tensors of every layer by name.

        Raises:
            ValueError: `mems` has another number of tensors.
        """
        self.check(mems)
        layers: list[dict[str, torch.Tensor]] = [{} for _ in range(max(self.num_inputs, self.num_layers))]
        for (layer, name, _), tensor in zip(self.tensors, mems, strict=True):
            layers[layer][name] = tensor
        return layers

    def check(self, mems: tuple[torch.Tensor, ...]) -> None:
        """Refuse what is no tuple of this layout's tensors."""
        count = self.num_inputs + self.num_layers * len(self.state_shapes)
        if isinstance(mems, (tuple, list)) and len(mems) == count:
            return
        states = ", ".join(self.state_shapes)
        contents = "one per layer" if self.num_inputs else states
        contents += f", then of each layer {states}" if self.num_inputs and states else ""
        given = f"a {type(mems).__name__}" + (f" of length {len(mems)}" if hasattr(mems, "__len__") else "")
        raise ValueError(f"`mems` is {given}: it must be a tuple of {count} tensors, {contents}.")


__all__ = ["MemoryLayout", "MemoryTensor"]
