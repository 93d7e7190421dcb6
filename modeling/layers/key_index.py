"""An index for the Memorizing Transformer, where exact search of very many keys takes too long: faiss
(https://arxiv.org/abs/2401.08281), the package `faiss-cpu`, extra `retrieval`.

    search_by_index(model)   # from now on, in every new cache: `generate()` and `model(ids, use_cache=True)`
    search_exactly(model)    # back again

Keys come and go, first in, first out, in every row and head. A graph (HNSW) cannot let keys go, and a flat index computes
all products, as the exact search does. So the keys of a head stand in lists, each around a centre (IVF), from which they
are removed by their numbers. A query is compared with the keys of the `num_probes` lists whose centres are nearest to it.
"""

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import nn

from transformers_xl.modeling.layers.retrieval_attention import KeySearch, LookupPart
from transformers_xl.modeling.memory.memory_cache import Tensors
from transformers_xl.modeling.memory.memory_value import LayerMemory

try:
    import faiss
except ImportError:  # the extra is not installed: `search_by_index` says so
    faiss = None  # type: ignore[assignment]  # a module everywhere else

Model = TypeVar("Model", bound=nn.Module)


def search_by_index(model: Model, min_keys: int = 100_000, num_probes: int = 16) -> Model:
    """Let every new cache of `model` find keys by an index, in place; returns `model`. `mems` are searched exactly.

    Args:
        min_keys: number of keys of a row from which on it has an index; a row with fewer is searched exactly.
        num_probes: number of lists that a query reads; there are about the root of the number of keys. More lists find more
            of the nearest keys, and take longer; all lists find all.

    Raises:
        ValueError: no layer of the model looks keys up, a number is below 1, or faiss is not installed.
    """
    if faiss is None:
        raise ValueError("`search_by_index` needs faiss: install `transformers-xl[retrieval]`.")
    for name, number in (("min_keys", min_keys), ("num_probes", num_probes)):
        if number < 1:
            raise ValueError(f"`{name}`={number} must be at least 1.")
    return _with_search(model, partial(IndexSearch, min_keys, num_probes))


def search_exactly(model: Model) -> Model:
    """Undo `search_by_index`, in place; returns `model`."""
    return _with_search(model, KeySearch)


def _with_search(model: Model, key_search: Callable[[], KeySearch]) -> Model:
    layers = [module for module in model.modules() if hasattr(module, "key_search")]
    if not layers:
        raise ValueError(f"`model` is a {type(model).__name__}: none of its layers looks up keys.")
    for layer in layers:
        layer.key_search = key_search  # type: ignore[assignment]  # torch declares attributes to be tensors or modules
    return model


# B batch, H heads, n queries of a row, D head dim, K columns, k keys for each query
class RowIndex:
    """The indexes of one row, one for each head, of the keys `begin .. end - 1` of all that the row has written.

    They are made again when as many keys were added as they were made of: their centres follow the text.

    Args:
        keys: columns `(H, K, D)`; the first of them is that of the key `offset`.
    """

    def __init__(self, keys: torch.Tensor, begin: int, end: int, num_probes: int, offset: int = 0):
        self.begin, self.end, self.last = begin, end, 2 * end - begin
        self.heads: list[Any] = []
        for vectors in as_array(keys[:, begin - offset : end - offset]):
            index = faiss.IndexIVFFlat(
                faiss.IndexFlatIP(vectors.shape[1]),
                vectors.shape[1],
                max(round(len(vectors) ** 0.5), 1),
                faiss.METRIC_INNER_PRODUCT,
            )
            index.cp.spherical, index.cp.niter = True, 10
            index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, 64
            index.train(vectors)
            index.add_with_ids(vectors, np.arange(begin, end))
            index.nprobe = min(num_probes, index.nlist)
            self.heads.append(index)

    def can_move(self, begin: int, end: int) -> bool:
        """Whether `begin .. end - 1` continue what it holds."""
        return self.begin <= begin <= self.end <= end < self.last

    def move(self, keys: torch.Tensor, begin: int, end: int, offset: int = 0) -> None:
        """Let the keys before `begin` go, and add those up to `end`."""
        new = as_array(keys[:, self.end - offset : end - offset])
        for index, vectors in zip(self.heads, new, strict=True):
            if begin > self.begin:
                index.remove_ids(faiss.IDSelectorRange(self.begin, begin))
            if end > self.end:
                index.add_with_ids(vectors, np.arange(self.end, end))
        self.begin, self.end = begin, end

    def find(self, query: torch.Tensor, count: int) -> torch.Tensor:
        """The numbers `(H, n, k)` of the keys for each query `(H, n, D)`; -1 where the lists that it reads hold no more."""
        pairs = zip(self.heads, as_array(query), strict=True)
        return torch.stack([torch.from_numpy(index.search(each, count)[1]) for index, each in pairs])

    def copy(self) -> "RowIndex":
        """The same, which continues from here independently."""
        other = copy.copy(self)
        other.heads = [faiss.clone_index(index) for index in self.heads]
        return other


