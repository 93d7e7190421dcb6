"""Where the tokens of a call stand, what they see, and what a layer is told about the call.

A row's memory ends where its segment begins, and padding stands after the tokens of a segment. So the distance of two
tokens is that of their columns in every row, and what a token sees is an interval that ends with itself: one number says
it. In an encoder it ends with the text, and a second number says where.

    row    memory     segment      first column that b sees
    0      . . p q  | a b .        2   (0 and 1 are unused)
    1      p q r s  | a b c        0
    2      p q r s  | a B c        5   (B begins a document)

Shapes: B batch, T tokens of a call, C columns of the memory, K = C + T, E hidden size, H heads, D head dim.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

import torch
from torch.nn import functional as F

from transformers_xl.modeling.memory.memory_cache import LayerCache, Tensors
from transformers_xl.modeling.ops.columns import gather_columns, is_symbolic, keep_last
from transformers_xl.modeling.ops.relative_attention import Biases


class Call(NamedTuple):
    """The tokens of a call as the layers read them: padding stands after them, whatever the side that it came from.

    Args:
        num_tokens: `(B,)`, how many tokens of each row are real; None: all.
        document_ids: `(B, T)`, number of the document of each token, 0 for that of the memory; padding has that of its
            row's last token. None: no document begins inside.
        pack, unpack: `(B, T)`, the order in which layers read tokens, and the order that undoes it; None: it is the same.
        closed: `(B,)` bool, rows in which a document begins after the last token: the next call continues it. None: none.
        input_ids: `(B, T)`, the ids of the tokens; None: they were given as vectors.
    """

    num_tokens: torch.Tensor | None = None
    document_ids: torch.Tensor | None = None
    pack: torch.Tensor | None = None
    unpack: torch.Tensor | None = None
    closed: torch.Tensor | None = None
    input_ids: torch.Tensor | None = None

    @classmethod
    def of(cls, mask: torch.Tensor | None, reset: torch.Tensor | None, position_ids: torch.Tensor | None) -> Self:
        """
        Args:
            mask: `(B, T)` bool, real tokens; None: all.
            reset: `(B, T)` bool, tokens that begin a document; None: none.
            position_ids: `(B, T)`. A token whose position does not continue that of the real one before it begins one.
        """
        mask = None if mask is None or is_true(mask.all(), when_compiling=False) else mask
        pack = None if mask is None else (~mask).long().argsort(dim=1, stable=True)
        num_tokens, closed, document_ids = None if mask is None else mask.sum(1), None, None
        if reset is not None and is_true(reset.any(), when_compiling=True):
            document_ids = reset.long().cumsum(1)
        if mask is not None and document_ids is not None:
            inside = document_ids.where(mask, 0).amax(1)  # of a row's last token
            closed = document_ids[:, -1] > inside
            document_ids = gather_columns(document_ids.where(mask, inside[:, None]), pack)
        if position_ids is not None:
            starts = gather_columns(document_starts(position_ids, mask), pack)
            if is_true(starts.any(), when_compiling=True):
                document_ids = starts.long().cumsum(1) + (0 if document_ids is None else document_ids)
        if pack is None or is_true((pack[:, 1:] > pack[:, :-1]).all(), when_compiling=False):
            return cls(num_tokens, document_ids, closed=closed)
        return cls(num_tokens, document_ids, pack, pack.argsort(dim=1), closed)


def document_starts(positions: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Which tokens `(B, T)` begin a document: their position does not continue that of the real token before them, by the
    `mask` `(B, T)` bool of real tokens; None: all are."""
    mask = torch.ones_like(positions, dtype=torch.bool) if mask is None else mask
    columns = torch.arange(positions.shape[1], device=positions.device).expand_as(mask)
    before = F.pad(columns.where(mask, -1).cummax(1).values[:, :-1], (1, 0), value=-1)
    continued = positions.expand_as(mask).gather(1, before.clamp(min=0)) + 1
    return mask & (before >= 0) & (positions != continued)


def is_true(condition: torch.Tensor, when_compiling: bool) -> bool:
    """`bool(condition)`; in a compiled graph, which cannot branch on it, `when_compiling`."""
    return when_compiling if is_symbolic(condition) else bool(condition)


def noted(numbers: torch.Tensor, number: int) -> torch.Tensor:
    """`numbers` `(B,)`, all of them `number`, with a note that says so: to compare them, the CPU would wait for a GPU."""
    if not is_symbolic(numbers):
        cast(Any, numbers).of_all_rows = number, _writes(numbers)
    return numbers


def _writes(tensor: torch.Tensor) -> int:
    """How often somebody has written to it in place: then its note is void."""
    return 0 if tensor.is_inference() else tensor._version


def are_all(numbers: torch.Tensor, number: int) -> bool:
    """Whether all `numbers` `(B,)` are this one; False in a compiled graph, which cannot ask."""
    if is_symbolic(numbers):
        return False
    known, writes = getattr(numbers, "of_all_rows", (0, -1))
    return known == number if writes == _writes(numbers) else bool((numbers == number).all())


