"""The memory contract, for every variant of the table in `modeling/auto.py`: what a memory must never get wrong."""

from itertools import product

import pytest
import torch
from tiny import (
    AROUND_BASES,
    EXACT,
    MEM_LEN,
    SEGMENT_BY_SEGMENT,
    WITHOUT_OWN_KEYS,
    allows,
    assert_same_memory,
    follows_same_length,
    in_turn,
    lacks,
    memory_of,
    memory_value,
    models,
    newest,
    num_remembered,
    pairwise,
    reach_of_ngrams,
    reach_of_states,
    read,
    read_row_alone,
    result_of,
    tensors_of,
    tiny_model,
    tokens,
)

from transformers_xl.modeling.memory.memory_cache import MemoryCache
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.memory.segment import LayerContext

CARRYING = models(memory=("exact", "own"))
WINDOWED = models(memory=("exact",))
# without one that looks up keys far outside its window; those that hold inputs, not keys and values or memory tokens
BOUNDED = [each for each in models(memory=("exact",), recurrent=False) if each != "memorizing_transformer"]
NO_INPUTS = (*AROUND_BASES, *SEGMENT_BY_SEGMENT, *WITHOUT_OWN_KEYS)
HOLDING_INPUTS = [each for each in WINDOWED if each not in NO_INPUTS]
HOLDING_INPUTS.remove("memorizing_transformer")  # it also extends what it looks up
use_cache = pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])


def masks(side: str) -> torch.Tensor:
    """Three rows of 27 columns, to be read in segments of 9: real tokens of unequal number, padded on one side."""
    real = torch.ones(3, 27, dtype=torch.bool)
    for segment, counts in enumerate([(9, 4, 1), (6, 9, 2), (3, 0, 9)]):
        for row, count in enumerate(counts):
            columns = torch.arange(9)
            if side == "left":
                here = columns >= 9 - count
            elif side == "right":
                here = columns < count
            else:  # neither at the start nor at the end where that can be avoided
                here = (columns * 5 + row) % 9 < count
            real[row, 9 * segment : 9 * segment + 9] = here
    return real


# --- forms


@pytest.mark.parametrize(
    ("model_type", "mem_len", "initial_memory", "same_length"),
    in_turn(CARRYING, pairwise([1, 5, MEM_LEN], ["empty", "zeros"], [True, False])),
)
def test_value_form_is_cache_form(model_type, same_length, initial_memory, mem_len):
    model = tiny_model(model_type, same_length=same_length, mem_len=mem_len, initial_memory=initial_memory)
    ids = tokens(2, 24)
    for lengths in ((6, 6, 6, 6), (2, 9, 1, 12)):  # any cut: test_memory_property.py
        value, memory = read(model, ids, lengths)
        cached, cache = read(model, ids, lengths, use_cache=True)
        torch.testing.assert_close(cached, value, **EXACT)
        assert memory["mems"] is not None
        assert cache["past_key_values"].memory is not None


@pytest.mark.parametrize(("model_type", "same_length"), in_turn(CARRYING, [True, False]))
def test_value_turned_into_cache(model_type, same_length):
    """A segment read with `mems` and a new cache, and the next one from that cache."""
    model = tiny_model(model_type, same_length=same_length)
    ids, mask = tokens(3, 27), masks("interior")
    _, memory = read(model, ids[:, :9], [9], attention_mask=mask[:, :9])
    value, _ = read(model, ids[:, 9:], [9, 9], attention_mask=mask[:, 9:], memory=memory)
    first = model(ids[:, 9:18], attention_mask=mask[:, 9:18], use_cache=True, **memory)
    assert all(map(torch.equal, tensors_of(first.mems), tensors_of(first.past_key_values.memory)))
    for after in ({"mems": first.mems}, {"mems": first.mems, "use_cache": True}, memory_of(first)):
        second = model(ids[:, 18:], attention_mask=mask[:, 18:], **after)
        cached = torch.cat([result_of(first), result_of(second)], dim=1)
        torch.testing.assert_close(cached[mask[:, 9:]], value[mask[:, 9:]], **EXACT)


