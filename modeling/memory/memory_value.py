"""What a model remembers, as one value: every tensor has the batch first, nothing is changed in place.

    output = model(ids)                          # `output.mems` is a `Memory`
    output = model(more_ids, mems=output.mems)
    model.generate(ids, mems=output.mems)

Every row ends at the right: its newest column is the last one, and a row that remembers less has unused columns on its
left.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import nn

from transformers_xl.modeling.memory.memory_file import load_memory, save_memory


class LayerMemory(NamedTuple):
    """What one layer remembers.

    Args:
        columns: one vector a position, the newest last: `(inputs,)` `(batch, columns, hidden_size)`, of which keys and
            values are projected again with a gradient for their weights; or `(keys, values, ..)`, each `(batch, heads,
            columns, head_dim)`: with `use_cache=True`, or always where a layer says so. Empty where it has no window.
        state: tensors `(batch, ..)` that a call replaces: of a recurrent network, a matrix. The layer says which.
        older: columns that are read beside the window, `(batch, .., columns, width)`: compressed, or looked up.
    """

    columns: tuple[torch.Tensor, ...] = ()
    state: tuple[torch.Tensor, ...] = ()
    older: tuple[torch.Tensor, ...] = ()

    @property
    def num_columns(self) -> int:
        """Number of columns, the unused ones of a row included."""
        return self.columns[0].shape[-2] if self.columns else 0

    def newest(self, count: int) -> Self:
        """With at most `count` columns in the window."""
        if self.num_columns <= count:
            return self
        return self._replace(columns=tuple(each.narrow(-2, each.shape[-2] - count, count) for each in self.columns))


class Memory(NamedTuple):
    """What a model remembers of every row of a batch.

    Args:
        layers: of each layer. One that remembers fewer columns has the newest.
        lengths: `(batch,)` integers, how many columns of the longest window are real: the newest.
        tokens_read: `(batch,)` integers, how many tokens of its text each row has read.
        state: tensors `(batch, ..)` that the model itself remembers.
    """

    layers: tuple[LayerMemory, ...]
    lengths: torch.Tensor
    tokens_read: torch.Tensor
    state: tuple[torch.Tensor, ...] = ()

    @property
    def batch_size(self) -> int:
        """Number of rows."""
        return len(self.lengths)

    @property
    def num_columns(self) -> int:
        """Columns of the longest window, the unused ones of a row included."""
        return max([0, *(layer.num_columns for layer in self.layers)])  # TorchDynamo knows no `default`

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors: of the longest row, for each row."""
        return sum(each.nbytes for each in self.named_tensors().values())

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """The memory with `function` applied to every tensor."""
        return _map(function, self)

    def to(
        self,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> Self:
        """On another device; a type is that of the floating-point tensors."""
        return self.map(
            lambda each: each.to(device, dtype if each.is_floating_point() else None, non_blocking=non_blocking)
        )

    def rows(self, rows: torch.Tensor | slice | Sequence[int]) -> Self:
        """Some rows, in this order: a slice, numbers, or a mask `(batch,)`.

        Raises:
            ValueError: `rows` is one number, or has several axes.
        """
        if isinstance(rows, slice):
            return self.map(lambda each: each[rows])
        numbers = torch.as_tensor(rows)
        if numbers.dim() != 1:
            raise ValueError(f"`rows`={rows!r} must be a slice, or numbers or a mask along one axis, such as [0, 2].")
        numbers = numbers if len(numbers) else numbers.long()
        return self.map(lambda each: each[numbers.to(each.device)])

    def repeat(self, repeats: int) -> Self:
        """Every row `repeats` times, side by side."""
        return self.map(lambda each: each.repeat_interleave(repeats, 0))

    def detach(self) -> Self:
        """Without the graph that made it."""
        return self.map(lambda each: each.detach() if each.requires_grad else each)

    def newest(self, counts: Sequence[int]) -> Self:
        """With at most so many columns in the window of each layer."""
        layers = tuple(layer.newest(count) for layer, count in zip(self.layers, counts, strict=True))
        most = max([0, *counts])
        lengths = self.lengths if self.num_columns <= most else self.lengths.clamp(max=most)
        return self._replace(layers=layers, lengths=lengths)

    def without(self, tokens: int) -> Self:
        """With the newest `tokens` of every row taken back, of a memory that has only windows."""
        layers = tuple(
            layer._replace(columns=tuple(each[..., : max(each.shape[-2] - tokens, 0), :] for each in layer.columns))
            for layer in self.layers
        )
        lengths, tokens_read = ((each - tokens).clamp(min=0) for each in (self.lengths, self.tokens_read))
        return self._replace(layers=layers, lengths=lengths, tokens_read=tokens_read)

    def save(
        self,
        path: str | os.PathLike,
        model: nn.Module,
        unread_ids: torch.Tensor | Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Write it to a file of safetensors, whole or not at all: what was there before stays where that fails.

        Args:
            model: the one that made it. The file says which: its type, its configuration, hashes of its weights.
            unread_ids: `(batch, n)` integers, tokens that the memory does not hold yet: `result.sequences[:, -1:]` of
                `generate()`.

        Raises:
            ValueError: it is not a memory of this model, or `unread_ids` are no tokens of its rows.
            OSError: the disk refuses.
        """
        save_memory(path, self, model, unread_ids)

    @classmethod
    def load(cls, path: str | os.PathLike, model: nn.Module) -> "SavedMemory":
        """What `save` wrote, bit for bit and in its types, on the device of `model`, which then resumes the text.

        Raises:
            ValueError: the file is none, is damaged or was changed, or another model made it; nothing is loaded.
        """
        return SavedMemory(*load_memory(path, model, cls.from_named_tensors))

    def named_tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor by its name: `layers.0.columns.1`, `lengths`; what a file of safetensors holds."""
        return dict(_named(self, ""))

    @classmethod
    def from_named_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """The memory of what `named_tensors` gave.

        Raises:
            ValueError: a name is missing, or one is unknown.
        """
        numbered: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            field, _, number = name.rpartition(".")
            numbered.setdefault(field, {})[number] = tensor

        def of(field: str) -> tuple[torch.Tensor, ...]:
            found = numbered.get(field, {})
            return tuple(found[str(index)] for index in range(len(found)) if str(index) in found)

        numbers = [field.split(".")[1] for field in numbered if field.startswith("layers.")]
        count = 1 + max((int(number) for number in numbers if number.isdecimal() and len(number) < 5), default=-1)
        layers = [
            LayerMemory(*(of(f"layers.{index}.{each}") for each in LayerMemory._fields)) for index in range(count)
        ]
        missing = [name for name in ("lengths", "tokens_read") if name not in tensors]
        if missing:
            raise ValueError(f"`{missing[0]}` is not among the tensors of a memory: they have {sorted(tensors)[:4]}.")
        memory = cls(tuple(layers), tensors["lengths"], tensors["tokens_read"], of("state"))
        if unknown := tensors.keys() - memory.named_tensors().keys():
            raise ValueError(f"`{min(unknown)}` is no name of a memory's tensor: see `Memory.named_tensors`.")
        return memory


class SavedMemory(NamedTuple):
    """What a file holds.

    Args:
        memory: of every row.
        unread_ids: `(batch, n)` integers, tokens that the memory does not hold yet; None: none were saved.
    """

    memory: Memory
    unread_ids: torch.Tensor | None


def cat_memories(memories: Sequence[Memory]) -> Memory:
    """The rows of all memories in one batch; windows of fewer columns get unused ones on their left. Where some layers of
    one remembered less when it was made (before `resize_memory`), the windows of these layers are cut.

    Raises:
        ValueError: there are none, they are of different models, or one has inputs where another has keys and values.
    """
    if not memories:
        raise ValueError("`memories` is empty: give at least one.")
    names = [each.named_tensors() for each in memories]
    for number, other in enumerate(names):
        if other.keys() != names[0].keys():
            raise ValueError(
                f"`memories`[{number}] has other tensors than the first: all must come from one model, and all from calls "
                "with `use_cache=True` (as `generate()` makes them) or all from calls without."
            )
        for name, tensor in other.items():
            if _of_one_row(tensor) != _of_one_row(names[0][name]):
                raise ValueError(
                    f"`memories`[{number}] has a `{name}` of shape {tuple(tensor.shape)}, and the first one of shape "
                    f"{tuple(names[0][name].shape)}: all must come from one model."
                )
    counts = {
        f"layers.{index}.columns.{number}": count
        for index, count in enumerate(_joined_counts(memories))
        for number in range(len(memories[0].layers[index].columns))
    }

    def joined(name: str) -> torch.Tensor:
        tensors = [each[name] for each in names]
        if tensors[0].dim() <= 2:
            return torch.cat(tensors)
        count = counts.get(name, max(each.shape[-2] for each in tensors))
        return torch.cat([with_count(each, count) for each in tensors])

    return Memory.from_named_tensors({name: joined(name) for name in names[0]})


def _of_one_row(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape that tensors of different memories share: without the batch, and of columns without their number."""
    shape = tuple(tensor.shape[1:])
    return shape if len(shape) < 2 else (*shape[:-2], shape[-1])


def _joined_counts(memories: Sequence[Memory]) -> list[int]:
    """Columns of each layer's window, where these memories stand side by side: those of the longest, but no more than one
    has that is short of columns, because its layer remembered less when they were made."""
    counts = []
    for layers in zip(*(memory.layers for memory in memories), strict=True):
        numbers = [layer.num_columns for layer in layers]
        pairs = zip(numbers, memories, strict=True)
        short = [each for each, memory in pairs if each < min(max(numbers), memory.num_columns)]
        counts.append(min([max(numbers), *short]))
    return counts


def with_columns_of(memory: Memory, other: Memory) -> Memory:
    """The memory with as many columns in each window as the `other` one: the newest ones, or unused ones on their left. The
    shortest window that grows so says how many are real: those of longer ones that are older are forgotten."""
    layers = tuple(
        layer._replace(columns=tuple(with_count(each, wanted.num_columns) for each in layer.columns))
        for layer, wanted in zip(memory.layers, other.layers, strict=True)
    )
    counts = [layer.num_columns for layer in memory.layers]
    grown = [each for each, layer in zip(counts, other.layers, strict=True) if each < layer.num_columns]
    return memory._replace(layers=layers, lengths=memory.lengths.clamp(max=min([other.num_columns, *grown])))


def with_count(columns: torch.Tensor, count: int) -> torch.Tensor:
    """The newest `count` columns of `(.., C, D)`; zeros on their left, where there are fewer."""
    missing = count - columns.shape[-2]
    return columns if missing == 0 else nn.functional.pad(columns, (0, 0, missing, 0))  # a negative number cuts


def _map(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    mapped = [_map(function, each) for each in value]
    return type(value)(*mapped) if hasattr(value, "_fields") else tuple(mapped)


def _named(value: Any, name: str) -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    keys = getattr(value, "_fields", range(len(value)))
    return [pair for key, each in zip(keys, value, strict=True) for pair in _named(each, f"{name}.{key}".lstrip("."))]


torch.serialization.add_safe_globals([LayerMemory, Memory])  # `torch.load` reads what `torch.save` wrote of them


__all__ = ["LayerMemory", "Memory", "SavedMemory", "cat_memories", "with_columns_of", "with_count"]
