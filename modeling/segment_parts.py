"""A call cut where blocks of its texts end, for a model that reads block by block: a call is a loop of calls.

    | block | block | block | op      the tokens of a row, counted from the beginning of its document
       [ 0  |   1   |   2   | 3]      a call, and its parts

Shapes: B batch, T tokens of a call, P tokens of a part.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, cast

import torch

from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.memory.segment import Call, Segment
from transformers_xl.modeling.ops.columns import gather_columns
from transformers_xl.modeling.outputs import MemoryModelOutput


class CallPart(NamedTuple):
    """The tokens of a call that belong to one block of each row. Rows may have different numbers of them, or none.

    Args:
        call: how many of them each row has: no document begins inside.
        order: `(B, P)`, their indices among the tokens of the call, with padding after them; None: they are the call.
        begins: `(B,)` bool, rows in which a document begins with this part; None: none.
    """

    call: Call
    order: torch.Tensor | None = None
    begins: torch.Tensor | None = None


class CallParts(NamedTuple):
    """The `parts` of a call as they are read, and the index `(B, T)` of each token among theirs; None: there is one."""

    parts: list[CallPart]
    order: torch.Tensor | None = None

    @classmethod
    def of(cls, call: Call, length: int, tokens_read: torch.Tensor, size: int) -> Self:
        """The parts of a call of `length` tokens, by blocks of `size`; `tokens_read` `(B,)` is that of the memory."""
        if call.document_ids is None and int((tokens_read % size).max()) + length <= size:
            return cls([CallPart(call)])
        segment = Segment.of(0, torch.zeros_like(tokens_read), tokens_read, length, call)
        token, places = segment.columns, segment.places
        number = (places % size == 0).cumsum(1)
        number = number - number[:, :1]
        number = number if segment.mask is None else number.where(segment.mask, -1)
        count, is_begin = int(number.max()) + 1, None
        if call.document_ids is not None:
            is_begin = (places == 0) & (call.document_ids > 0)
        if count <= 1:
            return cls([CallPart(Call(call.num_tokens), begins=rows_of(is_begin, number == 0))])
        parts, order, start = [], torch.zeros_like(number), 0
        for index in range(count):
            mine = number == index
            num, first = mine.sum(1), mine.long().argmax(1)[:, None]
            width = int(num.max())
            here = Call(None if bool((num == width).all()) else num)
            parts.append(CallPart(here, (first + token[:width]).clamp(max=length - 1), rows_of(is_begin, mine)))
            order = torch.where(mine, start + token - first, order)
            start += width
        return cls(parts, order)

    def read(
        self,
        read: Callable[..., MemoryModelOutput],
        forget: Callable[[Memory, torch.Tensor], Memory],
        hidden_states: torch.Tensor,
        memory: Memory,
        *args,
        **kwargs,
    ) -> MemoryModelOutput:
        """The output of a call `(B, T, E)`, whose parts are read in turn, each with the memory of the one before it.

        Args:
            read, forget: those of a model.
            args, kwargs: further arguments of `read`.
        """
        outputs: list[MemoryModelOutput] = []
        for part in self.parts:
            memory = memory if part.begins is None else forget(memory, part.begins)
            inputs = gather_columns(hidden_states, part.order)
            outputs.append(read(inputs, memory, part.call, *args, **kwargs))
            memory = cast(Memory, outputs[-1].mems)
        return self.join(outputs)

    def join(self, outputs: Sequence[MemoryModelOutput]) -> MemoryModelOutput:
        """The outputs of all parts as that of the call, with the memory of the last one; what it says of padding is
        arbitrary."""
        output, order = outputs[-1], self.order
        if order is None:
            return output

        def join(states: Sequence[torch.Tensor]) -> torch.Tensor:
            return gather_columns(torch.cat(list(states), 1), order)

        output.last_hidden_state = join([each.last_hidden_state for each in outputs])
        if output.hidden_states is not None:
            of_layers: Any = zip(*(each.hidden_states or () for each in outputs), strict=True)
            shown: Any = tuple(None if each[0] is None else join(each) for each in of_layers)
            output.hidden_states = shown
        return output


def rows_of(is_begin: torch.Tensor | None, mine: torch.Tensor) -> torch.Tensor | None:
    """Rows `(B,)` bool that have a token in both masks `(B, T)`; None: none."""
    rows = None if is_begin is None else (is_begin & mine).any(1)
    return rows if rows is not None and bool(rows.any()) else None


__all__ = ["CallPart", "CallParts"]