@pytest.mark.parametrize("model_type", CARRYING)
def test_cache_takes_the_mask_of_the_whole_history(model_type):
    """`generate()` hands in a mask that covers all that was ever read: only its last columns are looked at."""
    model = tiny_model(model_type)
    ids, mask = tokens(3, 27), masks("left")
    cache = model(ids[:, :18], attention_mask=mask[:, :18], use_cache=True).past_key_values
    short = model(ids[:, 18:], attention_mask=mask[:, 18:], past_key_values=MemoryCache(cache.memory))
    long = model(ids[:, 18:], attention_mask=mask, past_key_values=cache)
    torch.testing.assert_close(result_of(long), result_of(short), **EXACT)


# --- rows


@pytest.mark.parametrize(
    ("model_type", "side", "initial_memory", "same_length"),
    in_turn(CARRYING, pairwise(["left", "right", "interior"], ["empty", "zeros"], [True, False])),
)
def test_padded_row_is_unpadded_row(model_type, same_length, initial_memory, side):
    """Unequal numbers of tokens per row and segment, one of them zero, read past the window, in both forms."""
    model = tiny_model(model_type, same_length=same_length, initial_memory=initial_memory)
    ids, mask = tokens(3, 27), masks(side)
    value, _ = read(model, ids, [9, 9, 9], attention_mask=mask)
    cached, _ = read(model, ids, [9, 9, 9], use_cache=True, attention_mask=mask)
    for row in range(3):
        alone = read_row_alone(model, ids[row], [9, 9, 9], attention_mask=mask[row])
        torch.testing.assert_close(value[row, mask[row]], alone, **EXACT)
        torch.testing.assert_close(cached[row, mask[row]], alone, **EXACT)


@pytest.mark.parametrize(("model_type", "side"), in_turn(CARRYING, ["left", "right", "interior"]))
def test_padding_never_takes_a_place_in_memory(model_type, side):
    """What a padded row remembers is what the row alone remembers, newest last, and `lengths` says how much."""
    model = tiny_model(model_type)
    ids, mask = tokens(3, 27), masks(side)
    for use_cache in (None, True):
        mems = read(model, ids, [9, 9, 9], attention_mask=mask, use_cache=use_cache)[1]
        mems = mems["mems"] if use_cache is None else mems["past_key_values"].memory
        assert mems.tokens_read.tolist() == mask.sum(dim=1).tolist()
        if any(layer.columns for layer in mems.layers):
            assert mems.lengths.tolist() == [num_remembered(model, real) for real in mask.sum(dim=1).tolist()]
        for row in range(3):
            alone = {}
            for here in range(0, 27, 9):
                if mask[row, here : here + 9].any():
                    real = ids[row : row + 1, here : here + 9][:, mask[row, here : here + 9]]
                    alone = {"mems": model(real, use_cache=use_cache, **alone).mems}
            assert_same_memory(mems.rows([row]), alone["mems"])


@pytest.mark.parametrize(("model_type", "use_cache"), in_turn(CARRYING, [None, True]))
def test_rows_of_padding_alone_are_finite(model_type, use_cache):
    """A token that sees nothing gets zero, not NaN: in the result and in every gradient."""
    model = tiny_model(model_type)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1] = False
    result, _ = read(model, tokens(2, 12), [6, 6], use_cache=use_cache, attention_mask=torch.cat([mask, mask], dim=1))
    result.square().sum().backward()
    assert result.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize(
    ("model_type", "initial_memory", "use_cache", "same_length"),
    in_turn(CARRYING, pairwise(["empty", "zeros"], [None, True], [True, False])),
)
def test_reset_row_is_fresh_row(model_type, same_length, use_cache, initial_memory):
    """`reset` of shape (batch,): the rows start afresh with the segment, the others go on; also behind padding."""
    model = tiny_model(model_type, same_length=same_length, initial_memory=initial_memory)
    ids, mask = tokens(3, 27), masks("left")
    _, before = read(model, ids[:, :18], [9, 9], use_cache=use_cache, attention_mask=mask[:, :18])
    reset = torch.tensor([True, False, True])
    output = model(ids[:, 18:], attention_mask=mask[:, 18:], reset=reset, **before)
    after = model(ids[:, :9], **memory_of(output))
    for row in range(3):
        row_ids, row_mask = (
            torch.cat([ids[row], ids[row, :9]]),
            torch.cat([mask[row], torch.ones(9, dtype=torch.bool)]),
        )
        here = slice(18, None) if reset[row] else slice(0, None)
        lengths = [9] * (2 if reset[row] else 4)
        alone = read_row_alone(model, row_ids[here], lengths, attention_mask=row_mask[here])
        ours = torch.cat([result_of(output)[row, mask[row, 18:]], result_of(after)[row]])
        torch.testing.assert_close(ours, alone[-len(ours) :], **EXACT)


