"""A tensor of each row that every segment replaces: the state of an LSTM, a matrix, vectors that a layer learned."""

from collections.abc import Callable

import torch

from transformers_xl.modeling.memory.layer_memory import Memory, Shape
from transformers_xl.modeling.ops.rolling_buffer import Tensors
from transformers_xl.modeling.ops.window import SegmentPacking, reset_state


class RecurrentMemory(Memory):
    """A state `(batch, *shape)`. New rows have `initial` in it, or what the layer learned that they start with.

        read(start) -> state before the segment        write(state after it)
        projected(project, start) -> what a layer projects of the former: a cache keeps it as long as the state stays

    Args:
        shape: without the batch.
        initial: the number that new rows are filled with.
        has_learned_start: whether `read` gets the state of new rows. Which rows have begun is remembered too, so that
            the start has a gradient wherever a row is new.
    """

    dtype: torch.dtype | None = None  # that of the model

    def __init__(self, shape: tuple[int, ...], initial: float = 0, has_learned_start: bool = False):
        self.shape, self.initial = shape, initial
        self.has_learned_start = has_learned_start
        self.state: torch.Tensor | None = None
        self.begun: torch.Tensor | None = None  # (batch,) bool, rows that have read a token of a segment that wrote
        self.new: torch.Tensor | None = None
        self.is_cache = False
        self.kept_projection: Tensors = ()

    @property
    def shapes(self) -> dict[str, Shape]:
        return {"": self.shape, "_begun": ()} if self.has_learned_start else {"": self.shape}

    @property
    def num_rows(self) -> int:
        return -1 if self.state is None else len(self.state)

    @property
    def changed_rows(self) -> torch.Tensor | None:
        if self.state is None or self.begun is not None:
            return self.begun
        return (self.state != self.initial).reshape(len(self.state), -1).any(dim=1)

    def use_buffer(self, is_static: bool = False) -> None:
        self.is_cache = True

    def start(self, batch: int, like: torch.Tensor) -> None:
        size = (batch, *self.shape)
        state = torch.full(size, self.initial, dtype=self.dtype or like.dtype, device=like.device)
        begun = torch.zeros(batch, dtype=torch.bool, device=like.device)
        self.load((state, begun) if self.has_learned_start else (state,), like)

    def load(self, tensors: Tensors, like: torch.Tensor) -> None:
        self.state, self.new, self.kept_projection = tensors[0].to(self.dtype or like.dtype), None, ()
        self.begun = tensors[1].bool() if self.has_learned_start else None

    def read(self, start: torch.Tensor | None = None) -> torch.Tensor:
        """The state before the segment; `start` `(*shape,)` in new rows, where it is learned."""
        assert self.state is not None, "start() or load() comes first"
        if self.begun is None or start is None:
            return self.state
        return torch.where(self.begun.view(-1, *[1] * start.dim()), self.state, start.to(self.state.dtype))

    def projected(self, project: Callable[[torch.Tensor], Tensors], start: torch.Tensor | None = None) -> Tensors:
        """`project(read(start))`, tensors with the batch first: a segment that writes nothing leaves them for the next."""
        projection = self.kept_projection or project(self.read(start))
        if self.is_cache and not torch.is_grad_enabled():
            self.kept_projection = projection
        return projection

    def write(self, state: torch.Tensor) -> None:
        """Note the state after the segment."""
        self.new = state

    def value(self, packing: SegmentPacking | None) -> Tensors:
        assert self.state is not None, "start() or load() comes first"
        if self.new is None:
            return (self.state,) if self.begun is None else (self.state, self.begun)
        state = self.new.to(self.state.dtype).contiguous()
        return (state,) if self.begun is None else (state, rows_begun(self.begun, packing))

    def close(self, packing: SegmentPacking) -> None:
        if self.new is not None and self.state is not None:
            self.load(self.value(packing), self.state)

    def detach(self) -> None:
        self.state = None if self.state is None else self.state.detach()

    def reset_rows(self, reset: torch.Tensor) -> None:
        self.kept_projection = ()
        if self.state is not None:
            self.state = reset_state(self.state, reset.to(self.state.device), self.initial)
            self.begun = None if self.begun is None else self.begun & ~reset.to(self.begun.device)

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.state = None if self.state is None else function(self.state)
        self.begun = None if self.begun is None else function(self.begun)
        self.kept_projection = tuple(function(each) for each in self.kept_projection)

    def clear(self) -> None:
        self.state = self.begun = self.new = None
        self.kept_projection = ()


class SumMemory(RecurrentMemory):
    """A sum over all that a row has read, zero in new ones: in float32 at least, for in half precision it soon stops
    growing."""

    def start(self, batch: int, like: torch.Tensor) -> None:
        super().start(batch, self.precise(like))

    def load(self, tensors: Tensors, like: torch.Tensor) -> None:
        super().load(tensors, self.precise(like))

    @staticmethod
    def precise(like: torch.Tensor) -> torch.Tensor:
        return like.new_empty(0, dtype=torch.promote_types(like.dtype, torch.float32))


def rows_begun(begun: torch.Tensor, packing: SegmentPacking | None) -> torch.Tensor:
    """Which rows have read a token after the segment."""
    if packing is None:
        return begun
    if packing.segment_mask is None:
        return torch.ones_like(begun)
    return begun | packing.segment_mask.any(dim=1).to(begun.device)


__all__ = ["RecurrentMemory", "SumMemory"]
