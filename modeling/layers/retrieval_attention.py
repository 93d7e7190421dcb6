"""Attention to the nearest of very many remembered keys: Wu et al., 2022, https://arxiv.org/abs/2203.08913, section 3.

    | keys of complete blocks, the newest `num_memory_keys` | keys of the open block |
                            searched                                 not yet

Blocks are counted from the beginning of a text: what a token searches is an interval of the remembered columns, from the
first one of its document to the beginning of its block. Nothing that is remembered here has a gradient.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from transformers_xl.configuration.configuration_memorizing_transformer import MemorizingTransformerConfig
from transformers_xl.modeling.layers.local_attention import LocalAttention
from transformers_xl.modeling.memory.memory_cache import Tensors
from transformers_xl.modeling.memory.memory_value import LayerMemory
from transformers_xl.modeling.memory.segment import Call, Segment

MAX_SCORES = 2**25  # computed at once: what a search takes beside the keys, 128 MiB of float32


# B batch, T segment, N remembered columns, n tokens of a part, k retrieved keys, H heads, D head dim
class LookupPart(NamedTuple):
    """The tokens `start .. stop - 1` of a call search the columns `left .. right - 1` of `[remembered; segment]`.

    `is_one`: whether all of them search all of these.
    """

    start: int
    stop: int
    left: int
    right: int
    is_one: bool


class Lookups(NamedTuple):
    """What a call looks up and remembers, in every layer that remembers keys.

    Args:
        segment: where the tokens stand after the remembered columns.
        first, last: `(B, T)`, a token searches the columns `first .. last - 1`.
        parts: the call in parts, about one a block.
        keep: how many columns are remembered after the call.
    """

    segment: Segment
    first: torch.Tensor
    last: torch.Tensor
    parts: list[LookupPart]
    keep: int

    @classmethod
    def of(cls, segment: Segment, num_remembered: int, config: MemorizingTransformerConfig) -> Self:
        """What a call looks up in `num_remembered` columns, of which each row's newest are real."""
        held, size = segment.tokens_read.clamp(max=num_remembered), config.block_length
        call = Call(segment.num_tokens, segment.document_ids)
        here = Segment.of(num_remembered, held, segment.tokens_read, segment.length, call)
        places, read = here.places, segment.tokens_read_after()
        last = here.columns - places % size
        first = here.start.maximum(last - config.num_memory_keys)
        last = last if here.mask is None else last.where(here.mask, first)  # padding searches nothing
        opened = read % size
        keep = (opened + (read - opened).clamp(max=config.num_memory_keys)).max()
        # cut where the first row begins a block: in rows that begin theirs elsewhere, a part has tokens of two
        begins = (places[0] % size == 0).nonzero().flatten().tolist() if segment.length > 1 else []
        starts = sorted({0, *begins})
        stops = [*starts[1:], segment.length]
        numbers = [
            cls._bounds(first[:, start:stop], last[:, start:stop]) for start, stop in zip(starts, stops, strict=True)
        ]
        *bounds, (count, _, _) = torch.stack([*numbers, keep.expand(3)]).tolist()
        parts = [LookupPart(*each) for each in zip(starts, stops, *zip(*bounds, strict=True), strict=True)]
        return cls(here, first, last, parts, count)

    @staticmethod
    def _bounds(first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """`left`, `right` and `is_one` of a part."""
        left, right = first.min(), last.max()
        return torch.stack([left, right, ((first == left) & (last == right)).all()])


class KeySearch:
    """Finds the keys that have the largest products with a query: exactly, by a matrix product."""

    def find(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        first: torch.Tensor,
        last: torch.Tensor,
        part: LookupPart,
        count: int,
    ) -> Tensors:
        """
        Args:
            query: those of a part, `(B, H, n, D)`.
            keys: the columns, `(B, H, N + T, D)`.
            first, last: `(B, n)`, each query searches the columns `first .. last - 1`.
            part: which these are, of all rows.
            count: how many keys to find for each query.

        Returns:
            The columns `(B, H, n, count)` of the keys, and whether there is such a key, bool.
        """
        keys, limit = keys[:, :, part.left : part.right], min(count, part.right - part.left)
        column = torch.arange(part.left, part.right, device=keys.device)
        found, size = [], max(MAX_SCORES // keys[..., 0].numel(), 1)
        for start in range(0, query.shape[2], size):
            scores, here = query[:, :, start : start + size] @ keys.mT, slice(start, start + size)
            if not part.is_one:
                seen = (column >= first[:, here, None]) & (column < last[:, here, None])
                scores.masked_fill_(~seen[:, None], -torch.inf)
            found.append(scores.topk(limit))
        scores, columns = (torch.cat(each, dim=2) for each in zip(*found, strict=True))
        missing = (0, count - limit)
        return F.pad(columns + part.left, missing), F.pad(scores > -torch.inf, missing)

    def begin(self, past: Tensors) -> None:
        """A call reads what is remembered: `past`."""

    def finish(self, kept: Tensors, end: torch.Tensor) -> None:
        """It remembers `kept`: of each row, the newest of the columns before `end` (B,)."""

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor], memory: LayerMemory) -> Self:
        """`function` is applied to tensors whose first dimension is the batch; what is remembered is `memory` now."""
        return self

    def join(self, other: "KeySearch", memory: LayerMemory) -> Self:
        """The rows of `other` come after those of this one; what is remembered is `memory` now."""
        return self