@pytest.mark.parametrize(
    ("model_type", "padded", "use_cache", "same_length"),
    in_turn(WINDOWED, pairwise([False, True], [None, True], [True, False])),
)
def test_document_that_starts_inside_a_segment(model_type, same_length, use_cache, padded):
    """`reset` of shape (batch, length): from that token on it is a fresh row, in this segment and in its memory."""
    model = tiny_model(model_type, same_length=same_length)
    ids = tokens(3, 27)
    mask = masks("interior") if padded else torch.ones(3, 27, dtype=torch.bool)
    reset = torch.zeros(3, 27, dtype=torch.bool)
    for row, starts in enumerate([(0, 4, 16, 17), (12,), ()]):
        real = mask[row].nonzero().squeeze(-1)
        reset[row, real[[start for start in starts if start < len(real)]]] = True
    result, _ = read(model, ids, [9, 9, 9], use_cache=use_cache, attention_mask=mask if padded else None, reset=reset)
    for row in range(3):
        alone = read_row_alone(model, ids[row], [9, 9, 9], attention_mask=mask[row], reset=reset[row])
        torch.testing.assert_close(result[row, mask[row]], alone, **EXACT)


@pytest.mark.parametrize(("model_type", "use_cache"), in_turn(CARRYING, [None, True]))
def test_a_row_does_not_see_its_neighbours(model_type, use_cache):
    model = tiny_model(model_type)
    ids, other = tokens(3, 24), tokens(3, 24, seed=1)
    other[1] = ids[1]
    mask = torch.ones(3, 24, dtype=torch.bool)
    other_mask = mask.clone()
    other_mask[0, 3:9] = other_mask[2, 12:] = False
    here, _ = read(model, ids, [8, 8, 8], use_cache=use_cache, attention_mask=mask)
    there, _ = read(model, other, [8, 8, 8], use_cache=use_cache, attention_mask=other_mask)
    torch.testing.assert_close(there[1], here[1], **EXACT)
    assert not torch.allclose(there[0, -1], here[0, -1])


@pytest.mark.parametrize("model_type", CARRYING)
def test_rows_of_a_cache_can_be_reordered_repeated_and_selected(model_type):
    model = tiny_model(model_type)
    ids, mask = tokens(3, 27), masks("left")
    cache = model(ids[:, :18], attention_mask=mask[:, :18], use_cache=True).past_key_values
    steps = {
        "reorder_cache": (torch.tensor([2, 0, 0]), [2, 0, 0]),
        "batch_repeat_interleave": (2, [0, 0, 1, 1, 2, 2]),
        "batch_select_indices": (torch.tensor([1]), [1]),
    }
    following = tokens(1, 5, seed=1)
    for method, (argument, rows) in steps.items():
        changed = MemoryCache(cache.memory)
        getattr(changed, method)(argument)
        ours = result_of(model(following.expand(len(rows), -1), past_key_values=changed))
        for row, origin in enumerate(rows):
            alone = read_row_alone(
                model, torch.cat([ids[origin, :18], following[0]]), [18, 5],
                attention_mask=torch.cat([mask[origin, :18], torch.ones(5, dtype=torch.bool)]),
            )  # fmt: skip
            torch.testing.assert_close(ours[row], alone[-5:], **EXACT)


# --- time


@pytest.mark.parametrize("model_type", models(causal=True))
def test_a_token_does_not_see_what_follows(model_type):
    model = tiny_model(model_type)
    ids = tokens(2, 12)
    changed = ids.clone()
    changed[:, 7] = (ids[:, 7] + 1) % 37
    here, there = result_of(model(ids)), result_of(model(changed))
    torch.testing.assert_close(there[:, :7], here[:, :7], **EXACT)
    assert not torch.allclose(there[:, 7:], here[:, 7:])


