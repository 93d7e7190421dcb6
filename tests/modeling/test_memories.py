"""The kinds of memory, each on its own: buffers, columns, states, counters, and their order in `mems`."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import EXACT, tiny_config, tiny_model, tokens

from transformers_xl.modeling.layers.segment_context import SegmentContext
from transformers_xl.modeling.memory.column_memory import ColumnMemory
from transformers_xl.modeling.memory.counter_memory import CounterMemory
from transformers_xl.modeling.memory.model_memory import ModelMemory
from transformers_xl.modeling.memory.recurrent_memory import RecurrentMemory
from transformers_xl.modeling.memory.window_memory import BlockWindowMemory
from transformers_xl.modeling.ops.blocks import ended_blocks
from transformers_xl.modeling.ops.columns import SegmentPacking
from transformers_xl.modeling.ops.key_mask import FarColumns, KeyMask
from transformers_xl.modeling.ops.rolling_buffer import RollingBuffer, StaticRollingBuffer

SIZE = 5


def column_values(buffer: RollingBuffer) -> list[float]:
    kept = buffer.tensors[0][0, 0, :, 0].tolist() if buffer.tensors else []
    return kept[-SIZE:]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_buffer_is_a_list_of_columns(data):
    """Any sequence of appends, drops and copies, written in place or not: every branch holds what a list would."""
    branches, number = [(RollingBuffer(SIZE), [])], 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        index = data.draw(st.integers(0, len(branches) - 1))
        buffer, columns = branches[index]
        action = data.draw(st.sampled_from(["append", "append", "append", "keep", "copy", "rows"]))
        if action == "append":
            length = data.draw(st.integers(1, SIZE + 2))
            new = torch.arange(length, dtype=torch.float64) + number
            number += length
            with torch.set_grad_enabled(data.draw(st.booleans())):
                keys = new[None, None, :, None].expand(2, 3, length, 4)
                seen = buffer.extend((keys, -keys[..., :2]))
            expected = columns[-SIZE:] + new.tolist()
            assert seen[0][1, 2, :, 3].tolist() == expected
            assert seen[1][0, 0, :, 1].tolist() == [-value for value in expected]
            branches[index] = (buffer, expected[-SIZE:])
        elif action == "keep":
            count = data.draw(st.integers(0, SIZE))
            buffer.keep(count)
            branches[index] = (buffer, columns[len(columns) - min(count, len(columns)) :])
        elif action == "copy" and len(branches) < 4:
            branches.append((buffer.copy(), columns))
        elif action == "rows":
            buffer.map_rows(lambda rows: rows.flip(0))
        for each, held in branches:
            assert column_values(each) == held


@torch.no_grad()
@pytest.mark.parametrize("every", [1, 3, SIZE])
def test_a_copy_holds_on_while_the_columns_of_the_buffer_move(every: int):
    """The storage is filled many times over, and its kept columns move to the front in place."""
    buffer, copies = RollingBuffer(SIZE), []
    for value in range(12 * SIZE):
        buffer.extend((torch.full((1, 1, 1, 1), float(value)),))
        assert column_values(buffer) == list(range(max(0, value + 1 - SIZE), value + 1))
        if value % every == 0:
            copies.append((buffer.copy(), column_values(buffer)))
        for copy, held in copies:
            assert column_values(copy) == held


def test_a_static_buffer_keeps_its_address():
    buffer = StaticRollingBuffer(SIZE)
    buffer.extend((torch.ones(1, 1, 2, 1),))
    address = buffer.tensors[0].data_ptr()
    buffer.extend((torch.full((1, 1, 2, 1), 2.0),))
    assert buffer.tensors[0].data_ptr() == address
    assert column_values(buffer) == [0, 1, 1, 2, 2]
    other = buffer.copy()
    other.extend((torch.full((1, 1, 1, 1), 3.0),))
    assert column_values(buffer) == [0, 1, 1, 2, 2]
    assert column_values(other) == [1, 1, 2, 2, 3]


def test_a_recorded_buffer_takes_columns_back():
    buffer = RollingBuffer(SIZE)
    buffer.records_past = True
    for value in range(8):
        buffer.extend((torch.full((1, 1, 1, 1), float(value)),))
    buffer.crop(2)
    assert column_values(buffer) == [1, 2, 3, 4, 5]


# --- columns


def test_columns_project_once():
    """A cache asks for the projection of what it was given at the first segment, and never again."""
    memory = ColumnMemory(4, 3)
    memory.use_buffer()
    memory.load((torch.randn(2, 4, 3, dtype=torch.float64),), torch.empty(0, dtype=torch.float64))
    calls = []

    def project(states):
        calls.append(states.shape[1])
        return (states[:, None] * 2,)

    seen = []
    for length in (2, 1, 1):
        new, past = torch.randn(2, length, 3, dtype=torch.float64), memory.unprojected()
        memory.write(new)
        with torch.no_grad():
            seen.append(memory.extend(project(new), None if past is None else project(past))[0].shape[2])
        memory.close(SegmentPacking(2, length, new.device))
    assert calls == [2, 4, 1, 1]
    assert seen == [6, 5, 5]


@torch.no_grad()
def test_rows_may_move_between_their_reset_and_the_next_segment():
    """The zeros of a fresh row are projected with the segment, wherever the row is by then."""
    memory = ColumnMemory(2, 3, starts_with_zeros=True)
    memory.use_buffer()
    memory.load((torch.ones(2, 2, 3),), torch.empty(0))

    def read(states: torch.Tensor) -> torch.Tensor:
        past = memory.unprojected()
        memory.write(states)
        projected = [(each[:, None] * 2 + 1,) for each in (states, past) if each is not None]
        return memory.extend(*projected)[0][:, 0, :, 0]

    assert read(torch.full((2, 1, 3), 2.0)).tolist() == [[3, 3, 5]] * 2
    memory.close(SegmentPacking(2, 1, torch.device("cpu")))
    memory.reset_rows(torch.tensor([True, False]))
    memory.map_rows(lambda rows: rows.flip(0))
    assert read(torch.full((2, 1, 3), 3.0)).tolist() == [[3, 5, 7], [1, 1, 7]]


def test_distances_that_are_columns_and_distances_that_are_told():
    """Relative attention takes distances from the key mask; told what the columns say, it gives the same, gradients too."""
    model = tiny_model("transformer_xl", same_length=False)
    results = []
    for told in (False, True):
        model.zero_grad()
        told_distances(model, told)
        output = model(tokens(2, 9), mems=model(tokens(2, 6, seed=1)).mems).last_hidden_state
        output.square().sum().backward()
        results.append([output, *(parameter.grad.clone() for parameter in model.parameters())])
    torch.testing.assert_close(*results, **EXACT)


def told_distances(model, told: bool) -> None:
    plain = type(model).key_mask

    def key_mask(window, packing):
        mask = plain(model, window, packing)
        keys = torch.arange(window.num_seen + packing.length)
        return KeyMask(mask.visible, distance=(keys[-packing.length :, None] - keys)[None], order=mask.order)

    model.key_mask = key_mask if told else plain.__get__(model)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_far_columns_are_read_as_the_window_is(implementation, dropout):
    """The memory as far columns at its distances, in any order: values and gradients of the same attention."""
    model = tiny_model("transformer_xl", attention_dropout=dropout)
    model.set_attn_implementation(implementation)
    attention = model.layers[0].self_attn
    past, states = (torch.randn(2, length, 32, dtype=torch.float64) for length in (6, 5))
    keys = torch.arange(11)
    distance = keys[6:, None] - keys
    visible = (distance >= 0)[None, None]
    segment = SegmentContext(position_embeddings=(model.positions(11, states), model.positions.bias()))
    whole, _ = attention(states, past, ColumnMemory.with_mask(KeyMask(visible)), segment)

    order = torch.randperm(6)
    far = FarColumns(*attention.project(past[:, order]), KeyMask(distance=distance[None, :, order], min_distance=1))
    near = ColumnMemory.with_mask(KeyMask(visible[..., 6:]))
    parts, weights = attention(states, None, near, segment, far=far)
    torch.testing.assert_close(parts, whole, **EXACT)
    assert weights is None if implementation == "sdpa" else weights.shape == (2, 4, 5, 11)
    learned = [*attention.parameters(), *model.positions.parameters()]
    found, wanted = (
        torch.autograd.grad(output.square().sum(), learned, retain_graph=True) for output in (parts, whole)
    )
    torch.testing.assert_close(found, wanted, **EXACT)
    model.train()
    assert torch.equal(attention(states, None, near, segment, far=far)[0], parts) == (dropout == 0)


# --- states


class OwnMemory(NamedTuple):
    state: RecurrentMemory
    count: CounterMemory


def read_segment(memory: ModelMemory, length: int, mask=None) -> None:
    memory.open(torch.zeros(3, length, 2, dtype=torch.float64), mask, None)


@pytest.mark.parametrize("is_cache", [False, True])
def test_a_learned_start_has_a_gradient_wherever_a_row_is_fresh(is_cache):
    start = torch.tensor([5.0, 7.0], dtype=torch.float64, requires_grad=True)
    memory = ModelMemory([], OwnMemory(RecurrentMemory((2,), has_learned_start=True), CounterMemory(initial=4)))
    if is_cache:
        memory.use_buffers()
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    read_segment(memory, 2, mask)
    state = memory.own.state.read(start)
    assert state.tolist() == [[5, 7]] * 3
    assert memory.own.count.read().tolist() == [4, 4, 4]
    memory.own.state.write(state + 1)
    memory.own.count.write(memory.own.count.read() + 1)
    if is_cache:
        memory.close()
    else:
        mems, mems_mask = memory.value()
        assert [tuple(each.shape) for each in mems] == [(3, 2), (3,), (3,)]
        assert mems[1].tolist() == [True, True, False]
        assert not mems[0].requires_grad
        memory = ModelMemory([], OwnMemory(RecurrentMemory((2,), has_learned_start=True), CounterMemory(initial=4)))
        memory.load(mems, mems_mask, torch.empty(0, dtype=torch.float64))
    memory.reset_rows(torch.tensor([False, True, False]))
    read_segment(memory, 1)
    state = memory.own.state.read(start)
    assert state.tolist() == [[6, 8], [5, 7], [5, 7]]  # goes on, was reset, had read nothing
    assert memory.own.count.read().tolist() == [5, 4, 5]
    state.sum().backward()
    assert start.grad.tolist() == [2, 2]


def test_a_layer_may_run_twice():
    """Activation checkpointing repeats a layer: what it reads the second time is what it read the first time."""
    memory = ModelMemory([], OwnMemory(RecurrentMemory((2,)), CounterMemory()))
    read_segment(memory, 1)
    before = memory.own.state.read()
    memory.own.state.write(before + 1)
    value, _ = memory.value()
    assert torch.equal(memory.own.state.read(), before)
    assert torch.equal(value[0], before + 1)


# --- memories that move by blocks


class BlockSumMemory(NamedTuple):
    """The inputs of the block that is open, and the sum of all inputs of whole blocks."""

    inputs: BlockWindowMemory
    total: RecurrentMemory


BLOCK, WIDTH = 3, 2


def block_sums(memory: ModelMemory, states: torch.Tensor, **packing) -> torch.Tensor:
    """For each token of `states` (B, T, E), the sum of the whole blocks of its text up to itself."""
    mask, document_ids = packing.get("mask"), packing.get("document_ids")
    tokens_packing, own = memory.open(states, mask, document_ids), memory.layers[0]
    before = memory.num_before
    own.inputs.key_mask = KeyMask(order=tokens_packing.rows(before).order)
    past = own.inputs.unprojected()
    own.inputs.write(states)
    (inputs,) = own.inputs.extend((states[:, None],), None if past is None else (past[:, None],))
    blocks = ended_blocks(tokens_packing, before, BLOCK)
    sums = blocks.gather(inputs[:, 0]).unflatten(1, (blocks.count, BLOCK)).sum(2)
    (total,) = own.total.projected(lambda state: (state * 1,))
    text, place, _ = blocks.places
    batch, length = states.shape[:2]
    place = place.expand(batch, -1)[:, -length:]
    text = torch.zeros_like(place) if text is None else text.expand(batch, -1)[:, -length:]
    block_text = torch.zeros_like(blocks.number.expand(batch, -1)) if blocks.text is None else blocks.text
    seen = (blocks.number.expand(batch, -1)[:, None] * BLOCK + BLOCK - 1) <= place[..., None]
    seen = seen & (block_text[:, None] == text[..., None])
    seen = seen if blocks.is_block is None else seen & blocks.is_block[:, None]
    result = seen.to(states) @ sums + total[:, None] * (text == 0)[..., None]
    if blocks.count > 0 or document_ids is not None:
        now = torch.zeros(batch, dtype=torch.long) if blocks.text is None else blocks.places.text[:, -1].clamp(min=0)
        mine = (
            (block_text == now[:, None]) if blocks.is_block is None else blocks.is_block & (block_text == now[:, None])
        )
        own.total.write(total * (now == 0)[:, None] + (mine[..., None] * sums).sum(1))
    return result


def block_memory(is_cache: bool) -> ModelMemory:
    window = BlockWindowMemory(tiny_config("transformer_xl", hidden_size=WIDTH, num_attention_heads=1), 0, BLOCK)
    memory = ModelMemory([BlockSumMemory(window, RecurrentMemory((WIDTH,)))])
    if is_cache:
        memory.use_buffers()
    return memory


def next_value(memory: ModelMemory) -> ModelMemory:
    mems, mems_mask = memory.value()
    memory = block_memory(False)
    memory.load(mems, mems_mask, torch.empty(0, dtype=torch.float64))
    return memory


@torch.no_grad()
@pytest.mark.parametrize("is_cache", [False, True])
@pytest.mark.parametrize("cuts", [(14,), (1,) * 14, (2, 5, 1, 6), (3, 3, 8)])
def test_a_state_that_moves_by_blocks_knows_no_cuts(cuts, is_cache):
    """With documents that begin inside, and padding on the left of a row's segments."""
    states = torch.randn(3, 14, WIDTH, dtype=torch.float64)
    begins = torch.zeros(3, 14, dtype=torch.bool)
    begins[1, 4] = begins[1, 5] = begins[2, 9] = True
    expected = torch.zeros_like(states)
    for row in range(3):
        start = 0
        for t in range(14):
            start = t if begins[row, t] else start
            whole = (t + 1 - start) // BLOCK * BLOCK
            expected[row, t] = states[row, start : start + whole].sum(0)
    memory, start = block_memory(is_cache), 0
    for length in cuts:
        here = slice(start, start + length)
        # a column of padding before the segment, of which the first row has one more token in its place
        mask = torch.ones(3, length + 1, dtype=torch.bool)
        mask[:, 0] = False
        padded = torch.nn.functional.pad(states[:, here], (0, 0, 1, 0), value=9.0)
        ids = torch.nn.functional.pad(begins[:, here].long().cumsum(1), (1, 0))
        result = block_sums(memory, padded, mask=mask, document_ids=ids)
        torch.testing.assert_close(result[:, 1:], expected[:, here], **EXACT)
        if is_cache:
            memory.close()
        else:
            memory = next_value(memory)
        start += length


