"""What a layer is told about a call."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from transformers_xl.modeling.layers.positions import Biases
from transformers_xl.modeling.memory.memory_cache import LayerRoom
from transformers_xl.modeling.memory.segment import Segment
from transformers_xl.modeling.ops.columns import keep_last

Tensors = tuple[torch.Tensor, ...]


# B batch, T segment, C columns of the memory, K = C + T, E hidden size, H heads, D head dim
class LayerContext(NamedTuple):
    """What a layer is told about a call.

    Args:
        segment: where the tokens stand after the columns of this layer's memory, and what they see.
        window: positions that a token sees at most, itself included; None: all before it.
        keep: columns that the layer remembers after the call.
        mask: which columns each token sees, `(B or 1, 1, T, K)` bool; None: `segment` says it, the same for all rows.
        projects: whether it remembers keys and values instead of inputs.
        positions: the table `(distances, E)` of relative positions; None: `room` has its projections, or there is none.
        bias: the biases of relative positions that all layers share.
        room: where a cache keeps what this layer projected; None without one.
        distance: `(B or 1, T, K)` integers, how far the columns lie from each token, where they do not stand in their
            order; None: they do.
        plan: what a variant says of the call, the same for all layers.
        keeps_graph: whether gradients pass through the columns that it remembers, to earlier parts of the same call.
    """

    segment: Segment
    window: int | None
    keep: int
    mask: torch.Tensor | None = None
    projects: bool = False
    positions: torch.Tensor | None = None
    bias: Biases | None = None
    room: LayerRoom | None = None
    distance: torch.Tensor | None = None
    plan: Any = None
    keeps_graph: bool = False

    @property
    def visible(self) -> torch.Tensor | None:
        """Which columns each token sees, `(B or 1, 1, T, K)` bool; None: all."""
        return self.segment.visible() if self.mask is None else self.mask

    def extend(
        self, past: Tensors, inputs: torch.Tensor, new: Tensors, project: Callable[[torch.Tensor], Tensors]
    ) -> tuple[Tensors, Tensors]:
        """What the layer projects of `[memory; segment]`, and the columns that it remembers.

        Args:
            past: the columns of its memory.
            inputs: the segment `(B, T, E)`, of the kind that the memory has.
            new: the projections of the segment, each `(B, .., T, D)`.
            project: makes them of inputs `(B, C, E)`.

        Raises:
            ValueError: the columns have another shape than those that the layer projects.
        """
        if self.room is not None and self.room.is_ring:
            return self.room.append(past, new), past
        if not past or past[0].dim() == inputs.dim():
            return self._extend_inputs(past[0].to(inputs) if past else inputs[:, :0], inputs, new, project)
        return self.append(past, new)

    def append(self, past: Tensors, new: Tensors) -> tuple[Tensors, Tensors]:
        """`[memory; segment]` of columns `(B, .., C, D)` and `(B, .., T, D)` of one kind, and what the layer remembers of
        them."""
        check_columns(past, new)
        if self.room is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
            columns = tuple(torch.cat([old.to(each), each], -2) for old, each in zip(past, new, strict=True))
            return columns, tuple(self.segment.newest(self._kept(each), self.keep) for each in columns)
        columns = self.room.append(past, new)
        kept = tuple(self.segment.newest(each, self.keep) for each in columns)
        self.room.shown = kept if self.segment.num is None else None
        return columns, kept

    def _kept(self, columns: torch.Tensor) -> torch.Tensor:
        return columns if self.keeps_graph else columns.detach()

    def _extend_inputs(
        self, held: torch.Tensor, inputs: torch.Tensor, new: Tensors, project: Callable[[torch.Tensor], Tensors]
    ) -> tuple[Tensors, Tensors]:
        columns, inputs = new, self._kept(inputs)
        if held.shape[1] > 0:  # apart from the segment: no gradient is computed for what needs none
            columns = tuple(torch.cat(pair, -2) for pair in zip(project(held), new, strict=True))
        if self.projects:
            return columns, tuple(self.segment.newest(self._kept(each), self.keep) for each in columns)
        return columns, self.newest_inputs(held, inputs)

    def newest_inputs(self, held: torch.Tensor, inputs: torch.Tensor) -> Tensors:
        """The columns that are remembered of inputs, `held` `(B, C, E)` and those of the segment, `(B, T, E)`."""
        if self.segment.num is None:  # only what is kept is copied
            held, inputs = keep_last(held, max(self.keep - inputs.shape[1], 0)), keep_last(inputs, self.keep)
            return (torch.cat([held, inputs], 1),)
        return (self.segment.newest(torch.cat([held, inputs], 1), self.keep),)


def check_columns(past: Tensors, new: Tensors) -> None:
    """Check that remembered columns can stand beside new ones."""
    for old, each in zip(past, new, strict=False):
        if old.shape[:-2] != each.shape[:-2] or old.shape[-1] != each.shape[-1] or len(past) != len(new):
            raise ValueError(
                f"`mems` has columns of shapes {[tuple(given.shape) for given in past]}: this layer projects "
                f"{[tuple(made.shape) for made in new]}. Is it the memory of this model?"
            )


__all__ = ["LayerContext", "Tensors"]
