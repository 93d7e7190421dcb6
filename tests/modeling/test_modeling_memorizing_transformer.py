"""What the Memorizing Transformer adds: the keys nearest to a query are found among very many, far behind the window."""

import pytest
import torch
from naive_memorizing_transformer import Naive
from tiny import EXACT, held_by, memory_of, pairwise, read, read_row_alone, tiny_model, tokens

from transformers_xl import MemorizingTransformerConfig, MemoryCache
from transformers_xl.modeling.layers import retrieval_attention

MODEL = "memorizing_transformer"
use_cache = pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
LENGTH, CUTS = 14, [4, 1, 7, 2]


def language_model(**fields):
    """Blocks of three tokens; two keys of at most seven are looked up, whose gates are neither open nor closed."""
    defaults = {"block_length": 3, "num_memory_keys": 7, "num_retrieved": 2, "mem_len": 2}
    model = tiny_model(MODEL, "causal_lm", **(defaults | {"num_attention_heads": 2, "hidden_size": 8} | fields))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "scale" in name or "norm" in name:  # those that start alike
                weight.mul_(1 + torch.rand(weight.shape, dtype=weight.dtype)).mul_(-2.0 if "scale" in name else 1.0)
            if "memory_gate" in name:
                weight.normal_()
    return model


def naive(model) -> Naive:
    return Naive(dict(model.named_parameters()) | {"lm_head.weight": model.lm_head.weight}, model.config)


FORMS = pairwise(["empty", "zeros"], [False, True], [True, False], [[1], [0, 2]])


@pytest.mark.parametrize(("initial_memory", "attend_to_empty", "attend_to_self", "memory_layers"), FORMS)
def test_values_and_gradients_are_those_of_the_equations(
    initial_memory, attend_to_empty, attend_to_self, memory_layers
):
    """Also across the blocks of one call, where no gradient reaches what an earlier one has written."""
    model = language_model(
        num_hidden_layers=3,
        initial_memory=initial_memory,
        attend_to_empty=attend_to_empty,
        attend_to_self=attend_to_self,
        memory_layers=memory_layers,
        num_retrieved=4,
    ).train()
    ids, parameters = tokens(1, LENGTH), dict(model.named_parameters())
    logits, expected = model(ids).logits, naive(model).read(ids[0])[None]
    torch.testing.assert_close(logits, expected, **EXACT)
    segments, _ = read(model.eval(), ids, CUTS, use_cache=True)
    torch.testing.assert_close(segments, expected, **EXACT)

    weight = torch.randn(logits.shape, dtype=logits.dtype, generator=torch.Generator().manual_seed(1))
    found, wanted = (torch.autograd.grad((each * weight).sum(), parameters.values()) for each in (logits, expected))
    for name, *pair in zip(parameters, found, wanted, strict=True):
        torch.testing.assert_close(*pair, **EXACT, msg=lambda text, name=name: f"{name}: {text}")
        assert pair[0].any()


@pytest.mark.parametrize("max_scores", [1, 2**25], ids=["query by query", "at once"])
def test_the_keys_that_are_found_are_the_nearest(max_scores, monkeypatch):
    """Of those that a row has said in complete blocks: those of a loop over all keys."""
    monkeypatch.setattr(retrieval_attention, "MAX_SCORES", max_scores)
    model, ids, found = language_model(num_hidden_layers=1), tokens(1, 24), []
    find = retrieval_attention.KeySearch.find

    def note(search, query, keys, first, last, part, count):
        columns, is_found = find(search, query, keys, first, last, part, count)
        number = 24 - sum(left) - keys.shape[2]  # of the first column
        found.extend((columns + number).where(is_found, -1)[0].transpose(0, 1)[last[0] > first[0]].tolist())
        return columns, is_found

    monkeypatch.setattr(retrieval_attention.KeySearch, "find", note)
    memory, left = {}, [5, 1, 1, 17]
    for part in ids.split(left, 1):
        left = left[1:]
        memory = read(model, part, [part.shape[1]], use_cache=True, memory=memory)[1]
    loop = naive(model)
    loop.read(ids[0])
    wanted = [each for each in loop.chosen if each[0]]
    assert len(found) == len(wanted) == 24 - model.config.block_length
    for ours, theirs in zip(found, wanted, strict=True):
        assert [sorted(place for place in head if place >= 0) for head in ours] == [sorted(head) for head in theirs]


# --- what the memory is for