class IndexSearch(KeySearch):
    """Finds keys by an index of each row and head. It is brought up to the columns whenever it is asked, so that it follows
    whatever happens to a row: a reset, another document, keys that are forgotten."""

    def __init__(self, min_keys: int, num_probes: int):
        self.min_keys, self.num_probes = min_keys, num_probes
        self.rows: dict[int, RowIndex] = {}
        self.shown: Tensors | None = None  # what was remembered after the last call
        self.offset: torch.Tensor | None = None  # (B,), which of the keys of a row stands in its first column

    def begin(self, past: Tensors) -> None:
        if past is not self.shown or self.offset is None:
            self.rows, self.offset = {}, torch.zeros(len(past[0]), dtype=torch.long, device=past[0].device)

    def finish(self, kept: Tensors, end: torch.Tensor) -> None:
        assert self.offset is not None, "begin() comes first"
        self.shown, self.offset = kept, self.offset + end.to(self.offset) - kept[0].shape[-2]

    def find(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        first: torch.Tensor,
        last: torch.Tensor,
        part: LookupPart,
        count: int,
    ) -> Tensors:
        rows = []
        for row, bounds in enumerate(torch.stack([first, last], -1).tolist()):
            found, start = [], 0
            for (left, right), same in itertools.groupby(bounds):
                here = slice(start, start := start + len(list(same)))
                search = self._find if right - left >= self.min_keys else self._find_exactly
                found.append(search(query[row, :, here], keys[row], row, left, right, count))
            rows.append([torch.cat(each, 1) for each in zip(*found, strict=True)])
        columns, is_found = (torch.stack(each) for each in zip(*rows, strict=True))
        return columns, is_found

    def _find_exactly(
        self, query: torch.Tensor, keys: torch.Tensor, row: int, left: int, right: int, count: int
    ) -> Tensors:
        if right <= left:
            columns = torch.zeros(*query.shape[:2], count, dtype=torch.long, device=query.device)
            return columns, torch.zeros_like(columns, dtype=torch.bool)
        part, none = LookupPart(0, query.shape[1], left, right, True), torch.empty(0)
        columns, is_found = super().find(query[None], keys[None], none, none, part, count)
        return columns[0], is_found[0]

    def _find(self, query: torch.Tensor, keys: torch.Tensor, row: int, left: int, right: int, count: int) -> Tensors:
        """The columns `(H, n, k)` of `keys` `(H, K, D)` among `left .. right - 1`, and whether there are such."""
        assert self.offset is not None, "begin() comes first"
        offset = int(self.offset[row])
        begin, end, index = left + offset, right + offset, self.rows.get(row)
        if index is None or not index.can_move(begin, end):
            index = self.rows[row] = RowIndex(keys, begin, end, self.num_probes, offset)
        index.move(keys, begin, end, offset)
        numbers = index.find(query, count).to(query.device)
        return (numbers - offset).clamp(min=0), numbers >= 0

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor], memory: LayerMemory) -> Self:
        if self.offset is None:
            return self
        old, self.rows = self.rows, {}
        for row, source in enumerate(function(torch.arange(len(self.offset))).tolist()):
            if source in old:  # the first that continues a row takes its index
                self.rows[row] = old[source].copy() if old[source] in self.rows.values() else old[source]
        self.shown, self.offset = memory.older, function(self.offset)
        return self

    def join(self, other: KeySearch, memory: LayerMemory) -> Self:
        assert isinstance(other, IndexSearch), "all caches of a model search in one way"
        offset, others = self._offset_in(memory), other._offset_in(memory)
        self.rows |= {len(offset) + row: index.copy() for row, index in other.rows.items()}
        self.shown, self.offset = memory.older, torch.cat([offset, others])
        return self

    def _offset_in(self, memory: LayerMemory) -> torch.Tensor:
        """The offset in columns that may be more than those shown: unused ones on the left."""
        assert self.offset is not None, "finish() comes first"
        assert self.shown is not None, "finish() comes first"
        return self.offset - (memory.older[0].shape[-2] - self.shown[0].shape[-2])

    def __deepcopy__(self, memo: dict) -> "IndexSearch":
        other = IndexSearch(self.min_keys, self.num_probes)
        other.rows = {row: index.copy() for row, index in self.rows.items()}
        other.shown, other.offset = copy.deepcopy((self.shown, self.offset), memo)
        return other


def as_array(states: torch.Tensor) -> np.ndarray:
    """What faiss reads."""
    return np.ascontiguousarray(states.detach().float().cpu().numpy())


__all__ = ["IndexSearch", "search_by_index", "search_exactly"]