class Segment(NamedTuple):
    """The tokens of a call, which follow the columns of a memory.

    Args:
        num_before: C.
        length: T.
        start: `(B or 1, T)`, the first column that is remembered of each token's document.
        first: `(B or 1, T)`, the first column that it sees.
        lengths: `(B,)`, how many columns of the memory (not of the segment) are real.
        tokens_read: `(B,)`, how many tokens of its text each row has read before.
        num_tokens, document_ids, input_ids: as in [`Call`].
        is_plain: whether all rows are alike: all of their columns are real, and of one document.
        last: `(B, T)`, the last column that each token sees; None: its own.
    """

    num_before: int
    length: int
    start: torch.Tensor
    first: torch.Tensor
    lengths: torch.Tensor
    tokens_read: torch.Tensor
    num_tokens: torch.Tensor | None = None
    document_ids: torch.Tensor | None = None
    is_plain: bool = False
    input_ids: torch.Tensor | None = None
    last: torch.Tensor | None = None

    @classmethod
    def of(cls, num_before: int, lengths: torch.Tensor, tokens_read: torch.Tensor, length: int, call: Call) -> Self:
        """`length` tokens of a call, which follow `num_before` columns."""
        is_plain = call.num_tokens is None and call.document_ids is None
        is_plain = is_plain and are_all(lengths, num_before)
        start = lengths.new_zeros(1, length) if is_plain else (num_before - lengths)[:, None].expand(-1, length)
        if call.document_ids is not None:
            begins = call.document_ids != F.pad(call.document_ids, (1, 0))[:, :-1]
            columns = num_before + torch.arange(length, device=lengths.device)
            start = torch.where(call.document_ids > 0, columns.where(begins, 0).cummax(1).values, start)
        numbers = (lengths, tokens_read, call.num_tokens, call.document_ids)
        return cls(num_before, length, start, start, *numbers, is_plain, call.input_ids)

    def following(self, num_before: int) -> Self:
        """The same tokens, following `num_before` columns of another kind, all of them real."""
        lengths = noted(torch.full_like(self.lengths, num_before), num_before)
        return self.of(num_before, lengths, self.tokens_read, self.length, Call(self.num_tokens, self.document_ids))

    def both_ways(self) -> Self:
        """The same tokens, each of which sees all of its document in the call, before it and after it."""
        stop = self.end[:, None].expand(-1, self.length)
        if self.document_ids is not None:  # they grow along a row
            after = torch.searchsorted(self.document_ids, self.document_ids, right=True)
            stop = stop.minimum(self.num_before + after)
        return self._replace(last=(stop - 1).clamp(min=0))

    @property
    def nearest_distance(self) -> int:
        """The least distance in a table of relative positions, a row that is never read: -1; both ways -T."""
        return -1 if self.last is None else -self.length

    @property
    def num_keys(self) -> int:
        """K."""
        return self.num_before + self.length

    @property
    def mask(self) -> torch.Tensor | None:
        """Which tokens are real, `(B, T)` bool; None: all."""
        if self.num_tokens is None:
            return None
        return torch.arange(self.length, device=self.num_tokens.device) < self.num_tokens[:, None]

    @property
    def least_tokens(self) -> int:
        """Those of the row with the fewest; none where a compiled graph cannot ask."""
        if self.num_tokens is None:
            return self.length
        return 0 if is_symbolic(self.num_tokens) else int(self.num_tokens.min())

    @property
    def end(self) -> torch.Tensor:
        """The column after each row's last token, `(B,)`."""
        if self.num_tokens is None:
            return torch.full_like(self.lengths, self.num_keys)
        return self.num_before + self.num_tokens

    @property
    def columns(self) -> torch.Tensor:
        """The column of each token, `(T,)`."""
        return torch.arange(self.num_before, self.num_keys, device=self.lengths.device)

    @property
    def places(self) -> torch.Tensor:
        """The place of each token in its text, `(B, T)`, from 0."""
        origin = (self.num_before - self.tokens_read)[:, None]
        return self.columns - (
            origin if self.document_ids is None else self.start.where(self.document_ids > 0, origin)
        )

    def tokens_read_after(self) -> torch.Tensor:
        """`tokens_read` after the call, `(B,)`."""
        if self.num_tokens is None and self.document_ids is None:
            return self.tokens_read + self.length
        after = self.tokens_read + self.end - self.num_before
        if self.document_ids is None:
            return after
        return torch.where(self.document_ids[:, -1] > 0, self.end - self.start[:, -1], after)

    def remembered(self, count: int) -> torch.Tensor:
        """How many of the newest `count` columns are real after the call, `(B,)`."""
        count = min(count, self.num_keys)
        if self.is_plain:
            return noted(torch.full_like(self.lengths, count), count)
        return (self.end - self.start[:, -1]).clamp(max=count)

    def seen_by(self, num_before: int, max_visible: int, window: int | None) -> Self:
        """The same for a layer that has the newest `num_before` of these columns, of which it may see `max_visible`, and
        whose tokens see `window` positions (None: all before them)."""
        moved = self.num_before - num_before
        start = (self.start - moved).clamp(min=0) if moved else self.start
        first, is_plain = start, self.is_plain
        if self.first is not self.start:  # a plan says it
            first = (self.first - moved).clamp(min=0)
        if window is None and num_before > max_visible:
            first, is_plain = first.clamp(min=num_before - max_visible), False
        elif window is not None and num_before + self.length > window:
            columns = torch.arange(num_before, num_before + self.length, device=start.device)
            first = first.maximum(columns - (window - 1))
        lengths = self.lengths.clamp(max=num_before) if moved else self.lengths
        return self._replace(num_before=num_before, start=start, first=first, lengths=lengths, is_plain=is_plain)

    def visible(self) -> torch.Tensor | None:
        """Which columns each token sees, `(B or 1, 1, T, K)` bool; None: every token sees all."""
        if self.is_plain and (self.length == 1 or self.last is not None) and self.first is self.start:
            return None
        return self.visible_piece(slice(self.num_before, self.num_keys), slice(0, self.num_keys))

    def visible_piece(self, tokens: slice, keys: slice) -> torch.Tensor:
        """Which of these columns `keys` the tokens in the columns `tokens` see, `(B or 1, 1, t, k)` bool."""
        here = slice(tokens.start - self.num_before, tokens.stop - self.num_before)
        first = self.first[:, here, None]
        key = torch.arange(keys.start, keys.stop, device=first.device)
        last = (
            torch.arange(tokens.start, tokens.stop, device=first.device) if self.last is None else self.last[:, here]
        )
        return ((key >= first) & (key <= last[..., None]))[:, None]

    def newest(self, columns: torch.Tensor, count: int) -> torch.Tensor:
        """The newest `count` columns of each row, or fewer, of `(B, .., K, D)`: padding left out."""
        count = min(count, columns.shape[-2])
        if self.num_tokens is None:
            return columns.narrow(-2, columns.shape[-2] - count, count)
        if columns.device.type == "cpu" and not is_symbolic(columns):  # a gather would read number by number
            return torch.stack([_newest(row, end, count) for row, end in zip(columns, self.end.tolist(), strict=True)])
        order = self.end[:, None] - count + torch.arange(count, device=columns.device)
        return gather_columns(columns, order.clamp(min=0), dim=-2)

    def earlier(self, inputs: torch.Tensor, count: int) -> list[torch.Tensor]:
        """The `count` inputs before each token, the oldest first, each `(B, T, D)`: zeros where another document stands.
        `inputs` `(B, count + T, D)` begin with a [`tail`]."""
        shifted = [inputs.narrow(1, start, self.length) for start in range(count)]
        if self.document_ids is None:
            return shifted
        known = (self.columns - self.start).where(self.document_ids > 0, count)[..., None]
        return [each.where(known >= count - start, 0) for start, each in enumerate(shifted)]

    def tail(self, inputs: torch.Tensor, count: int) -> torch.Tensor:
        """The newest `count` inputs of each row's last document, `(B, count, D)`, zeros before it: what [`earlier`] reads
        with the next call. `inputs` `(B, count + T, D)` begin with that of the call before."""
        if self.num_tokens is None and self.document_ids is None:
            return inputs.narrow(1, self.length, count)
        kept = self._replace(num_before=count).newest(inputs, count)
        if self.document_ids is None:
            return kept
        known = (self.end - self.start[:, -1]).where(self.document_ids[:, -1] > 0, count)
        ages = torch.arange(count, 0, -1, device=inputs.device)
        return kept.where((ages <= known[:, None])[..., None], 0)


def _newest(row: torch.Tensor, end: int, count: int) -> torch.Tensor:
    """The `count` columns before `end`, of `(.., K, D)`; zeros where there are fewer."""
    columns = row[..., max(end - count, 0) : end, :]
    return columns if end >= count else F.pad(columns, (0, 0, count - end, 0))


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
        if past and past[0].dim() != inputs.dim():
            return self.append(past, new)
        held, columns = past[0].to(inputs) if past else inputs[:, :0], new
        if held.shape[1] > 0:  # apart from the segment: no gradient is computed for what needs none
            columns = tuple(torch.cat(pair, -2) for pair in zip(project(held), new, strict=True))
        return columns, self.newest(columns) if self.projects else self.newest_inputs(held, inputs)

    def append(self, past: Tensors, new: Tensors) -> tuple[Tensors, Tensors]:
        """`[memory; segment]` of columns `(B, .., C, D)` and `(B, .., T, D)` of one kind, and what the layer remembers of
        them."""
        if self.layer_cache is not None and self.layer_cache.is_ring:
            return self.layer_cache.append(past, new), past
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


__all__ = ["Call", "LayerContext", "Segment", "are_all", "check_columns", "document_starts", "is_true", "noted"]