@pytest.mark.parametrize(
    ("model_type", "mem_len", "use_cache"), in_turn(WINDOWED, product([1, 3, MEM_LEN], [None, True]))
)
def test_segments_with_memory_are_one_long_forward(model_type, use_cache, mem_len):
    """20 tokens in two, of which the first are one more than the window, token by token, and in chunks.

    `test_memory_property.py` cuts them anywhere.
    """
    model = tiny_model(model_type, mem_len=mem_len)
    ids = tokens(2, 20)
    at_once = result_of(model(ids))
    for lengths in ([mem_len + 1, 19 - mem_len], [1] * 20, [7, 1, 12]):
        cut_up, _ = read(model, ids, lengths, use_cache=use_cache)
        torch.testing.assert_close(cut_up, at_once, **EXACT)


@pytest.mark.parametrize(("model_type", "use_cache"), in_turn(WINDOWED, [None, True]))
def test_far_past_the_window(model_type, use_cache):
    model = tiny_model(model_type)
    ids = tokens(2, 10 * MEM_LEN)
    at_once = result_of(model(ids))
    for length in (5, 2 * MEM_LEN):  # token by token: `generate()`, in test_generate_memory.py
        cut_up, _ = read(model, ids, [length] * (10 * MEM_LEN // length), use_cache=use_cache)
        torch.testing.assert_close(cut_up, at_once, **EXACT)


@pytest.mark.parametrize("model_type", BOUNDED)
def test_window_is_exactly_the_one_of_the_config(model_type):
    """In one layer without states, a token is moved by the last of its window and by none further back."""
    model = tiny_model(model_type, num_hidden_layers=1)
    ids = tokens(1, 20)
    here = result_of(model(ids))[0, -1]
    reach = model.config.sliding_window + reach_of_states(model) + reach_of_ngrams(model)
    open_block = getattr(model.config, "compression_rate", 1) - 1  # there is none here
    assert reach == model.config.layer_reaches[0] - open_block
    for distance, is_seen in ((reach - 1, True), (reach, False)):
        changed = ids.clone()
        changed[0, 19 - distance] = (ids[0, 19 - distance] + 1) % 37
        assert torch.allclose(result_of(model(changed))[0, -1], here, atol=1e-12) != is_seen


@pytest.mark.parametrize("model_type", list(filter(follows_same_length, BOUNDED)))
@pytest.mark.parametrize("mem_len", [1, MEM_LEN])
@use_cache
def test_one_call_is_one_segment_without_same_length(model_type, use_cache, mem_len):
    """A token sees all of its call, and of what came before it exactly `mem_len` positions."""
    # a convolution of what was attended to sees what its last inputs saw: all of their call
    no_state = {} if lacks(model_type, "conv_kernel_size") else {"conv_kernel_size": 1}
    model = tiny_model(model_type, num_hidden_layers=1, same_length=False, mem_len=mem_len, **no_state)
    ids = tokens(1, 32)
    here = read(model, ids, [16, 16], use_cache=use_cache)[0]
    reach = mem_len + reach_of_states(model) + reach_of_ngrams(model)
    for position, is_seen in ((16, True), (16 - reach, True), (16 - reach - 1, False)):
        changed = ids.clone()
        changed[0, position] = (ids[0, position] + 1) % 37
        there = read(model, changed, [16, 16], use_cache=use_cache)[0]
        assert torch.allclose(there[0, -1], here[0, -1], atol=1e-12) != is_seen
        assert torch.allclose(there[0, 17], here[0, 17], atol=1e-12) != is_seen


@pytest.mark.parametrize("model_type", WINDOWED)
@pytest.mark.parametrize("use_cache", [False, True], ids=["value", "cache"])
def test_a_document_may_begin_at_a_pad(model_type, use_cache):
    model = tiny_model(model_type)
    before, ids = tokens(2, 5), tokens(2, 7, seed=1)
    mask, reset = torch.ones(2, 7, dtype=torch.long), torch.zeros(2, 7, dtype=torch.bool)
    mask[:, 3] = 0
    reset[0, 3] = True
    memory = memory_of(model(before, use_cache=use_cache))
    states = model(ids, attention_mask=mask, reset=reset, **memory).last_hidden_state
    text = torch.cat([before, ids[:, :3], ids[:, 4:]], dim=1)
    whole = model(text).last_hidden_state[:, 5:]
    torch.testing.assert_close(states[0, :3], whole[0, :3], **EXACT)  # the memory is seen before the pad
    torch.testing.assert_close(states[0, 4:], model(ids[:1, 4:]).last_hidden_state[0], **EXACT)  # and nothing after it
    torch.testing.assert_close(states[1, 4:], whole[1, 3:], **EXACT)


# --- the memory itself


@pytest.mark.parametrize(
    ("model_type", "mem_len", "same_length"), in_turn(HOLDING_INPUTS, product([1, 3, MEM_LEN], [True, False]))
)
def test_memory_holds_the_last_of_what_each_layer_remembers(model_type, same_length, mem_len, monkeypatch):
    model = tiny_model(model_type, mem_len=mem_len, same_length=same_length)
    new: list[torch.Tensor] = []
    extend = LayerContext.extend

    def noting(context, past, inputs, *arguments):
        new.append(inputs)
        return extend(context, past, inputs, *arguments)

    monkeypatch.setattr(LayerContext, "extend", noting)
    memory, read_so_far = {}, None
    for segment, length in enumerate((2, 1, 5, 20, 1)):
        new.clear()
        output = model(tokens(2, length, seed=segment), output_hidden_states=True, **memory)
        memory = memory_of(output)
        if model_type == "transformer_xl":
            assert all(torch.equal(*pair) for pair in zip(new, output.hidden_states, strict=False))
        count = sum(bool(layer.columns) for layer in output.mems.layers)
        new[:] = [torch.cat(new[index::count], dim=1) for index in range(count)]  # a call may be a loop of calls
        pairs = zip(new if read_so_far is None else read_so_far, new, strict=True)
        read_so_far = list(new) if read_so_far is None else [torch.cat(pair, dim=1) for pair in pairs]
        windows = [
            (layer, longest)
            for layer, longest in zip(output.mems.layers, model.config.layer_mem_lens, strict=True)
            if layer.columns
        ]
        assert isinstance(output.mems, Memory)
        for (layer, longest), expected in zip(windows, read_so_far, strict=True):
            (remembered,) = layer.columns
            assert not remembered.requires_grad
            kept = num_remembered(model, expected.shape[1], longest)
            torch.testing.assert_close(remembered, newest(expected, kept).detach(), **EXACT)


@pytest.mark.parametrize(("model_type", "same_length"), in_turn(CARRYING, [True, False]))
def test_memory_is_detached_capped_and_batch_first(model_type, same_length):
    model = tiny_model(model_type, same_length=same_length)
    memory = {}
    for segment in range(4):
        output = model(tokens(3, 24, seed=segment), **memory)  # of whole blocks, however long
        memory = memory_of(output)
        assert all(not state.requires_grad and len(state) == 3 for state in tensors_of(output.mems))
    sizes = [state.shape for state in tensors_of(output.mems)]
    assert sizes == [state.shape for state in tensors_of(model(tokens(3, 24), **memory).mems)]
    mems = model(tokens(3, 30), use_cache=True).mems
    assert not any(rows.requires_grad for rows in tensors_of(mems))
    longest = [num_remembered(model, 30, length) for length in model.config.layer_mem_lens]
    assert all(layer.num_columns <= length for layer, length in zip(mems.layers, longest, strict=True))


@pytest.mark.parametrize("model_type", [each for each in WINDOWED if allows(each, mem_len=0, same_length=False)])
@pytest.mark.parametrize("use_cache", [None, False, True])
def test_mem_len_zero_remembers_nothing(model_type, use_cache):
    model = tiny_model(model_type, mem_len=0, same_length=False)
    output = model(tokens(2, 12), use_cache=use_cache)
    assert output.mems is None
    assert output.past_key_values is None
    assert not {"mems", "past_key_values"} & output.keys()
    torch.testing.assert_close(result_of(output)[:, :6], result_of(model(tokens(2, 12)[:, :6])), **EXACT)


@pytest.mark.parametrize(
    ("model_type", "attention", "use_cache"),
    in_turn(filter(follows_same_length, WINDOWED), product(["eager", "sdpa"], [None, True])),
)
def test_mem_len_may_be_changed_after_training(model_type, attention, use_cache):
    """A model that is given another `mem_len` is one that was built with it."""
    model = tiny_model(model_type)
    config = model.config.to_dict() | {"mem_len": 3}  # as it is saved, with what followed from the first `mem_len`
    other = type(model)(type(model.config).from_dict(config)).double().eval()
    other.load_state_dict(model.state_dict())
    model.resize_memory(3)
    for each in (model, other):
        each.set_attn_implementation(attention)
    ours, expected = (read(each, tokens(2, 20), [6, 6, 8], use_cache=use_cache)[0] for each in (model, other))
    torch.testing.assert_close(ours, expected, **EXACT)


@pytest.mark.parametrize("model_type", CARRYING)
def test_reading_changes_no_memory_in_place(model_type):
    model = tiny_model(model_type)
    ids, mask = tokens(3, 27), masks("right")
    output = model(ids[:, :9], attention_mask=mask[:, :9])
    kept = [tensor.clone() for tensor in tensors_of(output.mems)]
    first, second = (
        model(
            ids[:, 9:18], attention_mask=mask[:, 9:18], reset=torch.tensor([False, True, False]), **memory_of(output)
        )
        for _ in range(2)
    )
    torch.testing.assert_close(result_of(second), result_of(first), atol=0, rtol=0)
    assert all(map(torch.equal, tensors_of(output.mems), kept))


@pytest.mark.parametrize("model_type", CARRYING)
def test_models_share_no_state(model_type):
    """No module keeps anything of a call: a second text is read as if it were the first."""
    model = tiny_model(model_type)
    alone = result_of(model(tokens(2, 9)))
    read(model, tokens(2, 24, seed=1), [8, 8, 8])
    read(model, tokens(2, 24, seed=1), [8, 8, 8], use_cache=True)
    torch.testing.assert_close(result_of(model(tokens(2, 9))), alone, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("model_type", "same_length", "use_cache"),
    in_turn(
        [each for each in WINDOWED if allows(each, initial_memory="zeros")],
        product([True, False], [None, True]),
    ),
)
def test_initial_memory_of_zeros_is_attended_to(model_type, same_length, use_cache):
    """A fresh row with `initial_memory="zeros"` is a row that was handed `mem_len` vectors of zeros."""
    zeros = tiny_model(model_type, initial_memory="zeros", same_length=same_length)
    empty = tiny_model(model_type, initial_memory="empty", same_length=same_length)
    empty.load_state_dict(zeros.state_dict())
    mems = memory_value(model_type)
    ours, _ = read(zeros, tokens(2, 12), [5, 7], use_cache=use_cache)
    expected, _ = read(empty, tokens(2, 12), [5, 7], use_cache=use_cache, memory={"mems": mems})
    torch.testing.assert_close(ours, expected, **EXACT)
    assert not torch.allclose(read(empty, tokens(2, 12), [5, 7])[0], ours)


@pytest.mark.parametrize(
    "model_type", [each for each in CARRYING if each != "segment_memory"]
)  # float32 in a Llama's norm
def test_gradient_reaches_the_projections_of_the_memory_but_not_the_memory(model_type):
    model = tiny_model(model_type)
    embeds = model.get_input_embeddings()(tokens(2, 8)).detach().requires_grad_()
    memory = memory_of(model(inputs_embeds=embeds))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def loss() -> torch.Tensor:
        return result_of(model(tokens(2, 3, seed=1), **memory)).square().mean()

    value = loss()
    assert torch.autograd.grad(value, embeds, retain_graph=True, allow_unused=True) == (None,)
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    directions = [torch.randn_like(parameter) for parameter in parameters]
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True) if g is not None)
    # with the memory held fixed, a step along the parameters must move the loss by what the gradient says
    step, values = 1e-6, []
    for sign in (1, -1):
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=sign * step)
            values.append(loss())
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.sub_(direction, alpha=sign * step)
    torch.testing.assert_close(slope, (values[0] - values[1]) / (2 * step), atol=1e-6, rtol=1e-5)