@torch.no_grad()
def test_what_is_projected_of_a_state_is_kept_as_long_as_the_state():
    memory, calls = block_memory(True), []
    own = memory.layers[0]

    def project(state):
        calls.append(state)
        return (state + 1,)

    def read(writes: bool):
        read_segment(memory, 1)
        (projection,) = own.total.projected(project)
        if writes:
            own.total.write(own.total.read() + 2)
        own.inputs.write(torch.zeros(3, 1, WIDTH, dtype=torch.float64))
        own.inputs.extend((torch.zeros(3, 1, 1, WIDTH, dtype=torch.float64),))
        memory.close()
        return projection[:, 0].tolist()

    assert [read(False), read(False), read(True), read(False)] == [[1] * 3, [1] * 3, [1] * 3, [3] * 3]
    assert len(calls) == 2
    memory.reset_rows(torch.tensor([False, True, False]))
    assert read(False) == [3, 1, 3]
    assert len(calls) == 3
    memory.map_rows(lambda rows: rows[[1, 0, 0]])
    other = memory.copy()
    assert read(True) == [1, 3, 3]
    assert len(calls) == 3
    other.open(torch.zeros(3, 1, WIDTH, dtype=torch.float64), None, None)
    assert other.layers[0].total.projected(project)[0][:, 0].tolist() == [1, 3, 3]
    with torch.enable_grad():
        assert len(own.total.projected(project)) == 1
