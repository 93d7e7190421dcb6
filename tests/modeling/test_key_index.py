"""An index in the place of exact search: the same keys where it reads all lists, and what follows from fewer."""

import copy

import pytest
import torch
from optional_packages import needs
from tiny import EXACT, read, tiny_model, tokens

needs("faiss")

from transformers_xl import MemoryCache  # noqa: E402  as above
from transformers_xl.modeling.layers import key_index  # noqa: E402  as above
from transformers_xl.modeling.layers.key_index import IndexSearch, search_by_index, search_exactly  # noqa: E402

ALL = 1_000  # lists: more than there are


def model_of(head: str = "model", **fields):
    """Keys of float32, as faiss has them; enough of them that ties are rare."""
    return tiny_model("memorizing_transformer", head, **({"num_memory_keys": 30, "num_hidden_layers": 1} | fields))


def indexes_of(cache) -> dict:
    return cache.layer_caches[0].derived.rows


@torch.no_grad()
def test_reading_all_lists_finds_what_exact_search_finds():
    """Over rows that are padded, reset, forget and begin documents; rows with fewer keys are searched exactly."""
    model, ids, cuts = model_of(), tokens(3, 120), [50, 1, 1, 30, 38]
    mask, reset = torch.ones(3, 120, dtype=torch.bool), torch.zeros(3, 120, dtype=torch.bool)
    mask[1, 60:100] = mask[2, :45] = False
    reset[0, 55] = reset[0, 81] = True
    exact = read(model, ids, cuts, use_cache=True, attention_mask=mask, reset=reset)[0]
    search_by_index(model, min_keys=8, num_probes=ALL)
    found, memory = read(model, ids, cuts, use_cache=True, attention_mask=mask, reset=reset)
    assert sorted(indexes_of(memory["past_key_values"])) == [0, 1, 2]
    torch.testing.assert_close(found[mask], exact[mask], **EXACT)
    few = read(search_by_index(model, min_keys=8, num_probes=1), ids, cuts, use_cache=True)[0]
    assert not torch.allclose(few, read(search_exactly(model), ids, cuts, use_cache=True)[0])


@torch.no_grad()
def test_rows_that_move_keep_their_indexes():
    """Beams continue one row twice, and each goes on on its own; so does a copy. Another cache makes its own."""
    model, exact, after = model_of(), model_of(), tokens(3, 9, seed=1)
    search_by_index(model, min_keys=8, num_probes=ALL)
    mems, cache = exact(tokens(2, 40)).mems, model(tokens(2, 40), use_cache=True).past_key_values
    before, copied, rows = indexes_of(cache), copy.deepcopy(cache), torch.tensor([1, 1, 0])
    cache.reorder_cache(rows)
    assert indexes_of(cache)[0] is before[1]
    assert indexes_of(cache)[1].heads[0] is not before[1].heads[0]
    other = MemoryCache(copied.memory)
    assert sorted(indexes_of(copied)) == [0, 1]
    for continued, here in ((cache, rows), (copied, torch.arange(2)), (other, torch.arange(2))):
        found = model(after[: len(here)], past_key_values=continued).last_hidden_state
        expected = exact(after[: len(here)], mems=mems.rows(here)).last_hidden_state
        torch.testing.assert_close(found, expected, **EXACT)


@torch.no_grad()
def test_an_index_is_made_anew_when_its_keys_are_others(monkeypatch):
    """When as many keys were added as it was made of; until then keys are added, and the oldest go."""
    made = []

    class Noted(key_index.RowIndex):
        def __init__(self, keys, begin, end, *args):
            made.append((begin, end))
            super().__init__(keys, begin, end, *args)

    monkeypatch.setattr(key_index, "RowIndex", Noted)
    model = search_by_index(model_of(), min_keys=9, num_probes=ALL)
    cache = read(model, tokens(1, 100), [10] * 10, use_cache=True)[1]["past_key_values"]
    assert made == [(0, 9), (0, 18), (6, 36), (36, 66), (66, 96)]
    (index,) = indexes_of(cache).values()
    assert [head.ntotal for head in index.heads] == [30] * 4


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"do_sample": True}], ids=str)
def test_generation_with_an_index(options):
    model, ids = model_of("causal_lm"), tokens(2, 40)
    options = options | {"max_new_tokens": 6}
    results = []
    for each in (model, search_by_index(model_of("causal_lm"), min_keys=8, num_probes=ALL)):
        torch.manual_seed(0)
        results.append(each.generate(ids, **options))
    assert torch.equal(*results)


def test_what_cannot_be_is_refused(monkeypatch):
    model = model_of()
    for name in ("min_keys", "num_probes"):
        with pytest.raises(ValueError, match=f"`{name}`=0 must be at least 1"):
            search_by_index(model, **{name: 0})
    with pytest.raises(ValueError, match="none of its layers looks up keys"):
        search_by_index(tiny_model("transformer_xl"))
    monkeypatch.setattr(key_index, "faiss", None)
    with pytest.raises(ValueError, match=r"transformers-xl\[retrieval\]"):
        search_by_index(model)
    assert not isinstance(model.layers[0].key_search(), IndexSearch)