def moved_by_the_first_token(
    model, length: int, reset_at: int | None = None, use_cache: bool | None = None
) -> list[bool]:
    """Which logits of a text, read in two calls, change with its first token."""
    results = []
    for first in (3, 4):
        ids = tokens(1, length)
        ids[0, 0] = first
        reset = torch.zeros(1, length, dtype=torch.bool)
        if reset_at is not None:
            reset[0, reset_at] = True
        results.append(read(model, ids, [length // 2, length - length // 2], use_cache=use_cache, reset=reset)[0][0])
    return [not torch.equal(*pair) for pair in zip(*results, strict=True)]


@use_cache
def test_a_token_far_with_far_columns_moves_what_looks_its_key_up(use_cache):
    """From the block after its own on, as long as the key is remembered, and not where its row was reset."""
    fields = {"num_hidden_layers": 1, "num_memory_keys": 18, "num_retrieved": 18, "mem_len": 2}
    model = language_model(**fields)
    in_window, open_block, remembered = [True] * 2, [False], [True] * 18
    assert moved_by_the_first_token(model, 25, None, use_cache) == in_window + open_block + remembered + [False] * 4
    assert moved_by_the_first_token(model, 25, 5, use_cache) == in_window + open_block + [True] * 2 + [False] * 20
    with torch.no_grad():
        model.model.layers[0].self_attn.memory_gate.fill_(-torch.inf)
    assert moved_by_the_first_token(model, 25, None, use_cache) == in_window + [False] * 23


@use_cache
@pytest.mark.parametrize("cuts", [[LENGTH], CUTS], ids=str)
def test_rows_with_padding_and_documents_look_up_their_own_keys(cuts, use_cache):
    model, ids = language_model(num_retrieved=7), tokens(3, LENGTH)
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    mask[0, 11:] = mask[1, :2] = mask[1, 7] = mask[2, 3:9] = 0
    reset = torch.zeros(3, LENGTH, dtype=torch.bool)
    reset[0, 3] = reset[0, 7] = reset[1, 10] = True  # behind a block, and inside one
    together, _ = read(model, ids, cuts, use_cache=use_cache, attention_mask=mask, reset=reset)
    for row in range(3):
        alone = read_row_alone(model, ids[row], cuts, mask[row], reset[row])
        torch.testing.assert_close(together[row][mask[row].bool()], alone, **EXACT)


def test_nothing_is_searched_that_a_text_has_not_said(monkeypatch):
    """No search before a block is complete, nor after a document began; then over no more than there is."""
    model, widths = language_model(num_hidden_layers=1, num_memory_keys=50), []
    find = retrieval_attention.KeySearch.find

    def note(search, query, keys, first, last, part, count):
        widths.append(part.right - part.left)
        return find(search, query, keys, first, last, part, count)

    monkeypatch.setattr(retrieval_attention.KeySearch, "find", note)
    memory = memory_of(model(tokens(2, 3), use_cache=True))
    assert widths == []
    memory = memory_of(model(tokens(2, 5), **memory))
    assert widths == [3, 6]
    model(tokens(2, 7), reset=torch.ones(2, dtype=torch.bool), **memory)
    assert widths == [3, 6, 3, 6]


# --- the memory itself


def test_a_token_writes_one_column_of_a_cache():
    """In place: not a copy of what is remembered; a copy of the cache is not written to."""
    model = language_model()
    with torch.no_grad():
        cache = model(tokens(2, 20), use_cache=True).past_key_values
        (storage, _), before = cache.layer_caches[1].older.storages, cache.memory.layers[1].older[0]
        storage_before = storage.clone()
        model(tokens(2, 1), past_key_values=cache)
        assert cache.layer_caches[1].older.storages[0] is storage
        # as bits: what was not written yet may be no number, which differs from itself
        assert (storage.view(torch.int64) != storage_before.view(torch.int64)).any(-1).any(1).sum(1).tolist() == [1, 1]
        assert cache.memory.layers[1].older[0].untyped_storage().data_ptr() == storage.untyped_storage().data_ptr()
        other, storage_before, before = MemoryCache(cache.memory), storage.clone(), before.clone()
        model(tokens(2, 2), past_key_values=other)
        assert torch.equal(storage.view(torch.int64), storage_before.view(torch.int64))


def test_a_short_text_takes_the_room_of_a_short_text():
    """Also after a long one in its row."""
    model = language_model(num_memory_keys=10_000)
    memory = read(model, tokens(2, 20), [5] * 4)[1]["mems"]
    assert [each.shape[2] for each in memory.layers[1].older] == [20, 20]
    again = model(tokens(2, 7), mems=memory, reset=torch.ones(2, dtype=torch.bool)).mems
    assert [each.shape[2] for each in again.layers[1].older] == [7, 7]
    cache = read(model, tokens(2, 20), [5] * 4, use_cache=True)[1]["past_key_values"]
    assert sum(rows.numel() for rows in held_by(cache)) < 2 * 2 * 8 * 2 * 40 + 100


@pytest.mark.parametrize("num_memory_keys", [4, 13])
@use_cache
def test_another_number_of_keys_after_training(num_memory_keys, use_cache):
    """A field of the config: the newest stay, or more are added to them. `resize_memory` is that of the window."""
    model, ids = language_model(num_retrieved=2, num_hidden_layers=1), tokens(2, 40)
    memory = {"mems": model(ids[:, :20]).mems}
    model.resize_memory(3)
    model.config.num_memory_keys = num_memory_keys
    results, _ = read(model, ids[:, 20:], [2, 18], use_cache=use_cache, memory=memory)
    fresh = language_model(num_retrieved=2, num_hidden_layers=1, num_memory_keys=num_memory_keys, mem_len=3)
    fresh.load_state_dict(model.state_dict())
    expected = fresh(ids).logits[:, 20:]
    same = slice(0, None) if num_memory_keys == 4 else slice(13, None)  # until as many were read again
    start = 2 if same.start == 0 else same.start  # the window was shorter
    torch.testing.assert_close(results[:, start:], expected[:, start:], **EXACT)


# --- configuration


def test_the_layer_of_the_paper_is_the_ninth_of_twelve():
    assert MemorizingTransformerConfig(num_hidden_layers=12).memory_layers == [8]
    assert MemorizingTransformerConfig(n_layer=1).memory_layers == [0]


@pytest.mark.parametrize(
    "field",
    [
        {"block_length": 0},
        {"num_memory_keys": 0},
        {"num_retrieved": 0},
        {"num_retrieved": 33, "num_memory_keys": 32},
        {"memory_layers": []},
        {"memory_layers": [6]},
        {"memory_layers": [1, 1]},
        {"mem_len": 0},
    ],
    ids=str,
)
def test_what_cannot_run_is_refused_by_name(field):
    with pytest.raises(ValueError, match=next(iter(field))):
        MemorizingTransformerConfig(**field)
