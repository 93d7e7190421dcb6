"""Where a cache writes columns in place: whatever is appended, no memory that was shown before changes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import EXACT, MEM_LEN, result_of, tensors_of, tiny_model, tokens

from transformers_xl.modeling.memory.memory_cache import LayerCache, MemoryCache

SIZE = 5


def values_of(columns: tuple[torch.Tensor, ...]) -> list[float]:
    return columns[0][0, 0, :, 0].tolist()


@torch.no_grad()
@given(st.data())
def test_a_room_is_a_list_of_columns(data):
    """Any order of appends to what was shown last, to what was shown long ago, and to columns from elsewhere."""
    layer_cache, number = LayerCache(), 0.0
    shown = [((torch.zeros(2, 3, 0, 4), torch.zeros(2, 3, 0, 2)), [])]
    for _ in range(data.draw(st.integers(1, 40))):
        past, columns = data.draw(
            st.sampled_from([shown[-1], shown[-1], shown[-1], data.draw(st.sampled_from(shown))])
        )
        length = data.draw(st.integers(1, SIZE + 2))
        new = torch.arange(length) + number
        number += length
        keys = new[None, None, :, None].expand(2, 3, length, 4)
        seen = layer_cache.append(past, (keys, -keys[..., :2]))
        assert seen[0][1, 2, :, 3].tolist() == columns + new.tolist()
        assert seen[1][0, 0, :, 1].tolist() == [-value for value in columns + new.tolist()]
        kept = tuple(each.narrow(-2, max(each.shape[-2] - SIZE, 0), min(each.shape[-2], SIZE)) for each in seen)
        layer_cache.shown = kept
        shown.append((kept, (columns + new.tolist())[-SIZE:]))
        for each, held in shown:
            assert values_of(each) == held


@torch.no_grad()
def test_rows_may_move_between_their_reset_and_the_next_segment():
    """The zeros that a fresh row begins with, as keys and values, go with the row."""
    model = tiny_model("transformer_xl", initial_memory="zeros")
    cache = model(tokens(2, 5), use_cache=True).past_key_values
    after = tokens(2, 4, seed=1)
    cache.memory = model.forget(cache.memory, torch.tensor([True, False]))
    cache.reorder_cache(torch.tensor([1, 0]))
    ours = result_of(model(after, past_key_values=cache))
    torch.testing.assert_close(ours[1:], result_of(model(after[1:])), **EXACT)
    text = torch.cat([tokens(2, 5)[1:], after[:1]], dim=1)
    torch.testing.assert_close(ours[:1], result_of(model(text))[:, 5:], **EXACT)


@torch.no_grad()
def test_a_static_cache_stays_where_it_is():
    """A recorded graph (CUDA) reads and writes its tensors there."""
    model = tiny_model("transformer_xl")
    cache = MemoryCache(model.new_memory(2, torch.empty(0, dtype=torch.float64), static=True), static=True)
    addresses = []
    for token in tokens(2, 3 * MEM_LEN).split(1, dim=1):
        shown = model(token, past_key_values=cache).mems
        copies = [each.clone() for each in tensors_of(shown)]
        addresses.append([each.data_ptr() for each in tensors_of(cache.memory)])
    assert all(each == addresses[0] for each in addresses)
    model(tokens(2, 1, seed=1), past_key_values=cache)
    assert all(map(torch.equal, tensors_of(shown), copies))  # what a call returns is its own


def test_tokens_are_taken_back_where_they_were_recorded():
    model, ids = tiny_model("transformer_xl"), tokens(2, 20)
    with torch.no_grad():
        cache = model(ids[:, :15], use_cache=True).past_key_values
        with pytest.raises(RuntimeError, match="activate_past_recording"):
            cache.crop(-2)
        with pytest.raises(ValueError, match="`tokens_to_remove`=2 must be zero or negative"):
            cache.crop(2)
        cache.activate_past_recording()
        model(tokens(2, 4, seed=3), past_key_values=cache)
        cache.crop(-4)
        assert cache.get_seq_length() == 15
        ours = result_of(model(ids[:, 15:], past_key_values=cache))
    torch.testing.assert_close(ours, result_of(model(ids))[:, 15:], **EXACT)
    with pytest.raises(ValueError, match="static memory cannot take tokens back"):
        MemoryCache(static=True).activate_past_recording()