EXACT_SEARCH = KeySearch()


class RetrievalAttention(LocalAttention):
    """Each head mixes local attention and attention to the k remembered keys nearest to the query, by a learned gate.

        V_a = g V_m + (1 - g) V_c        g = sigmoid(memory_gate)
        V_c: local attention
        V_m = softmax(|s| q K_m^T) V_m'  over the k largest products, with s and unit q, K_m as in the local attention

    Where nothing is remembered, V_m is zero. No gradient reaches what is remembered.
    """

    def __init__(self, config: MemorizingTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.num_retrieved = config.num_retrieved
        self.attend_to_empty = config.attend_to_empty
        self.memory_gate = nn.Parameter(torch.empty(config.num_attention_heads))

    def init_weights(self, config: MemorizingTransformerConfig) -> None:
        init.zeros_(self.memory_gate)

    def attend(self, query, key, value, context, older=(), search=EXACT_SEARCH, **kwargs):
        """`older`: keys and values of `[remembered; segment]`, each `(B, H, N + T, D)`."""
        local, weights = super().attend(query, key, value, context, **kwargs)
        keys, values = older
        retrieved = self.look_up(query, keys, values, context.plan, search)
        gate = self.memory_gate.sigmoid().to(local.dtype)[:, None]
        return gate * retrieved + (1 - gate) * local, weights

    def look_up(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lookups: Lookups, search: KeySearch
    ) -> torch.Tensor:
        """V_m `(B, T, H, D)`."""
        found = []
        for part in lookups.parts:
            some = query[:, :, part.start : part.stop]
            if part.right <= part.left:
                found.append(torch.zeros_like(some).transpose(1, 2))
                continue
            first, last = (each[:, part.start : part.stop] for each in (lookups.first, lookups.last))
            with torch.no_grad():
                columns, is_found = search.find(some, keys, first, last, part, self.num_retrieved)
            found.append(self.attend_to_retrieved(some, keys, values, columns, is_found))
        return torch.cat(found, 1)

    def attend_to_retrieved(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, columns: torch.Tensor, found: torch.Tensor
    ) -> torch.Tensor:
        """V_m `(B, n, H, D)` of the keys in `columns` `(B, H, n, k)`, where there is one (`found`)."""
        order = columns.flatten(2)[..., None].expand(-1, -1, -1, keys.shape[-1])
        key, value = (each.gather(2, order).unflatten(2, columns.shape[2:]) for each in (keys, values))
        scores = (key @ query[..., None])[..., 0]
        empty = 0.0 if self.attend_to_empty else torch.finfo(scores.dtype).min
        weights = scores.masked_fill(~found, empty).softmax(-1).masked_fill(~found, 0.0)
        weights = F.dropout(weights, self.attention_dropout, self.training)
        return (weights[..., None, :] @ value)[..., 0, :].transpose(1, 2)


__all__ = ["KeySearch", "LookupPart", "Lookups", "RetrievalAttention"]
