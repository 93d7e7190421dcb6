"""What a layer is told about a call."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from transformers_xl.modeling.memory.memory_cache import LayerCache
from transformers_xl.modeling.memory.segment import Segment
from transformers_xl.modeling.ops.columns import keep_last
from transformers_xl.modeling.ops.relative_attention import Biases

Tensors = tuple[torch.Tensor, ...]


# B batch, T segment, C columns of the memory, K = C + T, E hidden size, H heads, D head dim
class LayerContext(NamedTuple):
    """What a layer is told about a call.

    Args:
        segment: where the tokens stand after the columns of this layer's memory, and what they see.
        window: positions that a token sees at most, itself included; None: all before it.
        keep: columns that the layer remembers after the call.
        mask: which columns each token sees, `(B or 1, 1, T, K)` bool; None: `segment` says it.
        projects: whether it remembers keys and values instead of inputs.
        positions: the table `(distances, E)` of relative positions; None: there is none, or it is in `layer_cache`.
        bias: the biases of relative positions that all layers share.
        layer_cache: what a cache keeps for this layer; None without one.
        distance: `(B or 1, T, K)` integers, how far the columns lie from each token, where they do not stand in their
            order; None: they do.
        plan: what a variant says of the call, the same for all layers.
        source: the other text that the decoder of an encoder-decoder reads.
    """

    segment: Segment
    window: int | None
    keep: int
    mask: torch.Tensor | None = None
    projects: bool = False
    positions: torch.Tensor | None = None
    bias: Biases | None = None
    layer_cache: LayerCache | None = None
    distance: torch.Tensor | None = None
    plan: Any = None
    source: Any = None

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
        if self.layer_cache is not None and self.layer_cache.is_ring:
            return self.layer_cache.append(past, new), past
        if past and past[0].dim() != inputs.dim():
            return self.append(past, new)
        held, columns = past[0].to(inputs) if past else inputs[:, :0], new
        if held.shape[1] > 0:  # apart from the segment: no gradient is computed for what needs none
            columns = tuple(torch.cat(pair, -2) for pair in zip(project(held), new, strict=True))
        return columns, self.newest(columns) if self.projects else self.newest_inputs(held, inputs)

    def append(self, past: Tensors, new: Tensors) -> tuple[Tensors, Tensors]:
        """`[memory; segment]` of columns `(B, .., C, D)` and `(B, .., T, D)` of one kind, and what the layer remembers of
        them."""
        check_columns(past, new)
        if self.layer_cache is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
            columns = tuple(torch.cat([old.to(each), each], -2) for old, each in zip(past, new, strict=True))
            return columns, self.newest(columns)
        columns = self.layer_cache.append(past, new)
        kept = self.newest(columns)
        self.layer_cache.shown = kept if self.segment.num_tokens is None else None
        return columns, kept

    def newest(self, columns: Tensors) -> Tensors:
        """What is remembered of the columns of `[memory; segment]`."""
        return tuple(self.segment.newest(each, self.keep) for each in columns)

    def newest_inputs(self, held: torch.Tensor, inputs: torch.Tensor) -> Tensors:
        """The same of inputs, `held` `(B, C, E)` and those of the segment, `(B, T, E)`."""
        if self.segment.num_tokens is None:  # only what is kept is copied
            held, inputs = keep_last(held, max(self.keep - inputs.shape[1], 0)), keep_last(inputs, self.keep)
            return (torch.cat([held, inputs], 1),)
        return self.newest((torch.cat([held, inputs], 1),))


def check_columns(past: Tensors, new: Tensors) -> None:
    """Check that remembered columns can stand beside new ones."""
    for old, each in zip(past, new, strict=False):
        if old.shape[:-2] != each.shape[:-2] or old.shape[-1] != each.shape[-1] or len(past) != len(new):
            raise ValueError(
                f"`mems` has columns of shapes {[tuple(given.shape) for given in past]}: this layer projects "
                f"{[tuple(made.shape) for made in new]}. Is it the memory of this model?"
            )


__all__ = ["LayerContext", "Tensors"]
