"""An index for the Memorizing Transformer, where exact search of very many keys takes too long: faiss
(https://arxiv.org/abs/2401.08281), the package `faiss-cpu`, extra `retrieval`.

    search_by_index(model)   # from now on, in every new cache: `generate()` and `model(ids, use_cache=True)`
    search_exactly(model)    # back again

Keys come and go, first in, first out, in every row and head. A graph (HNSW) cannot let keys go, and a flat index computes
all products, as the exact search does. So the keys of a head stand in lists, each around a centre (IVF), from which they
are removed by their numbers. A query is compared with the keys of the `num_probes` lists whose centres are nearest to it.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from transformers_xl.modeling.memory.retrieval_memory import BlockLookup, KeySearch

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


# B batch, H heads, n queries of a row, D head dim, S slots of a ring, k keys for each query
class RowIndex:
    """The indexes of one row, one for each head, of the keys `begin .. end - 1` of all that the row has written.

    They are made again when as many keys were added as they were made of: their centres follow the text.
    """

    def __init__(self, keys: torch.Tensor, begin: int, end: int, num_probes: int):
        self.begin, self.end, self.last = begin, end, 2 * end - begin
        self.heads: list[Any] = []
        for head in keys:
            vectors = of_ring(head, begin, end)
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

    def move(self, keys: torch.Tensor, begin: int, end: int) -> None:
        """Let the keys before `begin` go, and add those up to `end`."""
        for index, head in zip(self.heads, keys, strict=True):
            if begin > self.begin:
                index.remove_ids(faiss.IDSelectorRange(self.begin, begin))
            if end > self.end:
                index.add_with_ids(of_ring(head, self.end, end), np.arange(self.end, end))
        self.begin, self.end = begin, end

    def find(self, query: torch.Tensor, count: int) -> torch.Tensor:
        """The numbers `(H, n, k)` of the keys for each query `(H, n, D)`; -1 where the lists that it reads hold no more."""
        pairs = zip(self.heads, query, strict=True)
        return torch.stack([torch.from_numpy(index.search(as_array(each), count)[1]) for index, each in pairs])

    def copy(self) -> "RowIndex":
        """The same, which continues from here independently."""
        other = copy.copy(self)
        other.heads = [faiss.clone_index(index) for index in self.heads]
        return other


class IndexSearch(KeySearch):
    """Finds keys by an index of each row and head. It is brought up to the ring whenever it is asked, so that it follows
    whatever happens to a row: a reset, another document, keys that are forgotten."""

    def __init__(self, min_keys: int, num_probes: int):
        self.min_keys, self.num_probes = min_keys, num_probes
        self.rows: dict[int, RowIndex] = {}

    def find(
        self, query: torch.Tensor, keys: torch.Tensor, lookup: BlockLookup, count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found = []
        for row, (start, number) in enumerate(zip(lookup.start.tolist(), lookup.num_searched.tolist(), strict=True)):
            here = slice(row, row + 1)
            if number < self.min_keys:
                visible = None if lookup.visible is None else lookup.visible[here]
                found.append(super().find(query[here], keys[here], lookup._replace(visible=visible), count))
                continue
            index = self.rows.get(row)
            if index is None or not index.can_move(start - number, start):
                index = self.rows[row] = RowIndex(keys[row], start - number, start, self.num_probes)
            index.move(keys[row], start - number, start)
            places = index.find(query[row], count).to(query.device)[None]
            found.append((places.clamp(min=0) % keys.shape[2], places >= 0))
        slots, is_found = (torch.cat(each) for each in zip(*found, strict=True))
        return slots, is_found

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor], num_rows: int) -> None:
        old, self.rows = self.rows, {}
        for row, source in enumerate(function(torch.arange(num_rows)).tolist()):
            if source in old:  # the first that continues a row takes its index
                self.rows[row] = old[source].copy() if old[source] in self.rows.values() else old[source]

    def clear(self) -> None:
        self.rows = {}

    def copy(self) -> "IndexSearch":
        other = IndexSearch(self.min_keys, self.num_probes)
        other.rows = {row: index.copy() for row, index in self.rows.items()}
        return other

    def __deepcopy__(self, memo: dict) -> "IndexSearch":
        return self.copy()


def of_ring(keys: torch.Tensor, begin: int, end: int) -> np.ndarray:
    """Those numbered `begin .. end - 1` of the ring `keys` `(S, D)`."""
    return as_array(keys[torch.arange(begin, end, device=keys.device) % len(keys)])


def as_array(states: torch.Tensor) -> np.ndarray:
    """What faiss reads."""
    return np.ascontiguousarray(states.detach().float().cpu().numpy())


__all__ = ["IndexSearch", "search_by_index", "search_exactly"]
